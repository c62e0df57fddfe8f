"""One scenario against one port of loopback, its findings as JSON on standard output.

python -m benchmarks.proxies.load --port 9200 --scenario unary1k --seconds 3 --engine-port 9100 --engine-pid 1 --proxy-pid 2
"""

import argparse
import asyncio
import re
import resource
import sys
import time
from dataclasses import dataclass
from typing import Final

import msgspec
import uvloop

from benchmarks.proxies.clients import Findings
from benchmarks.proxies.measured import NOT_SEEN_S, Measured, Quantiles
from benchmarks.proxies.processes import cpu_s, resident_bytes
from benchmarks.proxies.scenarios import SCENARIOS, Scenario

_LOOK_S: Final = 0.02
_LOOK_AT_MEMORY_S: Final = 0.25
_HANG_UPS_WITHIN_S: Final = 5.0
_RUNNING: Final = re.compile(rb"^vllm:num_requests_running\{.*\} (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sides:
    """Whose costs are read meanwhile. proxy_pid: None where the engine is asked directly."""

    port: int
    engine_port: int
    engine_pid: int
    proxy_pid: int | None


async def measure(scenario: Scenario, sides: Sides, *, seconds: float, grace_s: float) -> Measured:
    """Put the load on. seconds: for which clients ask again. grace_s: beyond the end that is expected, after which what has
    not come counts as failed."""
    proxy = sides.proxy_pid
    findings = Findings(scenario, port=sides.port, seconds=seconds)
    resident = most_resident = resident_bytes(proxy) if proxy is not None else None
    proxy_before_s = cpu_s(proxy) if proxy is not None else 0.0
    engine_before_s, own_before_s = cpu_s(sides.engine_pid), time.process_time()
    for number in range(scenario.connections):
        findings.connect(after_s=scenario.spread_s * number / scenario.connections)
    ends_at = findings.began + scenario.spread_s + seconds + scenario.lasts_s + grace_s
    await asyncio.sleep(scenario.spread_s + 0.05)
    while time.perf_counter() < ends_at and (findings.open_answers or findings.asks_again):
        await asyncio.sleep(_LOOK_AT_MEMORY_S if scenario.stays_open else _LOOK_S)
        if most_resident is not None and proxy is not None and scenario.stays_open:
            most_resident = max(most_resident, resident_bytes(proxy))
    wall_s = time.perf_counter() - findings.began
    for _ in range(findings.open_answers):
        findings.failed("not finished in time")
    return Measured(
        scenario=scenario.name,
        connections=scenario.connections,
        most_open=findings.most_open,
        ok=findings.ok,
        verbatim=findings.verbatim,
        errors=findings.errors,
        first_errors=tuple(findings.first_errors),
        chunks=findings.ok * scenario.plan.chunks if scenario.plan is not None else 0,
        wall_s=wall_s,
        load_cpu_s=time.process_time() - own_before_s,
        engine_cpu_s=cpu_s(sides.engine_pid) - engine_before_s,
        proxy_cpu_s=cpu_s(proxy) - proxy_before_s if proxy is not None else None,
        resident_before_bytes=resident,
        resident_most_bytes=most_resident,
        latency_us=_quantiles(findings.latencies_s, 1e6),
        ttft_us=_quantiles(findings.ttfts_s, 1e6),
        lag_us=_quantiles(findings.lags_ns, 1e-3),
        hang_up_s=await _hang_up_s(sides.engine_port) if scenario.hang_up_after is not None else None,
    )


def _quantiles(values: list[float] | list[int], scale: float) -> Quantiles | None:
    if not values:
        return None
    ranked = sorted(values)
    p50, p99 = (ranked[min(len(ranked) - 1, int(share * len(ranked)))] * scale for share in (0.5, 0.99))
    return Quantiles(p50, p99)


async def _hang_up_s(engine_port: int) -> float:
    """How long from now on the engine believes that anybody is still there; NOT_SEEN_S if it goes on believing it."""
    began = time.perf_counter()
    while await _running_streams(engine_port):
        if time.perf_counter() - began > _HANG_UPS_WITHIN_S:
            return NOT_SEEN_S
        await asyncio.sleep(_LOOK_S)
    return time.perf_counter() - began


async def _running_streams(engine_port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    page = await reader.readuntil(b"num_requests_waiting gauge")
    writer.close()
    found = _RUNNING.search(page)
    assert found is not None, page
    return int(found.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.proxies.load", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--scenario", choices=SCENARIOS, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--grace", type=float, default=20.0)
    parser.add_argument("--engine-port", type=int, required=True)
    parser.add_argument("--engine-pid", type=int, required=True)
    parser.add_argument("--proxy-pid", type=int)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sides = Sides(given.port, given.engine_port, given.engine_pid, given.proxy_pid)
    scenario = SCENARIOS[given.scenario].within(hard)
    measured = uvloop.run(measure(scenario, sides, seconds=given.seconds, grace_s=given.grace))
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
