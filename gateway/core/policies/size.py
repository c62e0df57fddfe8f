"""By size: the shortest estimated prefill first, with aging.

Theory: shortest job first has the least mean wait of all orders, and starves the large; aging bounds that. The first token of
a request waits for the prompts before it, so the size that counts here is the prompt's. A ticket stands where it would stand by
arrival had it come later by its estimated prefill, at a rate slower than that of any engine: the rate is the weight of size
against age, and the same for all, so that a ticket is ranked once and for all.

Bound: a ticket is passed, within its line, only by smaller ones that came less than the difference of their estimated prefills
after it: prompt tokens / 1,000, in seconds. A prompt of 30,000 tokens is passed by small ones for half a minute, then by none.

Whom it can starve: nobody. Large prompts pay for the small ones that come within that time.
"""

from typing import Final

from gateway.core.ticket import Ticket

TOKENS_PER_S: Final = 1000.0


class SizePolicy:
    """The smaller prompt goes first, unless the larger is older by more than their prefills differ."""

    def rank(self, ticket: Ticket) -> tuple[float, ...]:
        return (ticket.arrived + ticket.prompt_tokens / TOKENS_PER_S, ticket.arrived)

    def granted(self, ticket: Ticket) -> None:
        """Age and size do not depend on who was granted."""

    def left(self, ticket: Ticket) -> None:
        """Nor on who left."""
