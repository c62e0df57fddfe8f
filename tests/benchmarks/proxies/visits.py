"""A visit: one proxy before a fresh engine, under one scenario after the other."""

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.proxies.measured import Measured, failed
from benchmarks.proxies.peers import DIRECT, PEERS, Place
from benchmarks.proxies.processes import (
    NotStarted,
    free_port,
    machine_busy_s,
    our_environment,
    our_module,
    running,
)

_ENGINE_WITHIN_S: Final = 20.0
_PROXY_WITHIN_S: Final = 90.0
_SCENARIO_WITHIN_S: Final = 180.0
_WARM_UP_S: Final = 0.7
_LOAD_START_CPU_S: Final = 0.15
"""What starting the load's process costs, which it does not count itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: for which clients ask again; grace_s: see load.measure. settings: of kvgate."""

    seconds: float
    grace_s: float
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Visit:
    """faults: why the figures are not worth anything, in words."""

    proxy: str
    measured: tuple[Measured, ...]
    faults: tuple[str, ...] = ()


def visit(name: str, scenarios: Sequence[str], plan: Plan) -> Visit:
    """All scenarios in their order, the proxy's own account at the end. Who does not start has a fault and no figures."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-bench-")))
        try:
            load = _Load(stack, name, scratch, plan)
        except NotStarted as error:
            return Visit(name, (failed("start", str(error)),), (str(error),))
        return load.run(scenarios)


class _Load:
    """An engine, a proxy before it unless there shall be none, and the loads on them."""

    def __init__(self, stack: ExitStack, name: str, scratch: Path, plan: Plan) -> None:
        """Both run until the stack is left. Raises NotStarted."""
        self._name = name
        self._plan = plan
        engine_port = free_port()
        self._engine = stack.enter_context(
            running(
                our_module("benchmarks.proxies.engine", "--port", str(engine_port)),
                port=engine_port,
                environment=our_environment(),
                scratch=_folder(scratch, "engine"),
                within_s=_ENGINE_WITHIN_S,
            )
        )
        place = Place(free_port(), free_port(), engine_port, _folder(scratch, "proxy"), plan.settings)
        self._place = place
        self._proxy: subprocess.Popen[bytes] | None = None
        if name == DIRECT:
            self._place = replace(place, port=engine_port)
            return
        peer = PEERS[name]
        program = peer.program()
        assert program is not None, "who is not installed is left out before"
        self._proxy = stack.enter_context(
            running(
                peer.command(program, place),
                port=place.port,
                environment=peer.environment(place),
                scratch=place.scratch,
                first_asked=peer.first_asked,
                within_s=_PROXY_WITHIN_S,
            )
        )

    def run(self, scenarios: Sequence[str]) -> Visit:
        measured: list[Measured] = []
        if self._proxy is not None:
            self._put_on("unary1k", _WARM_UP_S)
        for scenario in scenarios:
            measured.append(self._put_on(scenario, self._plan.seconds))
            if self._proxy is not None and self._proxy.poll() is not None:
                return Visit(self._name, tuple(measured), (f"{self._name} ended by itself during {scenario}",))
        faults = PEERS[self._name].faults(self._place) if self._name != DIRECT else []
        return Visit(self._name, tuple(measured), tuple(faults))

    def _put_on(self, scenario: str, seconds: float) -> Measured:
        ports = ("--port", str(self._place.port), "--engine-port", str(self._place.engine_port))
        pids = ("--engine-pid", str(self._engine.pid), *(("--proxy-pid", str(self._proxy.pid)) if self._proxy else ()))
        times = ("--seconds", str(seconds), "--grace", str(self._plan.grace_s))
        command = our_module("benchmarks.proxies.load", "--scenario", scenario, *ports, *pids, *times)
        began, busy_before_s = time.monotonic(), machine_busy_s()
        try:
            done = subprocess.run(
                command, env=our_environment(), stdout=subprocess.PIPE, timeout=_SCENARIO_WITHIN_S, check=True
            )
        except subprocess.SubprocessError as error:
            return failed(scenario, str(error))
        wall_s, busy_s = time.monotonic() - began, machine_busy_s() - busy_before_s
        found = msgspec.json.decode(done.stdout, type=Measured)
        own_s = found.load_cpu_s + found.engine_cpu_s + (found.proxy_cpu_s or 0.0) + _LOAD_START_CPU_S
        return msgspec.structs.replace(found, foreign_cores=max(0.0, (busy_s - own_s) / wall_s))


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
