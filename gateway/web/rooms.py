"""Rooms: what a request needs on its way, built once by the assembly and passed by value."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.admission.controller import Controller
from gateway.backends.roster import Roster
from gateway.clock import Clock
from gateway.core.commitment import Evidence
from gateway.core.names import BackendName
from gateway.metrics import Metrics
from gateway.relay.watchdog import Watchdog
from gateway.tokens.media import MediaCosts
from gateway.tokens.ratio import Ratios
from gateway.web.big_bodies import BigBodies
from gateway.web.callers import Callers
from gateway.web.choices import Choices
from gateway.web.counting import Counting
from gateway.web.recount import Recount
from gateway.web.returning import Returning
from gateway.web.running import Running
from gateway.web.tally import Tally
from gateway.web.upload import BodyRoom
from gateway.web.upstream import Upstream
from gateway.web.waiters import Waiters


@dataclass(frozen=True, slots=True)
class Rooms:
    roster: Roster
    counter: Counting
    controller: Controller
    recount: Recount
    upstreams: Mapping[BackendName, Upstream]
    running: Running
    watchdog: Watchdog
    tally: Tally
    metrics: Metrics
    clock: Clock
    jitter: random.Random
    choices: Choices
    big_bodies: BigBodies = field(default_factory=BigBodies)
    evidence: Evidence = field(default_factory=Evidence)
    callers: Callers = field(default_factory=Callers)
    returning: Returning = field(default_factory=Returning)
    ratios: Ratios = field(default_factory=Ratios)
    media: Mapping[BackendName, MediaCosts] = field(default_factory=dict)
    waiters: Waiters = field(default_factory=Waiters)
    body_room: BodyRoom = field(default_factory=lambda: BodyRoom(1 << 30))
