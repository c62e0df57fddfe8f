"""Watch: one backend, from the first unanswered question to its last reading. Asks, concludes, and tells when it changed.

It promises:
* what it says once it says once: a backend that is waited for is one line, not one every two seconds;
* a refusal to answer without a key is never "unhealthy";
* after any silence, and whenever the engine started anew or shows another cache, everything is asked again;
* a round of questions raises nothing: whatever an engine answers ends in the view.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.balancer import BalancerSigns
from gateway.backends.capacity import Capacity, Formula, NoCapacity, work_out
from gateway.backends.engines import AUTO, ENGINES, UNKNOWN_ENGINE, Engine, EngineReport, LiveUse, identify
from gateway.backends.health import Health
from gateway.backends.occupancy import Foreign, SeatLimit
from gateway.backends.probe import NeedsKey, Probe, RememberingProbe
from gateway.backends.view import BackendView
from gateway.clock import Clock
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.reserve import Reserve

PERIOD_S: Final = 2.0
REDISCOVER_S: Final = 30.0
REDISCOVER_UNKNOWN_S: Final = 10.0
_MOST_ENGINES: Final = 16
SEVERAL_ENGINES: Final = (
    "several engines answer behind its address (their start times or counters come in turn): planned with the smallest budget"
    " seen, strictly; list each engine as a backend of its own"
)
NEEDS_KEY: Final = "needs a key: set KVGATE_BACKEND_KEY"
NEEDS_ANOTHER_KEY: Final = "does not take the key in KVGATE_BACKEND_KEY"

log = logging.getLogger("kvgate.backends")


class Watch:
    """What is known of one backend now."""

    def __init__(
        self,
        spec: BackendSpec,
        probe: Probe,
        *,
        clock: Clock,
        queue_timeout_s: float,
        written_blocks: Callable[[], int],
        changed: Callable[[BackendView], None],
        seen: Callable[[], None] = lambda: None,
        read: Callable[[BackendView], None] = lambda view: None,
    ) -> None:
        """written_blocks: the most blocks that requests of ours can have written there by now.

        seen: told that the view is another. changed: told each view in which something is new that admission must know. read:
        told the view after each round of questions that was answered.
        """
        self.spec = spec
        self.probe = probe
        self.engine: Engine = ENGINES["static"]
        self.generation = 0  # of the engine behind the address: another one, or the same after an outage, is a new one
        self.conflict: str | None = None
        self._clock = clock
        self._queue_timeout_s = queue_timeout_s
        self._written_blocks = written_blocks
        self._changed = changed
        self._seen = seen
        self._read = read
        self._health = Health(now=clock.now())
        self._given = spec.given
        self._report: EngineReport | None = None
        self._signs = BalancerSigns()
        self._several: dict[Hashable, EngineReport] | None = None  # by identity, once there is more than one
        self._asked_at = float("-inf")
        self._capacity: Capacity | None = None
        self._had_capacity = False
        self._use = LiveUse()
        self._foreign = Foreign()
        self._foreign_blocks = 0
        self._seat_limit = SeatLimit()
        self._distrust: str | None = None
        self._trouble = "not asked yet"
        self._said: set[str] = set()
        self._said_unhealthy = False
        self._asking = asyncio.Lock()
        self.view = self._make_view()

    def __repr__(self) -> str:
        return str(self.view)

    @property
    def report(self) -> EngineReport | None:
        """What the engine said of itself when it was last asked everything."""
        return self._report

    async def run(self) -> None:
        """Ask, wait for the rest of the period, ask again; until cancelled."""
        while True:
            started = self._clock.now()
            await self.look()
            await self._clock.sleep_until(started + PERIOD_S)

    async def look(self, *, anew: bool = False) -> None:
        """One round of questions. anew: everything again, the list of models among it."""
        async with self._asking:
            started = self._clock.now()
            was_healthy = self._health.healthy
            if anew:
                self._asked_at = float("-inf")
            try:
                await self._ask()
                self._health.answered(now=self._clock.now())
            except NeedsKey:
                self._health.answered(now=self._clock.now())
                self._lacks_key()
            except UpstreamFailed as error:
                self._failed(error, started)
            except Exception:  # a bug of ours in reading an answer must not end the watch over the backend
                log.exception("%s: its answer could not be read", self.spec.name)
                self._asked_at = float("-inf")
                self._trouble = "its answer could not be read"
                self._health.probe_failed(started=started, now=self._clock.now())
            self._tell_health(was_healthy)
            self._update()
            if self._health.healthy and self._report is not None:
                self._read(self.view)

    def alive(self) -> None:
        """Bytes came from it."""
        was_healthy = self._health.healthy
        self._health.alive(now=self._clock.now())
        if not was_healthy:
            self._tell_health(was_healthy)
            self._update()

    def connect_refused(self) -> None:
        """A request's connection was refused."""
        was_healthy = self._health.healthy
        self._health.connect_refused(now=self._clock.now())
        self._asked_at = float("-inf")
        if was_healthy and not self._health.healthy:
            self._trouble = "connection refused"
            self._tell_health(was_healthy)
            self._update()

    def check_reserve(self, reserve: Reserve) -> None:
        """Raises ValueError with one sentence where `reserve` would leave no capacity."""
        if self._report is None or self._capacity is None:
            return
        outcome = work_out(self._report, replace(self._given, reserve=reserve), distrust=self._distrust)
        if isinstance(outcome, NoCapacity):
            raise ValueError(f"{self.spec.name}: {outcome.message}")

    def set_reserve(self, reserve: Reserve) -> None:
        """Plan with another reserve from now on."""
        self._given = replace(self._given, reserve=reserve)
        self._conclude()
        self._update()

    async def _ask(self) -> None:
        if self._report is None or self._clock.now() >= self._asked_at + self._rediscover_s():
            await self._discover()
            return
        use = await self.engine.read_live(self.probe, self._report)
        if self._several is None and self._signs.read(use.identity, use.preemptions):
            self._several = {}
        if self._several is not None:
            await self._ask_one_of_several(use)
        elif self._is_another(use):
            log.info("%s: the engine started anew or has another cache: everything is asked again", self.spec.name)
            await self._discover()
        else:
            self._take_use(use)

    async def _ask_one_of_several(self, use: LiveUse) -> None:
        """Behind a balancer no answer is news; an engine that was not met yet is asked for its budget."""
        assert self._several is not None
        self._distrust = None
        if use.identity not in self._several and len(self._several) < _MOST_ENGINES:
            await self._discover()
        else:
            self._take_use(use)

    def _rediscover_s(self) -> float:
        return REDISCOVER_UNKNOWN_S if self._capacity is None else REDISCOVER_S

    def _is_another(self, use: LiveUse) -> bool:
        """Whether this is another engine than the one that reported: another identity, or a counter that ran backwards."""
        known = self._report.identity if self._report is not None else None
        before, after = self._use.preemptions, use.preemptions
        return use.identity != known or (before is not None and after is not None and after < before)

    async def _discover(self) -> None:
        probe = RememberingProbe(self.probe)
        engine, report = await identify(probe, self.spec.engine, self.engine)
        use = await engine.read_live(probe, report)
        before = self._report
        if self._several is not None:
            self._several[report.identity] = report
            smallest = min(self._several.values(), key=lambda one: one.usable_blocks or 0)
            report = replace(smallest, warnings=(*smallest.warnings, SEVERAL_ENGINES))
        elif before is None or not self._health.healthy or (before.engine, before.identity) != (report.engine, report.identity):
            self._start_anew()
        self.engine = engine
        self._report = report
        self._asked_at = self._clock.now()
        self._conclude()
        self._take_use(use)

    def _start_anew(self) -> None:
        """Forget what was concluded from watching an engine that is there no more."""
        self.generation += 1
        self._use = LiveUse()
        self._foreign.forget()
        self._foreign_blocks = 0
        self._seat_limit = SeatLimit()
        self._distrust = None
        self._said.clear()

    def _take_use(self, use: LiveUse) -> None:
        """Draw the conclusions from one reading of the gauges."""
        if self._several is not None:  # they are one engine's, nobody knows whose
            use = LiveUse(identity=use.identity)
        before, self._use = self._use, use
        if before.preemptions is not None and use.preemptions is not None and use.preemptions > before.preemptions:
            self._doubt_formula("it preempted, although what was granted should have fitted")
        if use.used_blocks is not None:
            now = self._clock.now()
            self._foreign_blocks = self._foreign.read(use.used_blocks, self._written_blocks(), now=now)
            if self._foreign_blocks:
                self._doubt_formula("it uses more blocks than our requests can have written")
        if use.running is not None and use.waiting is not None:
            seats = self._seat_limit.seats
            if self._seat_limit.read(running=use.running, waiting=use.waiting, has_room=self._has_room(use)) != seats:
                self._conclude()

    def _has_room(self, use: LiveUse) -> bool:
        """Whether one whole context would fit what the engine has free: who waits then does not wait for blocks."""
        if self._capacity is None or use.used_blocks is None or self._report is None or self._report.usable_blocks is None:
            return False
        weighing = self._capacity.weighing
        if weighing.max_context is None:
            return False
        return self._report.usable_blocks - use.used_blocks >= weighing.sequence_blocks(weighing.max_context)

    def _doubt_formula(self, why: str) -> None:
        if self._distrust is None and self._capacity is not None and self._capacity.formula is Formula.ASSUMED:
            self._distrust = why
            self._conclude()

    def _conclude(self) -> None:
        """Work the capacity out from what is known, and say what is new about it."""
        if self._report is None:
            return
        outcome = work_out(self._report, self._given, distrust=self._distrust)
        before = self._capacity
        if isinstance(outcome, NoCapacity):
            self._capacity = None
            self._trouble = outcome.message
            # Later an engine that came back smaller is an outage of that backend, not a wrong start.
            self.conflict = outcome.message if outcome.conflict and not self._had_capacity else None
            if self.conflict is None:  # a wrong start is said once, by whoever ends it
                self._say_once(logging.WARNING, outcome.message)
            return
        self.conflict = None
        self._trouble = ""
        self._capacity = self._with_seats(outcome)
        self._had_capacity = True
        if before is None or before.budget != self._capacity.budget or before.weighing != self._capacity.weighing:
            log.info("%s: %s", self.spec.name, _describe(self._report, self._capacity))
        for sentence in self._capacity.assumptions:
            self._say_once(logging.INFO, f"assumed: {sentence}")
        for sentence in self._capacity.warnings:
            self._say_once(logging.WARNING, sentence)

    def _with_seats(self, capacity: Capacity) -> Capacity:
        seats = self._seat_limit.seats
        if seats is None or capacity.budget.seats is not None:
            return capacity
        sentence = (
            f"requests wait in the engine although it has room, so it is taken to run {seats} at once: KVGATE_SEATS sets it"
        )
        return replace(
            capacity,
            budget=replace(capacity.budget, seats=seats),
            assumptions=(*capacity.assumptions, sentence),
        )

    def _lacks_key(self) -> None:
        """It is there and does not talk to us. What the operator gave may still be enough to serve with."""
        self._asked_at = float("-inf")
        if self._report is None:
            named = self.spec.engine if self.spec.engine != AUTO else UNKNOWN_ENGINE
            outcome = work_out(EngineReport(named), self._given)
            self._capacity = outcome if isinstance(outcome, Capacity) else None
        self._trouble = NEEDS_KEY if self.spec.key is None else NEEDS_ANOTHER_KEY
        self._say_once(logging.WARNING, self._trouble)

    def _failed(self, error: UpstreamFailed, started: float) -> None:
        now = self._clock.now()
        self._asked_at = float("-inf")
        if error.stage is UpstreamStage.CONNECT:
            self._health.connect_refused(now=now)
        self._health.probe_failed(started=started, now=now)
        if not self._health.healthy:
            self._trouble = error.detail
            if self.generation == 0:
                self._say_once(logging.WARNING, f"waits for it at {self.spec.url}: {error.detail}")

    def _tell_health(self, was_healthy: bool) -> None:
        """One line when it goes and one when it comes back."""
        if was_healthy and not self._health.healthy:
            log.warning("%s: unhealthy, no new requests go there: %s", self.spec.name, self._trouble)
            self._said_unhealthy = True
        elif self._health.healthy and self._said_unhealthy:
            log.info("%s: answers again", self.spec.name)
            self._said_unhealthy = False

    def _say_once(self, level: int, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.log(level, "%s: %s", self.spec.name, sentence)

    def _update(self) -> None:
        before, self.view = self.view, self._make_view()
        self._seen()
        if _admission_part(before) != _admission_part(self.view):
            self._changed(self.view)

    def _make_view(self) -> BackendView:
        healthy = self._health.healthy
        report = self._report or EngineReport(UNKNOWN_ENGINE)
        lapsed = not healthy and self._clock.now() >= self._health.since + self._queue_timeout_s
        capacity = None if lapsed else self._capacity
        rules = report.rules if self._capacity is None else self._capacity.rules
        return BackendView(
            name=self.spec.name,
            url=self.spec.url,
            engine=report.engine,
            engine_version=report.version,
            models=tuple(report.models),
            healthy=healthy,
            serving=healthy and capacity is not None,
            capacity=capacity,
            rules=rules,
            used_blocks=self._use.used_blocks if healthy else None,
            foreign_blocks=self._foreign_blocks if healthy else 0,
            preemptions=self._use.preemptions,
            running=self._use.running if healthy else None,
            waiting=self._use.waiting if healthy else None,
            state_text=self._state_text(healthy, capacity),
            answer_lengths=report.answer_lengths,
        )

    def _state_text(self, healthy: bool, capacity: Capacity | None) -> str:
        if not healthy:
            return f"{'unhealthy' if self.generation else 'waits for it'}: {self._trouble}"
        if capacity is None or self._report is None or self._trouble:
            return self._trouble
        return _describe(self._report, capacity)


def _describe(report: EngineReport, capacity: Capacity) -> str:
    """One line: what it is and what is planned with."""
    budget, weighing = capacity.budget, capacity.weighing
    context = "unknown" if weighing.max_context is None else str(weighing.max_context)
    seats = "" if budget.seats is None else f", {budget.seats} seats"
    version = f" {report.version}" if report.version else ""
    others = [f"{source} {blocks}" for source, blocks in capacity.budgets.items() if source != capacity.source]
    beside = f"; {', '.join(others)}" if others else ""
    return (
        f"{report.engine}{version}: {budget.blocks} blocks of {weighing.block_tokens} tokens ({capacity.source}{beside}),"
        f" {budget.reserve_blocks} in reserve{seats}, context {context}"
    )


def _admission_part(view: BackendView) -> tuple[object, ...]:
    return (
        view.capacity,
        view.serving,
        view.foreign_blocks,
        view.models,
        view.rules,
        view.state_text if not view.serving else "",
    )
