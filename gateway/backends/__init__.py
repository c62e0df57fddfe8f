"""The backends: who is there, what they can hold, what they hold now, and how many tokens a prompt is to them."""
