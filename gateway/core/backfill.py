"""Backfill: who may pass a head that does not fit, and how often.

A ticket passes a head when it is granted, before that head, on a backend that the head is waiting for; which line the ticket
stands in does not matter. A head is passed at most `max_passes` times. After that it collects: whoever is behind it gets
nothing on the backends that it could run on, so the room that comes free there adds up until it fits. What a head could
never use is not kept from anybody.
"""

from collections.abc import Iterable

from gateway.core.ledger import BackendLedger
from gateway.core.line import Line, Waiting


class Backfill:
    """Counts passes and knows for whom room collects.

    A ticket that collects goes on collecting when a policy puts another one before it: the promise was made to it.
    """

    def __init__(self, *, max_passes: int) -> None:
        self._max_passes = max_passes
        self._collecting: list[Waiting] = []

    def bars(self, waiting: Waiting, backend: BackendLedger) -> bool:
        """Whether room on that backend is being collected for somebody ahead of this ticket."""
        return any(
            other is not waiting and other.is_ahead_of(waiting) and backend.could_ever_hold(other.ticket)
            for other in self._collecting
        )

    def bars_behind(self, head: Waiting, backend: BackendLedger) -> bool:
        """Whether everybody behind that head is barred from that backend: a quick no before many tickets are tried."""
        return self.bars(head, backend) or (head.is_collecting and backend.could_ever_hold(head.ticket))

    def blocked(self, head: Waiting) -> None:
        """A head was found not to fit. From here on it collects if it may not be passed (again)."""
        if not head.is_collecting and head.passes >= self._max_passes:
            head.is_collecting = True
            self._collecting.append(head)

    def granted(self, waiting: Waiting, backend: BackendLedger, lines: Iterable[Line]) -> None:
        """A ticket, in no line any more, was granted on that backend. lines: those whose tickets may run there."""
        for line in lines:
            head = line.head
            if head is not None and head.is_ahead_of(waiting) and backend.could_ever_hold(head.ticket):
                head.passes += 1
                self.blocked(head)

    def left(self, waiting: Waiting) -> bool:
        """A ticket waits no longer. True if room was being collected for it, which is now free for others."""
        if not waiting.is_collecting:
            return False
        self._collecting.remove(waiting)
        waiting.is_collecting = False
        return True
