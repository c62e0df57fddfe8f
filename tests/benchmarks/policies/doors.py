"""Doors without a book: what users have today."""

import heapq

from gateway.replay.engine import Engine, Sequence


class OpenDoor:
    """Everything goes straight into the engine. patience_s: clients without a first token by then hang up; None: never."""

    def __init__(self, engine: Engine, *, patience_s: float | None) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._hang_ups: list[tuple[float, int, Sequence]] = []

    def arrive(self, sequence: Sequence, *, now: float) -> None:
        self._engine.add(sequence)
        if self._patience_s is not None:
            heapq.heappush(self._hang_ups, (now + self._patience_s, sequence.id, sequence))

    def next_event(self) -> float | None:
        while self._hang_ups and self._hang_ups[0][2].first_token_at is not None:
            heapq.heappop(self._hang_ups)
        return self._hang_ups[0][0] if self._hang_ups else None

    def act(self, *, now: float) -> None:
        while self._hang_ups and self._hang_ups[0][0] <= now:
            sequence = heapq.heappop(self._hang_ups)[2]
            if sequence.first_token_at is None:
                self._engine.abort(sequence)

    def answered(self, sequence: Sequence, *, now: float) -> None:
        pass

    def finished(self, sequence: Sequence, *, now: float) -> None:
        pass

    def stepped(self, engine: Engine, seconds: float, *, now: float) -> None:
        pass


class FixedDoor(OpenDoor):
    """At most `seats` requests at once, first come, first served; who waits longer than its patience is refused."""

    def __init__(self, engine: Engine, *, seats: int, patience_s: float) -> None:
        super().__init__(engine, patience_s=None)
        self._seats = seats
        self._free = seats
        self._limit_s = patience_s
        self._line: list[tuple[float, int, Sequence]] = []

    def arrive(self, sequence: Sequence, *, now: float) -> None:
        if self._free > 0:
            self._free -= 1
            self._start(sequence, now=now)
        else:
            heapq.heappush(self._line, (now + self._limit_s, sequence.id, sequence))

    def next_event(self) -> float | None:
        return self._line[0][0] if self._line else None

    def act(self, *, now: float) -> None:
        while self._line and self._line[0][0] <= now:
            heapq.heappop(self._line)

    def finished(self, sequence: Sequence, *, now: float) -> None:
        if self._line:
            self._start(heapq.heappop(self._line)[2], now=now)
        else:
            self._free += 1

    def _start(self, sequence: Sequence, *, now: float) -> None:
        sequence.granted_at = now
        self._engine.add(sequence)
