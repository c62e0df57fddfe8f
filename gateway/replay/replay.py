"""One replay: a trace through the book of one setting, before as many model engines as it has backends."""

import heapq
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from gateway.admission.running_answer import STEP_TOKENS
from gateway.books import BookContract, memory_book
from gateway.core.decisions import Mode
from gateway.core.guards import Guards
from gateway.core.ledger import Budget
from gateway.core.names import BackendName
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.queue import WAIT_MARGIN, QueueLimits
from gateway.core.reserve import ReserveProblem
from gateway.core.waste import waste
from gateway.replay import loop
from gateway.replay.drive import BookDrive, Call
from gateway.replay.engine import Engine
from gateway.replay.figures import Fates, Point, Result, outcome_of
from gateway.replay.prefix_cache import PrefixCache
from gateway.replay.setting import Setting, Site
from gateway.replay.tickets import Misfit, TicketMaker
from gateway.replay.trace import Request, Trace

_TOLD_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one row of the trace. waited_s: in line. ttft_s: None where there was no first token."""

    row: int
    outcome: str
    arrived_s: float
    waited_s: float
    ttft_s: float | None
    ended_s: float
    backend: BackendName | None


def budget_of(site: Site, setting: Setting) -> Budget:
    """What the book plans with on each backend. Raises ValueError with a sentence."""
    blocks = site.engine.blocks
    reserve = setting.reserve.resolve(blocks)
    if isinstance(reserve, ReserveProblem):
        raise ValueError(reserve.message)
    return Budget(blocks, reserve, site.engine.max_running)


def replay(
    trace: Trace,
    site: Site,
    setting: Setting,
    *,
    on_progress: Callable[[int], None] | None = None,
    on_fate: Callable[[Fate], None] | None = None,
) -> Result:
    """What the gateway would have made of the trace.

    on_progress: told now and then how many requests have come. on_fate: told of every row, in the order of their ends.
    Raises ValueError, with a sentence, for a setting that cannot be.
    """
    return _Replay(trace, site, setting, on_progress, on_fate).run()


class _Replay:
    """The trace as it comes, and what is heard of it."""

    def __init__(
        self,
        trace: Trace,
        site: Site,
        setting: Setting,
        on_progress: Callable[[int], None] | None,
        on_fate: Callable[[Fate], None] | None,
    ) -> None:
        budget = budget_of(site, setting)
        names = [BackendName(f"b{number}") for number in range(1, setting.backends + 1)]
        engines = {name: Engine(site.engine) for name in names}
        self._trace = trace
        self._engines = engines
        self._on_progress = on_progress
        self._on_fate = on_fate
        self._result = Result(setting, budget.blocks * len(names), budget.reserve_blocks * len(names))
        self._maker = TicketMaker(site, setting, budget, names)
        self._caches = {name: PrefixCache(engine) for name, engine in engines.items()} if site.has_prefix_cache else {}
        self._rows: dict[int, tuple[int, Request]] = {}  # by ticket: those that wait or run
        self._arrivals = _Arrivals(trace, site, self._come)
        self._book = _book(site, setting)
        # Strict charges the worst whatever was produced, so that being told of it would cost time and change nothing.
        step_tokens = None if setting.commitment == "strict" else STEP_TOKENS
        self._drive = BookDrive(self._book, engines, budget=budget, listener=self, step_tokens=step_tokens)

    def run(self) -> Result:
        result = self._result
        result.span_s = loop.run(self._arrivals, self._drive, list(self._engines.values()), watch=self._watch)
        result.preemptions = sum(engine.preemptions for engine in self._engines.values())
        result.cut = self._maker.cut
        assert not self._rows, "every request has ended"
        held = self._book.snapshot(now=result.span_s).backends.values()
        assert not any(backend.charged_blocks for backend in held), "and holds nothing"
        return result

    def _watch(self, engine: Engine, seconds: float, *, end: float) -> None:
        result = self._result
        result.used_block_s += engine.used_blocks * seconds
        result.peak_used_blocks = max(result.peak_used_blocks, engine.used_blocks)
        if end >= result.timeline.next_at:
            held = self._book.snapshot(now=end).backends.values()
            result.timeline.add(
                Point(
                    end,
                    held_blocks=sum(backend.charged_blocks for backend in held),
                    used_blocks=sum(each.used_blocks for each in self._engines.values()),
                    waiting=self._drive.waiting,
                    refused=result.all.refusals + result.all.timed_out,
                )
            )

    def _come(self, row: int, *, now: float) -> None:
        """A request arrives."""
        request = self._trace.row(row)
        fates = self._fates(request)
        for fate in fates:
            fate.requests += 1
        number = self._result.all.requests
        if self._on_progress is not None and number % _TOLD_EVERY == 0:
            self._on_progress(number)
        match self._maker.call(number, request, now=now):
            case Misfit(reason):
                self._declined(row, request, reason, arrived=now, now=now)
            case Call() as call:
                self._rows[number] = (row, request)
                self._drive.join(call, now=now)

    # What the drive tells

    def granted(self, call: Call, *, now: float) -> None:
        _, request = self._rows[call.ticket.id]
        assert call.backend is not None, "it was granted"
        if request.shared_tokens and self._caches:
            sequence = call.sequences[0]
            sequence.cached_tokens = self._caches[call.backend].take(request.session, request.shared_tokens)
        waited_s = now - call.ticket.arrived
        for fates in self._fates(request):
            fates.waits.add(waited_s)
            fates.waited += waited_s > 0

    def refused(self, call: Call, reason: RejectReason, *, now: float) -> None:
        row, request = self._rows.pop(call.ticket.id)
        self._declined(row, request, reason, arrived=call.ticket.arrived, now=now)

    def ended(self, call: Call, *, now: float) -> None:
        row, request = self._rows.pop(call.ticket.id)
        arrived, first, granted = call.ticket.arrived, call.first_token_at, call.granted_at
        assert first is not None, "who has ended had a first token"
        assert granted is not None, "and was granted before"
        assert call.backend is not None, "on some backend"
        tokens = call.output_tokens
        seconds = now - granted
        causes = waste(
            charged_at_start=call.charged_at_start,
            charged_at_end=call.charged_at_end,
            prompt_tokens=call.prompt_tokens,
            output_tokens=tokens,
            seats=len(call.sequences),
            weighing=self._maker.weighing,
            has_cap=call.ticket.cap_tokens is not None,
            seconds=seconds,
        )
        for fates in self._fates(request):
            fates.completed += 1
            if call.is_stream:  # of others no first token is seen
                fates.ttft.add(first - arrived)
            fates.output_tokens += tokens
            fates.held_block_s += (call.charged_at_start + call.charged_at_end) / 2 * seconds
            for cause, block_s in causes.items():
                fates.wasted_block_s[cause] += block_s
        each = call.sequences[0].arrival.output_tokens
        if each > 1:
            self._result.gaps.add((now - first) / (each - 1))
        if request.session and self._caches:
            self._caches[call.backend].keep(request.session, call.prompt_tokens + each)
        if self._on_fate is not None:
            fate = Fate(row, Outcome.COMPLETED.value, arrived, granted - arrived, first - arrived, now, call.backend)
            self._on_fate(fate)
        self._arrivals.ended(row, now=now)

    def _declined(self, row: int, request: Request, reason: RejectReason, *, arrived: float, now: float) -> None:
        for fates in self._fates(request):
            fates.decline(reason, waited_s=now - arrived)
        if self._on_fate is not None:
            self._on_fate(Fate(row, outcome_of(reason), arrived, now - arrived, None, now, None))
        self._arrivals.ended(row, now=now)

    def _fates(self, request: Request) -> tuple[Fates, Fates]:
        return self._result.all, self._result.tenant(request.tenant)


class _Arrivals:
    """Rows at their time, and the later turns of sessions when their think time after the turn before is over, however that
    ended."""

    def __init__(self, trace: Trace, site: Site, come: Callable[..., None]) -> None:
        self._trace = trace
        self._come = come
        self._load = site.load
        self._most_sessions = site.sessions if trace.has_sessions else None
        self._order: array[int] = trace.order
        self._next = 0
        self._due: list[tuple[float, int]] = []
        self._at_work = 0

    def next_at(self) -> float | None:
        due = self._due[0][0] if self._due else None
        if self._next >= len(self._order) or self._is_full():
            return due
        at = self._trace.at(self._order[self._next]) / self._load
        return at if due is None else min(at, due)

    def come(self, *, now: float) -> None:
        if self._due and self._due[0][0] <= now:
            row = heapq.heappop(self._due)[1]
        else:
            row = self._order[self._next]
            self._next += 1
            self._at_work += 1
        self._come(row, now=now)

    def ended(self, row: int, *, now: float) -> None:
        """A row has ended, so its session goes on, or is over."""
        following = self._trace.next_turn(row)
        if following is None:
            self._at_work -= 1
        else:
            heapq.heappush(self._due, (now + self._trace.think_s(following), following))

    def _is_full(self) -> bool:
        return self._most_sessions is not None and self._at_work >= self._most_sessions


def _book(site: Site, setting: Setting) -> BookContract:
    return memory_book(
        mode=Mode.ENFORCE,
        commitment=setting.commitment,
        policy=setting.policy,
        limits=QueueLimits(
            max_requests=site.queue_requests,
            max_passes=site.backfill_passes,
            max_age_s=site.backfill_age_s,
            wait_margin=WAIT_MARGIN,
        ),
        lanes=site.lanes,
        guards=Guards(gap_target_s=site.gap_target_s, is_on=site.has_guards),
    )
