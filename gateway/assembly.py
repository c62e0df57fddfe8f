"""The composition root: builds every object, owns every background task, starts and stops them in order.

`serve` runs one gateway until a signal. A first SIGTERM or SIGINT drains it in two steps: for the drain delay only
`/ready` changes, so that balancers look away; then whoever waits or comes is refused, and running answers have the drain
timeout to end. A second signal ends it at once.
"""

import asyncio
import logging
import random
import signal
import socket
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import uvloop

from gateway import __version__, logs
from gateway.admission.controller import Controller
from gateway.admission.state_file import StateFile
from gateway.backend_specs import backend_keys, backend_spec, given_name, media_costs
from gateway.backends.backend_spec import BackendSpec
from gateway.backends.counting import ExactCounter
from gateway.backends.probe import Prober
from gateway.backends.ranks import with_ranks
from gateway.backends.roster import Roster
from gateway.backends.view import BackendView
from gateway.books.memory import memory_book
from gateway.clock import Clock, MonotonicClock
from gateway.collector import collect_in_quiet, keep_what_is_here
from gateway.core.commitment import Evidence
from gateway.core.decisions import Mode
from gateway.core.guards import Guards
from gateway.core.lane_table import DEFAULT_LANES
from gateway.core.queue import WAIT_MARGIN, QueueLimits
from gateway.lanes_file import read_lanes
from gateway.metrics import GaugeName, GaugeRow, Metrics
from gateway.open_files import connections_allowed, make_room_for
from gateway.relay.watchdog import Watchdog
from gateway.room_values import choices, door_limits, upstream_to
from gateway.settings import Settings, is_loopback
from gateway.tls import client_context
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.ratio import Ratios
from gateway.web.app import Front
from gateway.web.callers import Callers
from gateway.web.console.feed import Feed
from gateway.web.console.frame import encoded_frame
from gateway.web.console.routes import add_console
from gateway.web.counting import Counting
from gateway.web.door import Door
from gateway.web.engine_readings import EngineReadings
from gateway.web.inference import Inference
from gateway.web.lifecycle import Lifecycle
from gateway.web.operations import admin_app
from gateway.web.recent import Recent
from gateway.web.recount import Recount
from gateway.web.rooms import Rooms
from gateway.web.running import Running
from gateway.web.server import LAST_BYTES_S, Server, listen, url_of
from gateway.web.small_bodies import SmallBodies
from gateway.web.tally import Tally
from gateway.web.upload import BodyRoom

log = logging.getLogger("kvgate")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

_LAG_PERIOD_S: Final = 0.5
_QUIET: Final = 8  # requests and streams under way: looking at all of them is soon done
# The admin port is for a few: dashboards, probes, people.
_ADMIN_CONNECTIONS: Final = 128
_ADMIN_BODIES_BYTES: Final = 4 << 20


def serve(settings: Settings) -> int:
    """Run the gateway until a signal. Returns the process's exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    try:
        data_socket = listen("KVGATE_PORT", settings.host, settings.port)
        admin_socket = None
        if settings.admin_port is not None:
            admin_socket = listen("KVGATE_ADMIN_PORT", settings.admin_host, settings.admin_port)
    except OSError as error:
        log.error(str(error))
        return EXIT_FAILED
    specs = await _first_look(settings)
    return await Gateway(settings, MonotonicClock(), specs).run(data_socket, admin_socket)


async def _first_look(settings: Settings) -> list[BackendSpec]:
    """The backends as they were given, but each of several engines behind one address by itself."""
    prober = Prober(tls=client_context(settings.ca_file))
    try:
        return await with_ranks(_specs(settings), prober)
    finally:
        await prober.close()


def _specs(settings: Settings) -> list[BackendSpec]:
    keys = backend_keys(settings)
    specs: list[BackendSpec] = []
    for address in settings.backends:
        spec, cuts = backend_spec(settings, address, keys)
        for said in cuts:
            log.info("%s: %s", address.name, said)
        specs.append(spec)
    return specs


class Gateway:
    """Every object of one gateway, built in the order in which they need each other."""

    def __init__(self, settings: Settings, clock: Clock, specs: Sequence[BackendSpec] | None = None) -> None:
        """specs: the backends, None for those of the settings."""
        self._settings = settings
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_asked = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._failed = False
        self._lifecycle = Lifecycle(started=clock.now())
        tls = client_context(settings.ca_file)
        if specs is None:
            specs = _specs(settings)
        names = [spec.name for spec in specs]

        self._evidence = evidence = Evidence()
        ratios = Ratios()
        self._state_file = None
        if settings.state_file is not None:
            self._state_file = StateFile(settings.state_file, evidence, clock, beside={"ratios": ratios})
        lanes = DEFAULT_LANES if settings.lanes_file is None else read_lanes(settings.lanes_file)
        book = memory_book(
            mode=Mode(settings.mode),
            commitment=settings.commitment,
            policy=settings.policy,
            limits=QueueLimits(
                max_requests=settings.queue_requests,
                max_passes=settings.backfill_passes,
                max_age_s=settings.backfill_age_s,
                wait_margin=WAIT_MARGIN,
            ),
            lanes=lanes,
            evidence=evidence,
            guards=Guards(gap_target_s=settings.itl_target_s, is_on=settings.guards == "on"),
        )
        self._controller = controller = Controller(book, clock)
        self._roster = roster = Roster(
            specs,
            prober=Prober(tls=tls),
            clock=clock,
            queue_timeout_s=settings.queue_timeout_s,
            on_change=self._backend_changed,
            on_reading=EngineReadings(controller, evidence).read,
            written_blocks=controller.worst_blocks,
        )
        for name in names:
            controller.set_backend(name, budget=None, serving=False, foreign_blocks=0)
        self._counter = counter = _counting(settings, roster, specs)
        self._watchdog = Watchdog(clock)
        self._rooms = Rooms(
            roster=roster,
            counter=counter,
            controller=controller,
            evidence=evidence,
            ratios=ratios,
            media={spec.name: media_costs(settings, given_name(spec)) for spec in specs},
            recount=Recount(counter, controller, ratios),
            upstreams={spec.name: upstream_to(roster.view(spec.name), settings, tls, spec.key, spec.rank) for spec in specs},
            running=Running(),
            watchdog=self._watchdog,
            tally=Tally(),
            metrics=Metrics(__version__, tenant_labels=settings.tenant_labels),
            clock=clock,
            jitter=random.Random(),
            recent=Recent(clock.now),
            callers=Callers(settings.keys_file),
            choices=choices(settings, lanes),
            body_room=BodyRoom(settings.max_bodies_bytes),
        )

        allowed = connections_allowed()  # in any case: it raises the limit
        connections = settings.max_connections or allowed
        make_room_for(connections)
        limits = door_limits(settings, connections=connections)
        narrow = replace(limits, connections=min(connections, _ADMIN_CONNECTIONS))
        self._doors = {
            port: Door(port, limit, self._rooms.metrics, self._rooms.jitter)
            for port, limit in (("data", limits), ("admin", narrow))
        }
        self._rooms.metrics.read_gauges_from(self._gauges_beside_the_books)
        self._feed = Feed(lambda: encoded_frame(self._rooms, self._lifecycle), clock)

    def _gauges_beside_the_books(self) -> Iterator[GaugeRow]:
        for door in self._doors.values():
            yield GaugeRow(GaugeName.CONNECTIONS, (door.port,), door.connections)
        yield GaugeRow(GaugeName.LOG_LINES_DROPPED, (), logs.dropped_lines())

    def _backend_changed(self, view: BackendView) -> None:
        """The roster learned something that admission must know."""
        budget = view.capacity.budget if view.capacity is not None else None
        self._controller.set_backend(
            view.name,
            budget=budget,
            serving=view.serving,
            foreign_blocks=view.foreign_blocks,
            weighed_anew=self._rooms.waiters.weighed_anew(view),
        )
        seats = budget.seats if budget is not None else None
        self._rooms.upstreams[view.name].pool.backend_changed(is_serving=view.serving, seats=seats)
        lanes = [lane.name for lane in self._rooms.choices.lanes.lanes]
        self._rooms.metrics.expect(pools=self._roster.pool_names(), lanes=lanes, models=self._roster.models())
        for conflict in self._roster.conflicts:
            self._fail(f"these settings cannot both be true: {conflict}")

    async def run(self, data_socket: socket.socket, admin_socket: socket.socket | None) -> int:
        """Serve on these sockets until a signal and the drain after it. Returns the exit code."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        # Whoever rotates logs or keys sends it to everything; without a handler it would end the process undrained.
        loop.add_signal_handler(signal.SIGHUP, self._reread_files)
        inference = Inference(self._rooms)
        front = Front(self._rooms, self._lifecycle, inference)
        servers = [(Server(front, self._doors["data"], inference=inference), data_socket)]
        if admin_socket is not None:
            token = settings.admin_token.get_secret_value() if settings.admin_token is not None else None
            app = admin_app(self._rooms, self._lifecycle, token=token, is_open=not is_loopback(settings.admin_host))
            add_console(app, self._feed)
            bounded = SmallBodies(
                app, room=BodyRoom(_ADMIN_BODIES_BYTES), timeout_s=settings.upload_timeout_s, jitter=self._rooms.jitter
            )
            servers.append((Server(bounded, self._doors["admin"]), admin_socket))
        try:
            await self._counter.start()
        except ValueError as error:
            log.error("KVGATE_TOKENIZER: %s", error)
            await self._counter.stop()
            return EXIT_FAILED
        for name, costs in self._rooms.media.items():
            if said := str(costs):
                log.info("%s: %s", name, said)
        if self._state_file is not None:
            self._state_file.read()
            self._own(self._state_file.run(), "state file")
        await self._roster.start()
        self._own(self._controller.pump(), "pump")
        self._own(self._watchdog.run(), "watchdog")
        self._own(self._measure_lag(), "loop lag")
        self._own(collect_in_quiet(self._clock, is_quiet=lambda: len(self._rooms.running) <= _QUIET), "collector")
        serving = [asyncio.create_task(server.serve(sockets=[sock]), name="server") for server, sock in servers]
        for server_task in serving:
            server_task.add_done_callback(self._ended_early)
        addresses = {"url": url_of(data_socket)}
        if admin_socket is not None:
            addresses["admin_url"] = url_of(admin_socket)
        keep_what_is_here()
        log.info("listening", extra={"fields": addresses})
        try:
            await self._stop_asked.wait()
            was_whole = await self._drain() and not self._failed
        finally:
            self._feed.close()
            for server, _ in servers:
                server.should_exit = True
            await asyncio.wait(serving, timeout=LAST_BYTES_S + 1)
            await self._stop()
        log.info("stopped", extra={"fields": {"received": self._rooms.tally.counts().received}})
        return EXIT_OK if was_whole else EXIT_FAILED

    def _reread_files(self) -> None:
        """Beside the event loop; the default executor bounds how many readings there are, and each says what came of it."""
        asyncio.get_running_loop().run_in_executor(None, self._rooms.callers.reread)

    def _signalled(self) -> None:
        (self._stop_now if self._stop_asked.is_set() else self._stop_asked).set()

    async def _drain(self) -> bool:
        """The two steps after the first signal. False if a second signal cut it short."""
        settings, rooms = self._settings, self._rooms
        self._lifecycle.is_stopping = True
        log.info(
            "draining",
            extra={"fields": {"delay_s": settings.drain_delay_s, "timeout_s": settings.drain_timeout_s}},
        )
        if await _within(settings.drain_delay_s, self._stop_now.wait()):
            rooms.running.cut_all()
            return False
        self._controller.drain()
        ended = asyncio.create_task(self._all_ended(), name="drained")
        stopped = asyncio.create_task(self._stop_now.wait(), name="second signal")
        await asyncio.wait({ended, stopped}, timeout=settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = stopped.done()
        if not ended.done():
            log.info("cutting what still runs", extra={"fields": {"requests": max(rooms.tally.unfinished, len(rooms.running))}})
            rooms.running.cut_all()
            await asyncio.wait({ended}, timeout=LAST_BYTES_S)
        for task in (ended, stopped):
            task.cancel()
        return not was_stopped

    async def _all_ended(self) -> None:
        """Return once no request is on its way, and no uncounted call either."""
        tally, running = self._rooms.tally, self._rooms.running
        while tally.unfinished or len(running):
            await tally.wait_until_idle()
            await running.wait_until_idle()

    async def _stop(self) -> None:
        await self._rooms.recount.stop()
        await self._counter.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._state_file is not None:
            self._state_file.write()
        await self._roster.stop()
        for upstream in self._rooms.upstreams.values():
            upstream.pool.close()
        self._rooms.big_bodies.close()

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended_early)
        self._tasks.append(task)

    def _ended_early(self, task: asyncio.Task[None]) -> None:
        """A background task that ends by itself is a bug, and without it the gateway would lie: stop."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s failed", task.get_name(), exc_info=error)
            self._fail(f"the gateway stops: {task.get_name()} failed")

    def _fail(self, why: str) -> None:
        """End the gateway, now: it cannot do what it promises."""
        if not self._failed:
            self._failed = True
            log.error(why)
            self._stop_asked.set()
            self._stop_now.set()

    async def _measure_lag(self) -> None:
        while True:
            due = self._clock.now() + _LAG_PERIOD_S
            await self._clock.sleep_until(due)
            self._rooms.metrics.loop_lag(max(self._clock.now() - due, 0.0))


async def _within(limit_s: float, wait: Coroutine[Any, Any, Any]) -> bool:
    """Whether what is waited for happened within the limit."""
    try:
        async with asyncio.timeout(limit_s):
            await wait
    except TimeoutError:
        return False
    return True


def _counting(settings: Settings, roster: Roster, specs: Sequence[BackendSpec]) -> Counting:
    paths = {spec.name: path for spec in specs if (path := settings.tokenizer.of(given_name(spec))) is not None}
    tokenizers = {path: LocalTokenizer(path) for path in paths.values()}
    return Counting(roster, ExactCounter(roster), {name: tokenizers[path] for name, path in paths.items()})
