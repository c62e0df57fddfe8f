"""A running answer as admission sees it: looked at a few times a second, never per chunk.

It promises: the book learns of the first token at once, of progress in steps of `STEP_TOKENS`, of gaps between tokens as
sums, and of the end once. A gap counts only where the client did not hold the stream up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.core.commitment import Ending
from gateway.core.demand import Usage
from gateway.core.names import BackendName
from gateway.core.pace import Pace
from gateway.core.ticket import Ticket

STEP_TOKENS: Final = 32
_LEFT: Final = Ending.LEFT


@dataclass(frozen=True, slots=True)
class Reports:
    """Where a running answer reports to, and whom it asks: the controller's own calls.

    first_token's second argument: it was seen. patience_s, of a ticket that is a stream or not: seconds after which its prompt
    counts as computed whatever was seen.
    """

    progress: Callable[[Ticket, int], None]
    first_token: Callable[[Ticket, bool], None]
    gaps: Callable[[BackendName, float, int], None]
    learn: Callable[[Ticket, int, Ending], None]
    patience_s: Callable[[Ticket, bool], float]


class RunningAnswer:
    """One granted request from sending to its end. Seconds are monotonic."""

    __slots__ = (
        "_answered_at",
        "_backend",
        "_gap_events",
        "_gap_since",
        "_is_stream",
        "_pace",
        "_patience_s",
        "_reported",
        "_reports",
        "_seats",
        "_sent",
        "_ticket",
    )

    def __init__(self, ticket: Ticket, backend: BackendName, pace: Pace, reports: Reports, is_stream: bool, now: float) -> None:
        self._ticket = ticket
        self._backend = backend
        self._is_stream = is_stream
        self._patience_s: float | None = None  # asked for at the first look: most answers are over before it
        self._pace = pace
        self._reports = reports
        self._seats = ticket.needs[backend].seats
        self._sent = now
        self._answered_at: float | None = None
        self._reported = 0
        self._gap_events = 0
        self._gap_since: float | None = None

    def first_token(self, now: float) -> None:
        """Its first token-bearing event has come."""
        if self._answered_at is None:
            self._answered_at = now
            self._reports.first_token(self._ticket, True)

    def look(self, *, events: int, text_bytes: int, last_read_at: float, is_blocked: bool, now: float) -> None:
        """How far it is. events, text_bytes: as its watcher counts them. last_read_at: when the engine last sent anything.

        is_blocked: the client takes nothing, so what was read is not the engine's pace.
        """
        if self._answered_at is None:
            if self._patience_s is None:
                self._patience_s = self._reports.patience_s(self._ticket, self._is_stream)
            if now - self._sent > self._patience_s:
                self._answered_at = now
                self._reports.first_token(self._ticket, False)
        self._look_at_gaps(events, last_read_at, is_blocked=is_blocked)
        # A stream tells when it begins; of a plain answer it is not known how long its prompt took, and half the pace allows
        # for that.
        since = self._answered_at if self._is_stream else self._sent
        elapsed_s = 0.0 if since is None else now - since
        tokens = self._pace.progress(events=events, text_bytes=text_bytes, elapsed_s=elapsed_s, sequences=self._seats)
        if tokens >= self._reported + STEP_TOKENS * self._seats:
            self._reported = tokens
            self._reports.progress(self._ticket, tokens)

    def ended(self, ending: Ending, *, usage: Usage | None, events: int, text_bytes: int, now: float) -> None:
        """It has ended so, after its hold was given back."""
        pace = self._pace
        if usage is None:
            tokens = pace.progress(events=events, text_bytes=text_bytes, elapsed_s=0.0)
        else:
            tokens = usage.output_tokens
            if ending is not _LEFT:
                seconds = None if self._is_stream else now - self._sent
                pace.saw_answer(output_tokens=tokens, text_bytes=text_bytes, seconds=seconds)
                pace.saw_prompt(self._ticket.prompt_tokens, usage.prompt_tokens, usage.cached_tokens or 0)
        if tokens > 0:
            self._reports.learn(self._ticket, tokens, ending)

    def _look_at_gaps(self, events: int, last_read_at: float, *, is_blocked: bool) -> None:
        if is_blocked or self._seats > 1 or events == 0:
            self._gap_since = None  # several sequences take turns in one stream
        elif self._gap_since is None:
            self._gap_since, self._gap_events = last_read_at, events
        elif events > self._gap_events:
            self._reports.gaps(self._backend, last_read_at - self._gap_since, events - self._gap_events)
            self._gap_since, self._gap_events = last_read_at, events
