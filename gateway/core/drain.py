"""Drain: how fast a pool gives room back while somebody waits, and so how long a demand will wait.

Only time in which somebody waits counts: an idle gateway releases little because little is asked for. The memory is about
ten releases long, and before ten were seen nothing is said.
"""

_KEPT = 0.9  # of the past at each release: a memory of about ten releases
_ENOUGH_RELEASES = 10


class DrainRate:
    """Blocks and seats released per second of somebody waiting, in one pool: sums that fade with every release."""

    def __init__(self) -> None:
        self._releases = 0
        self._seconds = 0.0
        self._blocks = 0.0
        self._seats = 0.0
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
        self._seconds = self._seconds * _KEPT + self._open(now)
        self._blocks = self._blocks * _KEPT + blocks
        self._seats = self._seats * _KEPT + seats
        self._releases += 1
        self._open_seconds = 0.0
        self._waiting_since = now

    def shrunk(self, blocks: int) -> None:
        """A running request was found smaller. Room all the same, but no release, and no time of its own."""
        if self._waiting_since is not None:
            self._blocks += blocks

    def blocks_per_s(self, *, now: float) -> float | None:
        """The drain in blocks per second; None while it is unknown."""
        seconds = self._measured_seconds(now)
        return None if seconds is None else self._blocks / seconds

    def wait_s(self, *, blocks: float, seats: float, now: float) -> float | None:
        """Seconds until that many blocks and seats more than are free now will have come free; None while unknown.

        Blocks and seats are waited for at the same time, so the longer wait counts. What is not short is 0 or less.
        """
        seconds = self._measured_seconds(now)
        if seconds is None:
            return None
        return max(0.0, blocks * seconds / self._blocks, seats * seconds / self._seats)

    def _open(self, now: float) -> float:
        """Seconds of waiting since the last release."""
        return self._open_seconds + (0.0 if self._waiting_since is None else now - self._waiting_since)

    def _measured_seconds(self, now: float) -> float | None:
        if self._releases < _ENOUGH_RELEASES:
            return None
        # A pause that is already longer than the mean interval counts before it ends: a stalled engine does not drain.
        seconds = max(self._seconds, self._seconds * _KEPT + self._open(now))
        return seconds if seconds > 0 else None
