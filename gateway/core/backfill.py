"""Backfill: who may pass a head that does not fit, how often, and until what age.

A ticket passes a head when it is granted, before that head, on a backend that the head is waiting for. Heads are those whose
turn it is in their pool, which everybody may pass, and the first of every line, which those behind it in the line may pass. A
head is passed at most `max_passes` times, and not at all once it is older than `max_age_s`. After that the head of a pool
collects: whoever is behind it gets nothing on the backends that it could run on, so the room that comes free there adds up
until it fits; and the first of another line keeps its line back until its turn comes. What a head could never use is not kept
from anybody.

So the head of a pool starts at the latest when all has ended that was granted before it began to collect, unless an older one
collects as well. Its line comes first meanwhile (core/lanes.py): whose turn it would be otherwise waits with the others.
"""

from collections.abc import Iterable

from gateway.core.lanes import Lanes
from gateway.core.ledger import BackendLedger
from gateway.core.line import Waiting
from gateway.core.queue import Queue


class Backfill:
    """Counts passes and knows for whom room collects.

    A ticket that collects goes on collecting when a policy puts another one before it: the promise was made to it. Of several
    the oldest comes first, so that they never wait for each other. Who is held back by a cap bars nobody meanwhile.
    """

    def __init__(self, queue: Queue, *, max_passes: int, max_age_s: float) -> None:
        self._queue = queue
        self._max_passes = max_passes
        self._max_age_s = max_age_s
        self._collecting: list[Waiting] = []

    def bars(self, waiting: Waiting, backend: BackendLedger, *, now: float) -> bool:
        """Whether room on that backend is being collected for somebody ahead of this ticket, or kept for the first of its
        line, which may not be passed any more but whose turn it is not."""
        head = waiting.line.head
        if (
            head is not None
            and not waiting.is_collecting
            and head is not waiting
            and head.place < waiting.place
            and self._is_passed_enough(head, now=now)
            and backend.could_ever_hold(head.ticket)
        ):
            return True
        if not self._collecting:
            return False
        return any(
            other is not waiting
            and backend.could_ever_hold(other.ticket)
            and self._is_ahead(other, waiting, now=now)
            and not self._is_capped(other)
            for other in self._collecting
        )

    def bars_behind(self, head: Waiting, backend: BackendLedger) -> bool:
        """Whether everybody behind the head of a pool is barred from that backend, but for those who collect as well: a quick
        no before many tickets are tried. What other pools collect bars the younger only, who need not be those behind."""
        return head.is_collecting and backend.could_ever_hold(head.ticket) and not self._is_capped(head)

    def collecting_behind(self, heads: list[Waiting]) -> list[Waiting]:
        """Others of the pools of these heads for whom room collects: a policy, or a turn, has put those before them."""
        if not self._collecting:
            return []
        pools = {head.ticket.pool for head in heads}
        return [each for each in self._collecting if each.ticket.pool in pools and each not in heads]

    def blocked(self, head: Waiting, *, now: float) -> None:
        """A head was found not to fit. From here on it collects if it may not be passed (again)."""
        if not head.is_collecting and self._is_passed_enough(head, now=now):
            head.is_collecting = True
            self._collecting.append(head)
            self._queue.lanes(head.ticket.pool).collects(head)

    def granted(self, waiting: Waiting, backend: BackendLedger, pools: Iterable[Lanes], *, now: float) -> None:
        """A ticket is about to be granted on that backend: it stands where it stood, and is not charged yet. pools: whose
        tickets may run there."""
        heads = [lanes.head(now=now) for lanes in pools if lanes.requests]
        passed = [head for head in heads if head is not None and head is not waiting and self._is_ahead(head, waiting, now=now)]
        first = waiting.line.head
        if first is not None and first not in (waiting, *heads) and first.place < waiting.place and not waiting.is_collecting:
            first.passes += backend.could_ever_hold(first.ticket)
        for head in passed:
            if backend.could_ever_hold(head.ticket):
                head.passes += 1
                self.blocked(head, now=now)

    def _is_capped(self, waiting: Waiting) -> bool:
        return self._queue.lanes(waiting.ticket.pool).is_capped(waiting)

    def _is_passed_enough(self, head: Waiting, *, now: float) -> bool:
        return head.passes >= self._max_passes or now - head.ticket.arrived >= self._max_age_s

    def left(self, waiting: Waiting, *, now: float) -> bool:
        """A ticket waits no longer. True if room was kept for it, which is now free for others."""
        if not waiting.is_collecting:
            return self._is_passed_enough(waiting, now=now)
        self._collecting.remove(waiting)
        self._queue.lanes(waiting.ticket.pool).collects_no_longer(waiting)
        waiting.is_collecting = False
        return True

    def _is_ahead(self, one: Waiting, other: Waiting, *, now: float) -> bool:
        """Whether `other` would pass `one` by being granted first: by turn within a pool, by age between pools and between
        those for whom room collects."""
        if one.ticket.pool != other.ticket.pool or (one.is_collecting and other.is_collecting):
            return one.age < other.age
        return self._queue.lanes(one.ticket.pool).is_ahead(one, other, now=now)
