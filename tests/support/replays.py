"""Small replays: traces of the policy bench or of one's own, settings, and a log as the gateway would have written it."""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.core.reserve import Reserve
from gateway.replay.profiles import LLAMA_8B_A10G
from gateway.replay.reader import read_trace
from gateway.replay.replay import Fate, replay
from gateway.replay.setting import Caps, Setting, Site
from gateway.replay.trace import Request, Trace

TRACES = Path(__file__).parents[1] / "benchmarks" / "policies" / "traces"
SMALL = replace(LLAMA_8B_A10G, name="small", blocks=1024)
_START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def trace_of(requests: Iterable[Request]) -> Trace:
    trace = Trace()
    for request in requests:
        trace.add(request)
    trace.finish()
    return trace


def bench_trace(name: str, requests: int) -> Trace:
    """The first requests of a trace of the policy bench."""
    whole = read_trace([TRACES / f"{name}.csv.gz"])
    return trace_of(whole.row(index) for index in range(min(requests, len(whole))))


def setting(
    *, reserve: str = "5%", backends: int = 1, policy: str = "fifo", commitment: str = "strict", caps: str = "1.5x"
) -> Setting:
    return Setting(Reserve.parse(reserve), backends, policy, commitment, Caps.parse(caps))


def fates_of(trace: Trace, site: Site, tried: Setting) -> list[Fate]:
    """What became of every row, in the order of the rows."""
    fates: list[Fate] = []
    replay(trace, site, tried, on_fate=fates.append)
    return sorted(fates, key=lambda fate: fate.row)


def write_log(path: Path, trace: Trace, site: Site, tried: Setting) -> list[Fate]:
    """The access log of a gateway with that setting, in the order of ends. Returns what became of every row."""
    fates: list[Fate] = []
    replay(trace, site, tried, on_fate=fates.append)
    lines = [json.dumps({"time": _time(0.0), "level": "info", "logger": "kvgate", "event": "listening"})]
    lines += [_line(trace.row(fate.row), tried, fate) for fate in fates]
    path.write_text("\n".join(lines) + "\n")
    return sorted(fates, key=lambda fate: fate.row)


def _line(request: Request, tried: Setting, fate: Fate) -> str:
    done = fate.outcome == "completed"
    fields = {
        "time": _time(fate.ended_s),
        "level": "info",
        "logger": "kvgate.request",
        "event": "request",
        "dialect": "openai_chat",
        "outcome": fate.outcome,
        "model": "m",
        "tenant": request.tenant or "anonymous",
        "backend": fate.backend,
        "stream": request.is_stream,
        "prompt_tokens_counted": request.prompt_tokens,
        "count": "exact",
        "cap_tokens": tried.caps.cap_of(request),
        "sequences": 1 if done else None,
        "prompt_tokens": request.prompt_tokens if done else None,
        "output_tokens": request.output_tokens if done else None,
        "queue_ms": round(1000 * fate.waited_s, 3),
        "ttft_ms": None if fate.ttft_s is None or not request.is_stream else round(1000 * fate.ttft_s, 3),
        "total_ms": round(1000 * (fate.ended_s - fate.arrived_s), 3),
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def _time(at_s: float) -> str:
    return (_START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
