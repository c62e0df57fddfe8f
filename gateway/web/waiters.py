"""Waiters: requests in line, which are weighed anew when an engine comes back as another.

A request waits with what it needs by the context, the blocks and the rules of the engine that was there when it came. An
engine that is started anew with a longer context takes more for the same request; granted by the old figures it would be
over-admitted.
"""

from collections.abc import Callable, Mapping

from gateway.backends.capacity import Capacity
from gateway.backends.view import BackendView
from gateway.core.names import BackendName, TicketId
from gateway.core.ticket import Need

# What a request in line needs by what is known of that backend now; None where it does not wait, or not for that one.
WeighAnew = Callable[[BackendName], Mapping[BackendName, Need] | None]


class Waiters:
    """Whom to ask what they need now, by ticket."""

    def __init__(self) -> None:
        self._waiting: dict[TicketId, WeighAnew] = {}
        self._planned: dict[BackendName, Capacity] = {}

    def note(self, ticket: TicketId, weigh_anew: WeighAnew) -> None:
        """This request may have to wait; `forget` it once it does not."""
        self._waiting[ticket] = weigh_anew

    def forget(self, ticket: TicketId) -> None:
        self._waiting.pop(ticket, None)

    def weighed_anew(self, view: BackendView) -> dict[TicketId, Mapping[BackendName, Need]]:
        """What each of those who wait for that backend needs now; empty unless its capacity is another than it was."""
        capacity = view.capacity
        if capacity is None or capacity == self._planned.get(view.name):
            return {}
        self._planned[view.name] = capacity
        weighed = {ticket: weigh_anew(view.name) for ticket, weigh_anew in self._waiting.items()}
        return {ticket: needs for ticket, needs in weighed.items() if needs is not None}
