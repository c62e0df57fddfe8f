"""By priority, the lower number first as in vLLM, and by arrival among equals: static priority scheduling.

Theory: with fixed priorities the mean wait of the best class is that of a queue in which nobody else stood, but for the one
request that already runs; each class pays for all better ones, and for none that is worse.

Bound: a ticket is passed, within its line, by those of a better priority alone, never by an equal that came later.

Whom it can starve: the worse priorities, for as long as better ones keep coming: what ends their wait then is their deadline.
Whoever may set priorities decides that, which is why a caller's wish counts by its credential only.
"""

from gateway.core.ticket import Ticket


class PriorityPolicy:
    """The better priority goes first, then the older ticket."""

    def rank(self, ticket: Ticket) -> tuple[float, ...]:
        return (ticket.priority, ticket.arrived)

    def granted(self, ticket: Ticket) -> None:
        """A priority is not spent by a grant."""

    def left(self, ticket: Ticket) -> None:
        """Nor by leaving."""
