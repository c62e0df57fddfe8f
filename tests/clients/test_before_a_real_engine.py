"""The same clients against a gateway before a real vLLM: KVGATE_TEST_VLLM=http://127.0.0.1:8000, and nobody else there."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from clients.real_client import RealClient
from support.gateway_process import GatewayProcess, running_gateway
from support.http_client import ask, open_post, post

pytestmark = [pytest.mark.clients, pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@dataclass(frozen=True, slots=True)
class Real:
    """A gateway before the engine, the engine's model, and the most tokens of one request."""

    gateway: GatewayProcess
    engine_url: str
    model: str
    context: int

    async def preemptions(self) -> float:
        page = (await ask(self.engine_url, "GET", "/metrics")).body.decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:num_preemptions_total"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real() -> AsyncIterator[Real]:
    url = os.environ.get("KVGATE_TEST_VLLM")
    if url is None:
        pytest.skip("KVGATE_TEST_VLLM names no server")
    (model, *_) = (await ask(url, "GET", "/v1/models")).json()["data"]
    async with running_gateway([url], {"KVGATE_RESERVE": "0", "KVGATE_COMMITMENT": "strict"}) as gateway:
        yield Real(gateway, url, model["id"], model["max_model_len"])


@STREAMED
async def test_an_answer(client: RealClient, real: Real, stream: bool) -> None:
    preempted = await real.preemptions()
    before = await real.gateway.state()
    told = await client.ask(real.gateway.url, real.model, "Say hello.", stream=stream, max_tokens=16)
    assert told.error is None
    assert told.text
    after = await real.gateway.state()
    assert after.outcomes["completed"] == before.outcomes.get("completed", 0) + 1
    assert await real.preemptions() == preempted


@STREAMED
async def test_it_waits_in_line_and_then_runs(client: RealClient, real: Real, stream: bool) -> None:
    """Whole contexts are asked for until nothing is left; the client's request waits for the first of them to end."""
    preempted = await real.preemptions()
    state = await real.gateway.state()
    (backend,) = state.raw["backends"]
    whole: dict[str, Any] = {"model": real.model, "prompt": [5], "max_tokens": real.context - 1, "ignore_eos": True}
    blocks = -(-real.context // backend["block_tokens"])
    holders = [
        await open_post(real.gateway.url, "/v1/completions", whole, {}) for _ in range(backend["budget_blocks"] // blocks)
    ]
    async with asyncio.timeout(60):
        while (await real.gateway.state()).raw["in_flight"] < len(holders):
            await asyncio.sleep(0.01)
    prompt = "Say hello. " * (real.context // 32)  # more than what is left beside whole contexts
    asking = asyncio.create_task(client.ask(real.gateway.url, real.model, prompt, stream=stream, max_tokens=real.context // 2))
    async with asyncio.timeout(60):
        while not (await real.gateway.state()).queued:
            assert not asking.done(), "it ran although everything was taken"
            await asyncio.sleep(0.01)
    for holder in holders:
        answer = await holder.answer()
        assert answer.status == 200, answer
        assert answer.json()["usage"]["completion_tokens"] == real.context - 1
        holder.vanish()
    told = await asking
    assert told.error is None
    assert told.text
    assert await real.preemptions() == preempted


async def test_the_engine_is_whole_afterwards(real: Real) -> None:
    answer = await post(real.gateway.url, "/v1/completions", {"model": real.model, "prompt": [5], "max_tokens": 4}, {})
    assert answer.status == 200
    assert (await real.gateway.state()).is_idle
