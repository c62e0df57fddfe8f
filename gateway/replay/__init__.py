"""Replay: what the gateway would have made of a trace, on a simulated clock. Pure, except for the reader: nothing is timed,
nothing is drawn by chance, and the same trace gives the same figures on every machine."""
