"""The storm: lives of a gateway under load, in bad weather, each ended by a drain; and what must be true in between.

One life: clients work through the plans, first in full load until enough were begun; then everything comes to rest and
must be as at the start; then there is load again, in the midst of which the gateway is told to end. What is wrong is
collected as sentences in `Report.findings`; a storm stops at the first few.
"""

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest import mock

import uvloop

from chaos.client import Client, Seen
from chaos.engine import Engine
from chaos.gateways import InProcess, Subprocess, UnderFire, open_files
from chaos.judge import Judge
from chaos.plan import MAX_BODY_BYTES, Plan, plan
from chaos.report import Report, Storm, is_true
from gateway.backends import occupancy, watch
from support.book_watch import BookWatch, State
from support.http_client import Broken, ask

RESERVE = 0.1

SETTINGS: Mapping[str, str] = {
    "KVGATE_ADMIN_PORT": "0",
    "KVGATE_PORT": "0",
    # The account that is kept beside the book knows the rules of strict; the forecast has machines of its own.
    "KVGATE_COMMITMENT": "strict",
    "KVGATE_GUARDS": "off",
    "KVGATE_RESERVE": f"{RESERVE:.0%}",
    "KVGATE_QUEUE_REQUESTS": "120",
    "KVGATE_QUEUE_TIMEOUT": "1s",
    "KVGATE_BACKFILL_PASSES": "8",
    "KVGATE_CONNECT_TIMEOUT": "0.4s",
    "KVGATE_HEADER_TIMEOUT": "0.8s",
    "KVGATE_UPLOAD_TIMEOUT": "0.6s",
    "KVGATE_FIRST_TOKEN_TIMEOUT": "0.8s",
    "KVGATE_STALL_TIMEOUT": "0.5s",
    "KVGATE_SEND_TIMEOUT": "0.5s",
    "KVGATE_TOTAL_TIMEOUT": "4s",
    "KVGATE_MAX_BODY": str(MAX_BODY_BYTES),
    "KVGATE_DRAIN_TIMEOUT": "0.4s",
    "KVGATE_LOG_LEVEL": "info",
}


def weather(storm: Storm, *, black_box: bool = False, checked: bool = True) -> Report:
    """The report of a storm on an event loop of its own; it is printed, so that a failed test shows it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(run_storm(storm, black_box=black_box, checked=checked))
    print(report)
    return report


async def run_storm(storm: Storm, *, black_box: bool = False, checked: bool = True) -> Report:
    """Runs it to its end, or to the first few findings."""
    report = Report(storm)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: report.find(f"the loop says: {context}"))
    try:
        if black_box:
            process = Subprocess(SETTINGS, report.find)
            try:
                await _Run(storm, report, process, settle_s=0.3).run()
            finally:
                await process.kill()
        else:
            gateway = InProcess(SETTINGS, report.find, checked=checked)
            # Only how often it looks, not what it makes of what it sees: a storm is seconds long.
            with mock.patch.object(watch, "PERIOD_S", 0.2), mock.patch.object(occupancy, "FOREIGN_AFTER_S", 0.3):
                await _Run(storm, report, gateway, settle_s=0.0).run()
            report.book_calls, report.waited = gateway.calls, gateway.waited
    finally:
        loop.set_exception_handler(None)
    return report


class _Run:
    def __init__(self, storm: Storm, report: Report, gateway: UnderFire, *, settle_s: float) -> None:
        """settle_s: how long a closed connection may take to be seen as such; 0: a few turns of this loop."""
        self._storm = storm
        self._report = report
        self._gateway = gateway
        self._settle_s = settle_s
        self._plans: dict[int, Plan] = {}
        self._next = 0
        self._files: int | None = None
        self._goal = 0
        self._seen: dict[str, Seen] = {}
        self._outcomes: dict[str, tuple[str, int | None]] = {}
        self._engines = [self._engine("a"), self._engine("b"), self._engine("c", is_llama=True, blocks=1_100, slots=8)]
        self._weather_dice = random.Random(f"weather {storm.seed}")

    def _engine(self, name: str, **changes: Any) -> Engine:
        judge = Judge(name, RESERVE, self._report.find, self._settle)
        return Engine(name, judge, self._plan, **changes)

    async def _settle(self) -> None:
        if self._settle_s:
            await asyncio.sleep(self._settle_s)
        else:
            for _ in range(4):
                await asyncio.sleep(0)

    def _plan(self, number: int) -> Plan:
        """The plans that are on their way are kept, so that the engine need not work them out anew."""
        found = self._plans.get(number)
        if found is not None:
            return found
        return plan(self._storm.seed, number, fault_part=self._storm.faults, slowness=self._storm.slowness)

    async def run(self) -> None:
        report, storm = self._report, self._storm
        for engine in self._engines:
            await engine.start()
        try:
            while self._next < storm.requests and not report.is_enough:
                await self._live(min(storm.life_requests, storm.requests - self._next))
        finally:
            for engine in self._engines:
                await engine.stop()
                report.judged += engine.judge.judged
                report.most_open = max(report.most_open, engine.judge.most_open)

    async def _live(self, requests: int) -> None:
        """One life of the gateway."""
        report = self._report
        report.lives += 1
        await self._gateway.start(",".join(f"{engine.name}={engine.url}" for engine in self._engines))
        await self._ready()
        snapshots = BookWatch(self._gateway.admin_url)
        snapshots.start()
        first = requests * 4 // 5
        await self._load(first)
        await self._rest(first)
        await self._load(requests - first, drain_at=self._next + (requests - first) // 2)
        await snapshots.stop()
        for fault in snapshots.faults[:3]:
            report.find(f"a snapshot of the state: {fault}")
        self._compare()
        await self._check_files()

    async def _check_files(self) -> None:
        """After each life as many files are open as after the first: what a loop opens once and keeps was opened by then."""
        for _ in range(100):
            gc.collect(0)
            left = open_files()
            if self._files is None and not any(engine.connections for engine in self._engines):
                self._files = left
            if self._files is not None and left <= self._files:
                return
            await asyncio.sleep(0.02)
        self._report.find(f"leak: {left} files are open after a life, {self._files} were after the first")

    async def _ready(self) -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    state = await self._state()
                    if all(backend["budget_blocks"] for backend in state.backends):
                        return
                except (OSError, Broken):
                    pass
                await asyncio.sleep(0.02)

    async def _state(self) -> State:
        for patience in range(5, -1, -1):
            try:
                return State((await ask(self._gateway.admin_url, "GET", "/kvgate/state")).json())
            except (OSError, Broken):  # this very process was busy for so long that the question came too late
                if not patience:
                    raise
        raise AssertionError("not reached")

    # Load

    async def _load(self, requests: int, *, drain_at: int | None = None) -> None:
        """Begin so many requests and wait for their ends. drain_at: the number with which the gateway is told to end."""
        self._goal = self._next + requests
        clients = [
            asyncio.create_task(self._client(), name=f"client {number}") for number in range(min(self._storm.clients, requests))
        ]
        weather = asyncio.create_task(self._weather(), name="client of the weather")
        if drain_at is not None:
            while self._next < drain_at and not self._report.is_enough:
                await asyncio.sleep(0.005)
            before = await self._state()
            await self._gateway.drain()
            self._take_outcomes(before)
        await asyncio.gather(*clients)
        weather.cancel()
        await asyncio.gather(weather, return_exceptions=True)
        await self._clear_up()

    async def _client(self) -> None:
        report = self._report
        client = Client(report.find)
        try:
            while self._next < self._goal and not report.is_enough:
                number, self._next = self._next, self._next + 1
                chosen = self._plans[number] = self._plan(number)
                report.begun += 1
                report.faulty += chosen.is_faulty
                report.manners[chosen.manner] += 1
                seen = await client.run(chosen, self._gateway.port)
                del self._plans[number]
                report.unanswered += seen.is_refused
                for fault in seen.faults():
                    report.find(fault)
                if seen.request_id is not None:
                    if seen.request_id in self._seen:
                        report.find(f"two answers carry the request id {seen.request_id}")
                    self._seen[seen.request_id] = seen
                if not self._gateway.is_up:
                    await asyncio.sleep(0.001)
        finally:
            client.close()

    # Weather

    async def _weather(self) -> None:
        """An event each time that so many requests were begun, and its end a little later."""
        due = self._next + self._storm.weather_every
        while True:
            if self._next < due:
                await asyncio.sleep(0.005)
                continue
            due += self._storm.weather_every
            engine = self._weather_dice.choice(self._engines)
            event = self._weather_dice.choice(EVENTS)
            self._report.weather[event] += 1
            await self._happen(event, engine)

    async def _happen(self, event: str, engine: Engine) -> None:
        dice = self._weather_dice
        lasting_s = dice.choice((0.05, 0.15, 0.4))
        try:
            match event:
                case "restart":
                    engine.refuse()
                    engine.cut_all(reset=dice.random() < 0.5)
                    await asyncio.sleep(lasting_s)
                    engine.blocks = dice.choice((700, 1_100, 2_000) if engine.is_llama else (60, 90, 140, 220))
                    engine.context = dice.choice((512, 512, 256, 1024))
                    await engine.start()
                case "refuse":
                    engine.refuse()
                    await asyncio.sleep(lasting_s)
                case "deaf":
                    engine.go_deaf()
                    await asyncio.sleep(lasting_s)
                case "drop":
                    engine.cut_all(reset=dice.random() < 0.5)
                case "probes":
                    engine.probes = dice.choice(("failing", "garbage", "silent"))
                    await asyncio.sleep(lasting_s)
                case "strangers":
                    engine.foreign_blocks = engine.blocks // 3
                    await asyncio.sleep(2 * lasting_s)
                case _:
                    raise ValueError(event)
        finally:
            self._calm(engine)
        if event in ("refuse", "deaf"):
            await engine.listen()

    def _calm(self, engine: Engine) -> None:
        engine.probes = "good"
        engine.foreign_blocks = 0

    async def _clear_up(self) -> None:
        """Whatever the weather was in the midst of, it is over."""
        for engine in self._engines:
            self._calm(engine)
            if not engine.is_listening:
                await engine.listen()

    # Looking

    async def _rest(self, requests: int) -> None:
        """Everything has ended: nothing may be left of it."""
        report = self._report
        for _ in range(400):
            state = await self._state()
            if state.is_idle or report.is_enough:
                break
            await asyncio.sleep(0.025)
        else:
            left = (
                f"{state.held_blocks} blocks held, {state.in_flight} in flight, {state.queued} queued, {state.reading} reading"
            )
            report.find(f"leak: 10 s after the last client there are {left}")
        for _ in range(200):
            if not any(engine.judge.open for engine in self._engines):
                break
            await asyncio.sleep(0.01)
        else:
            report.find(f"leak: the engines still work on {[engine.judge.open for engine in self._engines]} requests")
        if state.received > requests:
            report.find(f"{state.received} were received, and {requests} were sent")
        await asyncio.sleep(0.05)
        self._gateway.check_idle()

    def _take_outcomes(self, before: State) -> None:
        """A life has ended: every request has one outcome, and what was counted is what was logged."""
        report = self._report
        outcomes = dict(self._gateway.take_outcomes())
        logged = Counter(outcome for outcome, _ in outcomes.values())
        report.received += len(outcomes)
        report.outcomes += logged
        for outcome, count in before.outcomes.items():
            if logged[outcome] < count:
                report.find(f"{count} were counted as {outcome}, and {logged[outcome]} lines say so")
        if len(outcomes) < before.received:
            report.find(f"{before.received} were received before the drain, and {len(outcomes)} have ended")
        self._outcomes = outcomes

    def _compare(self) -> None:
        """What clients saw beside what the gateway says of the same requests."""
        report = self._report
        for request_id, seen in self._seen.items():
            found = self._outcomes.get(request_id)
            if found is None:
                report.find(f"no line tells of request {request_id} (plan {seen.plan.number}), which was answered")
                continue
            report.compared += 1
            outcome, _ = found
            if not seen.has_left and not is_true(outcome, seen):
                report.find(
                    f"plan {seen.plan.number} ({seen.plan.kind}, {seen.plan.act}, {seen.plan.manner}) counts as {outcome}, and"
                    f" its client saw status {seen.status}, tidy {seen.is_tidy}, code {seen.code}"
                )
        if gateway_errors := report.outcomes["gateway_error"]:
            report.find(f"{gateway_errors} requests failed inside the gateway")
        self._seen, self._outcomes = {}, {}


EVENTS = ("restart", "restart", "restart", "refuse", "deaf", "drop", "drop", "probes", "probes", "strangers")
