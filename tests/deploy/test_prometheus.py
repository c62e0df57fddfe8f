"""A real Prometheus reads a running gateway under load: rules pass, panels have data, and its figures are the clients'."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator
from support.dashboard import queries
from support.gateway_process import GatewayProcess, running_gateway
from support.http_client import post
from support.prometheus import Prometheus, running_prometheus

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

CHAT = "/v1/chat/completions"
CLIENTS, CALLS = 12, 15
NO_ROOM = "queue_full|predicted_wait|queue_timeout|tenant_limit|no_backend"


@dataclass(frozen=True, slots=True)
class Loaded:
    """After the load: who answered what to the clients, and a Prometheus that was there all the while."""

    gateway: GatewayProcess
    prometheus: Prometheus
    statuses: Counter[int]

    @property
    def total(self) -> int:
        return self.statuses.total()


async def client(url: str, number: int, statuses: Counter[int]) -> None:
    """Streams and plain calls, with and without a cap, one after the other; one is wrong."""
    for call in range(CALLS):
        body: dict[str, object] = {"model": "tiny", "messages": [{"role": "user", "content": f"say something {number}"}]}
        if call % 3:
            body["stream"] = True
        if call % 2:
            body["max_tokens"] = 200
        if call == 7:
            body["max_tokens"] = -1
        answer = await post(url, CHAT, body)
        statuses[answer.status] += 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loaded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Loaded]:
    shape = EngineShape(num_blocks=65, block_tokens=16, max_context=512, pace=Pace(speed=20))
    settings = {"KVGATE_QUEUE_REQUESTS": "3", "KVGATE_COMMITMENT": "strict", "KVGATE_RESERVE": "0"}
    folder: Path = tmp_path_factory.mktemp("prometheus")
    async with (
        Simulator(shape, served=Served(name="tiny", max_context=512, mean_output_tokens=60)) as engine,
        running_gateway([engine.url], settings, watched=False) as gateway,
        running_prometheus(folder, {"kvgate": gateway.admin_url, "engine": engine.url}) as prometheus,
    ):
        await prometheus.becomes("sum(kvgate_requests_total)", 0)
        statuses: Counter[int] = Counter()
        await asyncio.gather(*(client(gateway.url, number, statuses) for number in range(CLIENTS)))
        await prometheus.becomes("sum(kvgate_requests_total)", statuses.total())
        yield Loaded(gateway, prometheus, statuses)


async def test_every_kind_of_answer_occurred(loaded: Loaded) -> None:
    assert loaded.total == CLIENTS * CALLS
    assert set(loaded.statuses) == {200, 400, 429}
    assert loaded.statuses[400] == CLIENTS


async def test_prometheus_counts_what_the_clients_counted(loaded: Loaded) -> None:
    prometheus, statuses = loaded.prometheus, loaded.statuses
    assert await prometheus.value(f'sum(kvgate_rejections_total{{reason=~"{NO_ROOM}"}})') == statuses[429]
    assert await prometheus.value('sum(kvgate_rejections_total{reason="invalid_request"})') == statuses[400]
    assert await prometheus.value('sum(kvgate_requests_total{outcome="completed"})') == statuses[200]
    assert await prometheus.value("sum(kvgate_tenant_requests_total)") == statuses.total()
    assert await prometheus.value("sum(kvgate_open_requests)") == 0


async def test_the_rejection_rate_by_promql_is_the_clients_own(loaded: Loaded) -> None:
    """Exactly, because what may be counted is counted from 0: a series born with its first refusal would lose it."""
    ratio = loaded.statuses[429] / loaded.total
    assert 0.02 < ratio < 0.98
    rejected = f'sum(increase(kvgate_rejections_total{{reason=~"{NO_ROOM}"}}[4m]))'
    await loaded.prometheus.becomes(f"{rejected} / sum(increase(kvgate_requests_total[4m]))", ratio, within=1e-9)
    await loaded.prometheus.becomes("kvgate:rejection_ratio:rate5m", ratio, within=1e-9)


async def test_every_query_of_every_panel_returns_data(loaded: Loaded) -> None:
    empty = [f"{title}: {expression}" for title, expression in queries() if not await loaded.prometheus.values(expression)]
    assert not empty, "\n".join(empty)


async def test_prometheus_evaluates_every_rule_and_the_saturation_was_seen(loaded: Loaded) -> None:
    groups = (await loaded.prometheus.get("/api/v1/rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 18
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    assert {rule["health"] for rule in rules} == {"ok"}
    highest = await loaded.prometheus.value("max(max_over_time(backend:kvgate_saturation:ratio[5m]))")
    assert highest is not None
    assert 0.5 < highest <= 1.0


async def test_the_engine_is_scraped_beside_the_gateway(loaded: Loaded) -> None:
    assert await loaded.prometheus.value('up{job="engine"}') == 1
    assert await loaded.prometheus.value('up{job="kvgate"}') == 1
