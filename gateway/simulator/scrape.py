"""Reading a /metrics page: what the demo and the tests want to see of the engine."""

import re
from dataclasses import dataclass

from gateway.simulator.http_client import BrokenAnswer, get

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The engine's own figures at one moment. used_fraction: of the usable blocks."""

    running: int
    waiting: int
    preemptions: int
    used_fraction: float


async def read_engine(url: str) -> EngineReading:
    """Read the engine at `url`. Raises BrokenAnswer if it does not answer with these metrics."""
    status, body = await get(f"{url}/metrics")
    values = dict(_SAMPLE.findall(body.decode("utf-8", "replace")))
    try:
        return EngineReading(
            running=int(float(values["num_requests_running"])),
            waiting=int(float(values["num_requests_waiting"])),
            preemptions=int(float(values["num_preemptions_total"])),
            used_fraction=float(values["kv_cache_usage_perc"]),
        )
    except (KeyError, ValueError) as error:
        raise BrokenAnswer(f"{url}/metrics ({status}) has no such figures: {error!r}") from error
