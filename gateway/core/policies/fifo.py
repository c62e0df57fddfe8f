"""First come, first served, by the arrival of the request's head: a long upload or a slow count loses nobody their place.

Theory: no order without knowledge of sizes, deadlines or importance does better on the worst wait.

Bound: a ticket is passed, within its line, by those alone that arrived before it.

Whom it can starve: nobody. What it does not do: a burst of one caller stands in front of everybody who comes after it.
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
