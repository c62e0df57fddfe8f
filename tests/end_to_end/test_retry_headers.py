"""What the retry headers are worth: real SDKs in a closed loop of three times the clients that fit, with them and without.

Each client asks again as soon as it has its answer, or its error. The line is short, so that some are always refused; what
an SDK then does is its own affair. Without: the same gateway, and the headers taken off its answers on their way to the SDK.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest

from gateway.dialects import DIALECTS
from support.bench import BLOCK_TOKENS, BUDGET_BLOCKS, MODEL, running_bench
from support.fake_engine import FakeEngine, Shape

FIT = 4
CLIENTS = 3 * FIT
CALLS = 10
TIMEOUT_S = 30.0
RETRY_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
PING: Any = [{"role": "user", "content": "ping"}]


@dataclass(frozen=True)
class Sdk:
    """One SDK with its own defaults. client(url, http client); call(client, cap): one logical call."""

    path: str
    http: Callable[..., Any]
    client: Callable[[str, Any], Any]
    call: Callable[[Any, int], Awaitable[object]]
    error: type[Exception]


SDKS = (
    Sdk(
        "/v1/chat/completions",
        openai.DefaultAsyncHttpxClient,
        lambda url, http: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", timeout=TIMEOUT_S, http_client=http),
        lambda client, cap: client.chat.completions.create(model=MODEL, messages=PING, max_tokens=cap),
        openai.APIStatusError,
    ),
    Sdk(
        "/v1/messages",
        anthropic.DefaultAsyncHttpxClient,
        lambda url, http: anthropic.AsyncAnthropic(base_url=url, api_key="any", timeout=TIMEOUT_S, http_client=http),
        lambda client, cap: client.messages.create(model=MODEL, messages=PING, max_tokens=cap),
        anthropic.APIStatusError,
    ),
)


@dataclass(slots=True)
class Counted:
    """What the clients saw. longest_s: of one logical call, its retries and its waits included."""

    succeeded: int = 0
    failed: int = 0
    arrivals: int = 0
    longest_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def arrivals_per_call(self) -> float:
        return self.arrivals / (self.succeeded + self.failed)


async def take_off(response: Any) -> None:
    for name in RETRY_HEADERS:
        response.headers.pop(name, None)


async def closed_loop(sdk: Sdk, *, with_headers: bool) -> Counted:
    """Every client's calls, one after another. Their sizes are drawn with the same seed, and the SDK's own chances as well."""
    draw = random.Random(7)
    most_blocks = BUDGET_BLOCKS // FIT
    caps = [[draw.randrange(most_blocks - 3, most_blocks) * BLOCK_TOKENS for _ in range(CALLS)] for _ in range(CLIENTS)]
    random.seed(7)
    counted = Counted()
    engine = FakeEngine(shape=Shape(events=8, gap_s=0.05))
    async with running_bench(engine, KVGATE_QUEUE_REQUESTS=str(FIT)) as bench:

        async def talk(number: int) -> None:
            http = sdk.http() if with_headers else sdk.http(event_hooks={"response": [take_off]})
            async with sdk.client(bench.gateway.url, http) as client:
                for cap in caps[number]:
                    began = time.monotonic()
                    try:
                        await sdk.call(client, cap)
                        counted.succeeded += 1
                    except sdk.error:
                        counted.failed += 1
                    counted.longest_s = max(counted.longest_s, time.monotonic() - began)

        await asyncio.gather(*map(talk, range(CLIENTS)))
        state = await bench.idle()
        counted.arrivals, counted.outcomes = state.received, state.outcomes
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("sdk", [sdk for sdk in SDKS if sdk.path in DIALECTS], ids=lambda sdk: sdk.path)
async def test_with_the_retry_headers_more_calls_succeed_and_fewer_arrive(sdk: Sdk) -> None:
    told, left_alone = await closed_loop(sdk, with_headers=True), await closed_loop(sdk, with_headers=False)
    print(f"\nwith the headers {told.arrivals_per_call:.2f} arrivals a call, {told}")
    print(f"without {left_alone.arrivals_per_call:.2f}, {left_alone}")
    for counted in (told, left_alone):
        assert counted.succeeded + counted.failed == CLIENTS * CALLS
        assert counted.longest_s < TIMEOUT_S
    assert told.succeeded >= left_alone.succeeded
    assert told.arrivals_per_call < 1.5
    assert told.arrivals_per_call < left_alone.arrivals_per_call
