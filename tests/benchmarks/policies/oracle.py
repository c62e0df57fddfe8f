"""The reference: a door that knows the true length of every answer.

First come, first served; a request starts when the peak that all together will really reach, by their true lengths, stays
within 95 % of the pool. With kvgate's own guards, told the token gap that users expect. Not a ceiling: another order, or
fewer large requests, can serve more.
"""

from collections import deque

from benchmarks.policies.workloads import Workload
from gateway.core.guards import Guards
from gateway.core.names import BackendName, TicketId
from gateway.replay.engine import Engine, Sequence

_BACKEND = BackendName("engine")
_FILL = 0.95
_TICK_S = 0.25


class OracleDoor:
    """patience_s: who has not started by then is refused."""

    def __init__(self, engine: Engine, workload: Workload, *, patience_s: float) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._limit = _FILL * engine.profile.blocks * engine.profile.block_tokens
        self._guards = Guards(gap_target_s=workload.itl_s)
        self._line: deque[tuple[float, Sequence]] = deque()
        self._running: dict[int, Sequence] = {}
        self._next_tick = _TICK_S
        self._gap_seconds = 0.0
        self._gap_tokens = 0

    def arrive(self, sequence: Sequence, *, now: float) -> None:
        self._line.append((now + self._patience_s, sequence))
        self._start_who_fits(now=now)

    def next_event(self) -> float | None:
        deadline = self._line[0][0] if self._line else None
        tick = self._next_tick if self._running else None
        return min((at for at in (deadline, tick) if at is not None), default=None)

    def act(self, *, now: float) -> None:
        if self._running and now >= self._next_tick:
            self._next_tick = now + _TICK_S
            self._guards.saw_gaps(_BACKEND, self._gap_seconds, self._gap_tokens, running=len(self._running), now=now)
            self._gap_seconds, self._gap_tokens = 0.0, 0
        self._start_who_fits(now=now)

    def answered(self, sequence: Sequence, *, now: float) -> None:
        self._guards.answered(TicketId(sequence.id), now=now)
        self._start_who_fits(now=now)

    def finished(self, sequence: Sequence, *, now: float) -> None:
        del self._running[sequence.id]
        self._start_who_fits(now=now)

    def stepped(self, engine: Engine, seconds: float, *, now: float) -> None:
        self._gap_seconds += seconds * self._engine.decoding
        self._gap_tokens += self._engine.decoding

    def _start_who_fits(self, *, now: float) -> None:
        while self._line:
            deadline, sequence = self._line[0]
            if deadline > now:
                if not self._fits(sequence):
                    return
                sequence.granted_at = now
                self._running[sequence.id] = sequence
                self._guards.granted(TicketId(sequence.id), _BACKEND, sequence.arrival.prompt_tokens, now=now)
                self._engine.add(sequence)
            self._line.popleft()

    def _fits(self, sequence: Sequence) -> bool:
        if not self._running:
            return True
        seats = self._guards.seat_limit(_BACKEND)
        if seats is not None and len(self._running) >= seats:
            return False
        if not self._guards.admits(_BACKEND, sequence.arrival.prompt_tokens):
            return False
        return self._peak_tokens([*self._running.values(), sequence]) <= self._limit

    def _peak_tokens(self, sequences: list[Sequence]) -> int:
        """The most tokens that they will hold at once if all advance alike: the last to end are looked at first, and at the
        end of each one all that end later have grown as far."""
        ahead = []
        for sequence in sequences:
            produced = self._engine.produced(sequence)
            ahead.append((sequence.arrival.output_tokens - produced, sequence.arrival.prompt_tokens + produced))
        ahead.sort(reverse=True)
        peak = held = 0
        for count, (remaining, tokens) in enumerate(ahead, start=1):
            held += tokens + self._engine.profile.block_tokens // 2  # half of a last block is empty
            peak = max(peak, held + count * remaining)
        return peak
