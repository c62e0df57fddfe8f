"""By deadline, the earliest first.

Theory: on one server that may interrupt, earliest deadline first meets every deadline that any order could meet (Liu and
Layland 1973; Dertouzos 1974). Requests are not interrupted here, and under overload the order fails for all alike: it works on
those that are nearly late. So the book refuses at once what is predicted to come too late, and takes out what is late.

Bound: a ticket is passed, within its line, by those alone whose deadline is earlier: by nobody who comes later than the time
that is left to it, less the patience of the newcomer.

Whom it can starve: the patient, while the impatient fill the engine: they wait until their own deadline is near, and then too
as long as it is not the earliest.
"""

from gateway.core.ticket import Ticket


class DeadlinePolicy:
    """The earlier deadline goes first, then the older ticket."""

    def rank(self, ticket: Ticket) -> tuple[float, ...]:
        return (ticket.deadline, ticket.arrived)

    def granted(self, ticket: Ticket) -> None:
        """Whoever is granted leaves the others' deadlines as they are."""

    def left(self, ticket: Ticket) -> None:
        """Likewise."""
