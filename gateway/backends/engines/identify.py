"""Identify: which engine answers behind an address."""

from dataclasses import replace
from typing import Final

from gateway.backends.engines.engine import Engine, EngineReport
from gateway.backends.engines.table import ENGINES
from gateway.backends.probe import Probe

AUTO: Final = "auto"
UNKNOWN_ENGINE: Final = "unknown"


async def identify(probe: Probe, named: str, last: Engine) -> tuple[Engine, EngineReport]:
    """Which engine this is and what it says: the one that the operator named, else the one it was, else the first that fits."""
    if named != AUTO:
        report = await ENGINES[named].probe(probe)
        if report is not None:
            return ENGINES[named], report
        static = await _take_any(probe, named)
        return ENGINES["static"], replace(static, warnings=(f"it does not answer as {named} does, which KVGATE_ENGINE names",))
    candidates = [engine for name, engine in ENGINES.items() if name != "static"]
    for engine in sorted(candidates, key=lambda engine: engine is not last):
        report = await engine.probe(probe)
        if report is not None:
            return engine, report
    return ENGINES["static"], await _take_any(probe, UNKNOWN_ENGINE)


async def _take_any(probe: Probe, called: str) -> EngineReport:
    report = await ENGINES["static"].probe(probe)
    return EngineReport(called) if report is None else replace(report, engine=called)
