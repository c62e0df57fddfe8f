"""Timeline: the instants of one request, in monotonic seconds.

Stamps only: nothing here waits, and no timer exists per request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub


@dataclass(slots=True)
class Timeline:
    """Every instant is None until it happened. arrived: the head's arrival."""

    arrived: float
    body_read: float | None = None
    joined: float | None = None  # counted and weighed: it asked for a grant
    granted: float | None = None
    sent: float | None = None
    head: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    upstream_ended: float | None = None
    gaps: list[float] = field(default_factory=list)

    def token_event(self, now: float) -> None:
        """A token-bearing event was sent. Gaps are collected for the caller to take with `take_gaps`."""
        if self.first_token is None:
            self.first_token = now
        elif self.last_token is not None:
            self.gaps.append(now - self.last_token)
        self.last_token = now

    def more_token_events(self, instants: Sequence[float]) -> None:
        """Behind the first, token-bearing events were sent at these instants."""
        assert self.last_token is not None
        self.gaps += map(sub, instants, (self.last_token, *instants))
        self.last_token = instants[-1]

    def take_gaps(self) -> list[float]:
        gaps, self.gaps = self.gaps, []
        return gaps
