"""First come, first served, by the arrival of the request's head: a long upload or a slow count loses nobody their place.

Starves nobody. What it does not do: a burst of one caller stands in front of everybody who comes after it.
"""

from gateway.core.ticket import Ticket


class FifoPolicy:
    """The older ticket goes first."""

    def rank(self, ticket: Ticket) -> tuple[float, ...]:
        return (ticket.arrived,)

    def granted(self, ticket: Ticket) -> None:
        """Order by arrival does not depend on what was granted."""

    def left(self, ticket: Ticket) -> None:
        """Nor on who left."""
