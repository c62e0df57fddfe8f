"""Deadlines of waiting tickets, earliest first. Tickets that are gone stay in the heap until they surface or are too many."""

import heapq

from gateway.core.line import Waiting

_SPARE = 64  # heaps smaller than this are not worth rebuilding


class Deadlines:
    """A heap with lazy deletion: adding costs O(log n), a ticket that leaves costs O(1), taken over many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Waiting]] = []

    def add(self, waiting: Waiting) -> None:
        """Watch a ticket."""
        heapq.heappush(self._heap, (waiting.ticket.deadline, waiting.sequence, waiting))

    def note_left(self, *, live: int) -> None:
        """A ticket does not wait any more. live: those that still do; once the dead are the majority, they go together.

        When nobody waits, nothing is kept: a gateway at rest holds no ticket of a request that has ended.
        """
        if not live:
            self._heap.clear()
        elif len(self._heap) > 2 * live + _SPARE:
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapq.heapify(self._heap)

    def earliest(self) -> float | None:
        """The next deadline of a ticket that still waits, None if nobody does."""
        while self._heap:
            deadline, _, waiting = self._heap[0]
            if waiting.is_waiting:
                return deadline
            heapq.heappop(self._heap)
        return None

    def take_due(self, *, now: float) -> list[Waiting]:
        """Tickets whose deadline is `now` or earlier and that still wait, earliest first. They are not watched any longer."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            waiting = heapq.heappop(self._heap)[2]
            if waiting.is_waiting:
                due.append(waiting)
        return due

    def __len__(self) -> int:
        """Entries kept, dead ones included."""
        return len(self._heap)
