"""A real Prometheus on loopback, and what it answers.

    async with running_prometheus(tmp_path, {"kvgate": gateway.admin_url}) as prometheus:
        await prometheus.value("sum(kvgate_requests_total)")

It reads the configuration and the rules of deploy/, with its own targets in place and every interval one second.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from support.http_client import ask
from support.programs import DEPLOY, free_port, program

START_S = 30.0
SCRAPED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    async def get(self, target: str) -> Any:
        answer = await ask(self.url, "GET", target)
        assert answer.status == 200, answer
        found = answer.json()
        assert found["status"] == "success", found
        return found["data"]

    async def values(self, expression: str) -> list[float]:
        """The values of an instant query that are numbers, in any order."""
        data = await self.get(f"/api/v1/query?query={quote(expression, safe='')}")
        values = [float(each["value"][1]) for each in data["result"]]
        return [value for value in values if math.isfinite(value)]

    async def value(self, expression: str) -> float | None:
        """The value of a query with one result, None without a result."""
        values = await self.values(expression)
        assert len(values) < 2, f"{expression}: {values}"
        return values[0] if values else None

    async def becomes(self, expression: str, wanted: float, *, within: float = 0.0) -> None:
        """Return once the query's one value is so, give or take `within`."""
        seen: float | None = None
        try:
            async with asyncio.timeout(SCRAPED_WITHIN_S):
                while True:
                    seen = await self.value(expression)
                    if seen is not None and abs(seen - wanted) <= within:
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{expression} is {seen} and did not become {wanted}") from None


def configuration(targets: Mapping[str, str]) -> dict[str, Any]:
    """The one in deploy/, with these targets of its jobs, looked at every second."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert set(jobs) == set(targets)
    for name, url in targets.items():
        jobs[name]["static_configs"] = [{"targets": [urlsplit(url).netloc]}]
    return config


@asynccontextmanager
async def running_prometheus(folder: Path, targets: Mapping[str, str]) -> AsyncIterator[Prometheus]:
    """Ready, and stopped at the end."""
    path, port = folder / "prometheus.yml", free_port()
    path.write_text(yaml.safe_dump(configuration(targets)))
    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=(folder / "prometheus.log").open("wb"),
    )
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(START_S):
            while not await _is_ready(prometheus.url):
                assert process.returncode is None, (folder / "prometheus.log").read_text()
                await asyncio.sleep(0.05)
        yield prometheus
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(url: str) -> bool:
    try:
        return (await ask(url, "GET", "/-/ready")).status == 200
    except OSError:
        return False
