"""Drain: how fast a pool gives room back while somebody waits, and so how long a demand will wait.

Only time in which somebody waits counts: an idle gateway releases little because little is asked for. Before ten releases
were seen nothing is said.

How far back the memory reaches depends on how far ahead one looks: the next few releases are told best by the last few (some
ten, which follow a change at once), a line of a hundred by the last hundred, of which chance has left less.
"""

from typing import Final

_ENOUGH_RELEASES: Final = 10
_MEMORIES: Final = (10, 40, 160)  # releases; the shortest is what is shown
_ROUNDING: Final = 1e-9  # ten releases ahead are ten, however floats add them up


class DrainRate:
    """Blocks and seats released per second of somebody waiting, in one pool: sums that fade with every release."""

    def __init__(self) -> None:
        self._releases = 0
        self._sums = [_Sums(releases) for releases in _MEMORIES]
        self._open_seconds = 0.0  # of waiting since the last release, up to the moment when the waiting last stopped
        self._waiting_since: float | None = None

    def waits(self, somebody: bool, *, now: float) -> None:
        """Somebody waits from now on, or nobody does. Saying it again changes nothing."""
        if somebody:
            if self._waiting_since is None:
                self._waiting_since = now
        elif self._waiting_since is not None:
            self._open_seconds += now - self._waiting_since
            self._waiting_since = None

    def released(self, blocks: int, seats: int, *, now: float) -> None:
        """A request ended and gave back what it was charged. Counts only while somebody waits."""
        if self._waiting_since is None:
            return
        seconds = self._open(now)
        for sums in self._sums:
            sums.add(seconds, blocks, seats)
        self._releases += 1
        self._open_seconds = 0.0
        self._waiting_since = now

    def shrunk(self, blocks: int) -> None:
        """A running request was found smaller. Room all the same, but no release, and no time of its own."""
        if self._waiting_since is not None:
            for sums in self._sums:
                sums.blocks += blocks

    def blocks_per_s(self, *, now: float) -> float | None:
        """The drain in blocks per second, by the last ten releases or so; None while it is unknown."""
        seconds = self._measured_seconds(self._sums[0], now)
        return None if seconds is None else self._sums[0].blocks / seconds

    def wait_s(self, *, blocks: float, seats: float, now: float) -> float | None:
        """Seconds until that many blocks and seats more than are free now will have come free; None while unknown.

        Blocks and seats are waited for at the same time, so the longer wait counts. What is not short is 0 or less.
        """
        if self._releases < _ENOUGH_RELEASES:
            return None
        sums = self._memory_for(blocks)
        seconds = self._measured_seconds(sums, now)
        return None if seconds is None else max(0.0, blocks * seconds / sums.blocks, seats * seconds / sums.seats)

    def _memory_for(self, blocks: float) -> "_Sums":
        """The shortest that reaches as many releases back as so many blocks lie ahead."""
        ahead = blocks * self._sums[0].releases / self._sums[0].blocks - _ROUNDING
        for sums in self._sums:
            if ahead <= sums.memory:
                return sums
        return self._sums[-1]

    def _open(self, now: float) -> float:
        """Seconds of waiting since the last release."""
        return self._open_seconds + (0.0 if self._waiting_since is None else now - self._waiting_since)

    def _measured_seconds(self, sums: "_Sums", now: float) -> float | None:
        if self._releases < _ENOUGH_RELEASES:
            return None
        # A pause that is already longer than the mean interval counts before it ends: a stalled engine does not drain.
        seconds = max(sums.seconds, sums.seconds * sums.kept + self._open(now))
        return seconds if seconds > 0 else None


class _Sums:
    """Of one memory, of so many releases. kept: of the past at each release."""

    __slots__ = ("blocks", "kept", "memory", "releases", "seats", "seconds")

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.kept = 1.0 - 1.0 / memory
        self.releases = 0.0
        self.seconds = 0.0
        self.blocks = 0.0
        self.seats = 0.0

    def add(self, seconds: float, blocks: int, seats: int) -> None:
        self.releases = self.releases * self.kept + 1
        self.seconds = self.seconds * self.kept + seconds
        self.blocks = self.blocks * self.kept + blocks
        self.seats = self.seats * self.kept + seats
