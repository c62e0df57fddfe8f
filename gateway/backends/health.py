"""Health: is a backend there? A small state machine, fed by probes, by the data path's connects and by bytes on streams.

It promises:
* unhealthy only after three failed probes or two refused connects in a row; a probe that failed while bytes flowed is
  no failure, for a busy engine answers late;
* any answer, 401 as well, and any byte on any stream is proof of life;
* a backend that has never answered is not healthy.
"""

from typing import Final

FAILED_PROBES: Final = 3
REFUSED_CONNECTS: Final = 2


class Health:
    """What is known of one backend's life. Times are monotonic seconds."""

    __slots__ = ("_alive_at", "_failed_probes", "_refused_connects", "healthy", "since")

    def __init__(self, *, now: float) -> None:
        self.healthy = False
        self.since = now  # when `healthy` last changed
        self._failed_probes = 0
        self._refused_connects = 0
        self._alive_at = float("-inf")

    def __repr__(self) -> str:
        return "healthy" if self.healthy else f"unhealthy ({self._failed_probes} failed probes)"

    def answered(self, *, now: float) -> None:
        """A probe was answered, with whatever status below 500."""
        self.alive(now=now)

    def alive(self, *, now: float) -> None:
        """Something came from it. Called for each piece of each stream, so it does next to nothing."""
        self._alive_at = now
        self._failed_probes = 0
        self._refused_connects = 0
        if not self.healthy:
            self.healthy = True
            self.since = now

    def probe_failed(self, *, started: float, now: float) -> None:
        """A probe that began at `started` had no usable answer."""
        if self._alive_at >= started:
            return
        self._failed_probes += 1
        if self._failed_probes >= FAILED_PROBES:
            self._turn_unhealthy(now)

    def connect_refused(self, *, now: float) -> None:
        """A connection, of a probe or of a request, was refused."""
        self._refused_connects += 1
        if self._refused_connects >= REFUSED_CONNECTS:
            self._turn_unhealthy(now)

    def _turn_unhealthy(self, now: float) -> None:
        if self.healthy:
            self.healthy = False
            self.since = now
