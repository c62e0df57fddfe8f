"""All rooms of a gateway in this process: real ones, before scripted engines, on a clock that stands still.

    async with open_rooms({"a": engine}) as rooms:
        ... weigh(rooms, ...), serve_request(rooms, ...)

The engines have been looked at once and are not watched: `look(rooms)` looks again.
"""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from gateway.admission.controller import Controller
from gateway.backends.backend_spec import BackendSpec
from gateway.backends.capacity import GivenCapacity
from gateway.backends.counting import ExactCounter
from gateway.backends.probe import Prober
from gateway.backends.roster import Roster
from gateway.backends.view import BackendView
from gateway.books import memory_book
from gateway.core.decisions import Mode
from gateway.core.names import BackendName
from gateway.core.offer import DefaultOutput, Overlong
from gateway.core.queue import QueueLimits
from gateway.core.reserve import Reserve
from gateway.metrics import Metrics
from gateway.relay.upstream_pool import UpstreamPool
from gateway.relay.watchdog import Clocks, Watchdog
from gateway.tokens.ratio import Ratios
from gateway.web.big_bodies import BigBodies
from gateway.web.choices import Choices
from gateway.web.counting import Counting
from gateway.web.recent import Recent
from gateway.web.recount import Recount
from gateway.web.rooms import Rooms
from gateway.web.running import Running
from gateway.web.tally import Tally
from gateway.web.upstream import Upstream
from gateway.web.waiters import Waiters
from support.manual_clock import ManualClock
from support.scripted_engine import NO_TLS, ScriptedEngine

CHOICES = Choices(
    mode=Mode.ENFORCE,
    default_output=DefaultOutput(),
    overlong=Overlong.PASS,
    ask_usage=None,
    max_body_bytes=1 << 20,
    upload_timeout_s=30.0,
    queue_timeout_s=60.0,
    clocks=Clocks(first_token_s=30.0, stall_s=30.0, total_s=60.0, send_s=30.0),
    pass_through=frozenset(),
)
NO_RESERVE = GivenCapacity(reserve=Reserve.parse("0"))


@asynccontextmanager
async def open_rooms(
    engines: Mapping[str, ScriptedEngine], *, given: GivenCapacity = NO_RESERVE, max_requests: int = 1024, **choices: Any
) -> AsyncIterator[Rooms]:
    """choices: what differs from CHOICES."""
    clock = ManualClock()
    chosen = replace(CHOICES, **choices)
    limits = QueueLimits(max_requests=max_requests, max_passes=16)
    controller = Controller(memory_book(mode=chosen.mode, commitment="strict", policy="fifo", limits=limits), clock)

    waiters = Waiters()

    def tell(view: BackendView) -> None:
        budget = view.capacity.budget if view.capacity is not None else None
        controller.set_backend(
            view.name,
            budget=budget,
            serving=view.serving,
            foreign_blocks=view.foreign_blocks,
            weighed_anew=waiters.weighed_anew(view),
        )

    roster = Roster(
        [BackendSpec(BackendName(name), engine.url, given=given) for name, engine in engines.items()],
        prober=Prober(tls=NO_TLS, limit_s=2.0),
        clock=clock,
        queue_timeout_s=chosen.queue_timeout_s,
        on_change=tell,
        written_blocks=controller.worst_blocks,
    )
    counter = Counting(roster, ExactCounter(roster))
    ratios = Ratios()
    rooms = Rooms(
        roster=roster,
        counter=counter,
        controller=controller,
        ratios=ratios,
        recount=Recount(counter, controller, ratios),
        upstreams={BackendName(name): _upstream(name, engine) for name, engine in engines.items()},
        running=Running(),
        watchdog=Watchdog(clock),
        tally=Tally(),
        metrics=Metrics("test"),
        clock=clock,
        jitter=random.Random(1),
        choices=chosen,
        recent=Recent(clock.now),
        big_bodies=BigBodies(),
        waiters=waiters,
    )
    try:
        await roster.look()
        yield rooms
    finally:
        await rooms.recount.stop()
        rooms.big_bodies.close()
        await roster.stop()
        for upstream in rooms.upstreams.values():
            upstream.pool.close()


def _upstream(name: str, engine: ScriptedEngine) -> Upstream:
    parts = urlsplit(engine.url)
    assert parts.hostname is not None
    assert parts.port is not None
    pool = UpstreamPool(parts.hostname, parts.port, backend=BackendName(name))
    return Upstream(pool, host=parts.netloc.encode(), base_path=b"", bearer=None)


def clock_of(rooms: Rooms) -> ManualClock:
    assert isinstance(rooms.clock, ManualClock)
    return rooms.clock


def held_blocks(rooms: Rooms) -> int:
    """Blocks held on all backends."""
    return sum(backend.charged_blocks for backend in rooms.controller.snapshot().backends.values())
