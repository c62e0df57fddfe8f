"""Occupancy: what the engine's own gauges say beyond what we know, and how long they have to say it before we believe it.

The gauges lag by up to a step and show cached blocks as free, so one reading proves nothing. It promises:
* foreign blocks are the smallest excess seen over ten seconds on end, and fall back at once when the gauge falls;
* a limit on seats is concluded only when requests wait in the engine, with the same number running, over several
  readings although the pool has room for a whole context; it is withdrawn when more are seen to run.
"""

from collections import deque
from typing import Final

FOREIGN_AFTER_S: Final = 10.0
SEAT_READINGS: Final = 3


class Foreign:
    """Blocks that others than we have taken."""

    def __init__(self) -> None:
        self._excesses: deque[tuple[float, int]] = deque()

    def read(self, used_blocks: int, written_blocks: int, *, now: float) -> int:
        """The foreign blocks after one more reading of the gauge.

        written_blocks: the most that requests of ours can have written by now.
        """
        excess = used_blocks - written_blocks
        if excess <= 0:
            self._excesses.clear()
            return 0
        self._excesses.append((now, excess))
        # The newest reading that is old enough stays: the window has to reach back over all of the ten seconds.
        while len(self._excesses) > 1 and self._excesses[1][0] <= now - FOREIGN_AFTER_S:
            self._excesses.popleft()
        if self._excesses[0][0] > now - FOREIGN_AFTER_S:
            return 0
        return min(excess for _, excess in self._excesses)

    def forget(self) -> None:
        self._excesses.clear()


class SeatLimit:
    """The number of sequences that an engine runs at once, where it does not tell."""

    def __init__(self) -> None:
        self.seats: int | None = None
        self._running = 0
        self._readings = 0

    def read(self, *, running: int, waiting: int, has_room: bool) -> int | None:
        """The limit after one more reading, None while there is none. has_room: a whole context would fit the pool."""
        if self.seats is not None and running > self.seats:
            self.seats = None
        if waiting > 0 and running > 0 and has_room:
            self._readings = self._readings + 1 if running == self._running else 1
            self._running = running
            if self._readings >= SEAT_READINGS:
                self.seats = running
        else:
            self._readings = 0
        return self.seats
