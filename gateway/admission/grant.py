"""Grant: the right to run. It travels with the answer's stream, and is ended exactly once by whoever holds it."""

from collections.abc import Callable

from gateway.core.decisions import Granted
from gateway.core.names import BackendName
from gateway.core.ticket import Ticket


class Grant:
    """A reservation owned by one running request.

    `release` is plain and idempotent: it may be called from any callback, in any phase, and never waits. Whatever I/O a
    release leads to (the grants that it makes possible) is done by others, later.
    """

    __slots__ = ("_give_back", "_released", "backend", "granted", "released_blocks", "ticket")

    def __init__(self, granted: Granted, give_back: Callable[["Grant"], None]) -> None:
        self.granted = granted
        self.ticket: Ticket = granted.ticket
        self.backend: BackendName = granted.backend
        self._give_back = give_back
        self._released = False
        self.released_blocks: int | None = None  # what it was charged in the end; None while it runs

    @property
    def worst_blocks(self) -> int:
        """Blocks that were held when the grant was given; a later exact count may have shrunk the hold."""
        return self.granted.worst_blocks

    @property
    def is_released(self) -> bool:
        return self._released

    def release(self) -> None:
        """End the hold. The second call does nothing."""
        if not self._released:
            self._released = True
            self._give_back(self)

    def __repr__(self) -> str:
        state = "released" if self._released else "running"
        return f"<grant {self.ticket.id}: {self.worst_blocks} blocks on {self.backend}, {state}>"
