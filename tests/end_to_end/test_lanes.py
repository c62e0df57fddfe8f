"""Lanes and policies on real sockets before the simulator: each beside the same load without them, and only ratios demanded.

The engine has 64 usable blocks of four tokens; a request of one prompt token and 4 x n output tokens takes n blocks, and every
token takes about ten milliseconds, whoever else runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator
from support.gateway_process import CASE_SETTINGS, GatewayProcess, running_gateway
from support.http_client import Answer, post

pytestmark = pytest.mark.slow

BLOCK_TOKENS, BUDGET_BLOCKS = 4, 64
# A machine that stalls in the midst of a run makes any policy late: the best of so many runs counts.
RUNS = 3
QUIET = {**CASE_SETTINGS, "KVGATE_GUARDS": "off", "KVGATE_QUEUE_TIMEOUT": "120s"}


def simulator() -> Simulator:
    context = BUDGET_BLOCKS * BLOCK_TOKENS
    shape = EngineShape(
        num_blocks=BUDGET_BLOCKS + 1, block_tokens=BLOCK_TOKENS, max_context=context, max_running=64, pace=Pace(speed=3)
    )
    return Simulator(shape, served=Served(name="sim", max_context=context))


@asynccontextmanager
async def gateway_with(**settings: str) -> AsyncIterator[GatewayProcess]:
    async with simulator() as engine, running_gateway([engine.url], QUIET | settings) as gateway:
        yield gateway


async def call(gateway: GatewayProcess, blocks: int, **headers: str) -> Answer:
    """A request that takes exactly so many blocks for as long as it runs."""
    body = {"model": "sim", "prompt": [1], "max_tokens": BLOCK_TOKENS * blocks, "ignore_eos": True}
    return await post(gateway.url, "/v1/completions", body, {name.replace("_", "-"): text for name, text in headers.items()})


async def repeat(work: Callable[[], Awaitable[object]], until: asyncio.Event) -> None:
    while not until.is_set():
        await work()


# Victims beside an aggressor

VICTIMS = [f"victim-{number}" for number in range(4)]
CALLS = 8
EVERY_S = 0.8


async def victims_beside_an_aggressor(gateway: GatewayProcess) -> tuple[float, int]:
    """Each victim sends a request of an eighth of the pool every EVERY_S, while one keeps forty such requests waiting.

    Returns the longest wait of a victim's request, and the most that a victim had unfinished when it sent the next.
    """
    over = asyncio.Event()
    aggressor = [asyncio.create_task(repeat(lambda: call(gateway, 8), over)) for _ in range(48)]
    while (await gateway.state()).queued < 30:
        await asyncio.sleep(0.01)
    waits_ms: list[int] = []
    behind = 0

    async def one(name: str) -> None:
        answer = await call(gateway, 8, x_kvgate_lane=name)
        assert answer.status == 200
        waits_ms.append(answer.head.number("x-kvgate-queue-ms"))

    async def victim(name: str) -> None:
        nonlocal behind
        sent: list[asyncio.Task[None]] = []
        for _ in range(CALLS):
            behind = max(behind, sum(not each.done() for each in sent))
            sent.append(asyncio.create_task(one(name)))
            await asyncio.sleep(EVERY_S)
        await asyncio.gather(*sent)

    await asyncio.gather(*map(victim, VICTIMS))
    over.set()
    await asyncio.gather(*aggressor)
    return max(waits_ms) / 1000, behind


async def test_victims_get_their_share_less_one_request_and_wait_a_third_of_what_they_wait_in_one_line(tmp_path: Path) -> None:
    """Their share is all that they ask for: a fifth of the pool is more. A lane stands for each caller."""
    lanes = tmp_path / "lanes.toml"
    lanes.write_text("[lanes.aggressor]\n" + "".join(f"[lanes.{name}]\nheader = true\n" for name in VICTIMS))
    async with gateway_with() as gateway:
        wait_in_line_s, behind_in_line = await victims_beside_an_aggressor(gateway)
    for _ in range(RUNS):
        async with gateway_with(KVGATE_LANES=str(lanes)) as gateway:
            wait_s, behind = await victims_beside_an_aggressor(gateway)
            assert set((await gateway.state()).raw["lanes"]) == {"aggressor", *VICTIMS}
        print(f"longest wait {wait_s:.2f} s, unfinished {behind}; in one line {wait_in_line_s:.2f} s, {behind_in_line}")
        if behind <= 1 and wait_s <= wait_in_line_s / 3:
            break
    assert behind <= 1 < behind_in_line
    assert wait_s <= wait_in_line_s / 3


# The big one at the head of the line


async def passed_by(gateway: GatewayProcess) -> int:
    """How many endless small ones that came later began before a 56-block request did, or 60 if it did not begin by then."""
    over, small_began = asyncio.Event(), [0.0]
    began_at: list[float] = []

    async def small() -> None:
        sent = time.monotonic()
        answer = await call(gateway, 4)
        assert answer.status == 200
        began_at.append(sent + answer.head.number("x-kvgate-queue-ms") / 1000)
        if len([began for began in began_at if began > small_began[0] > 0]) >= 60:
            over.set()

    clients = []
    for _ in range(12):  # one after the other, so that they never end together
        clients.append(asyncio.create_task(repeat(small, over)))
        await asyncio.sleep(0.02)
    while (await gateway.state()).in_flight < 10:
        await asyncio.sleep(0.01)
    small_began[0] = time.monotonic()
    big = asyncio.create_task(call(gateway, 56))
    await asyncio.wait({big, asyncio.create_task(over.wait())}, return_when=asyncio.FIRST_COMPLETED)
    over.set()
    answer = await big
    assert answer.status == 200
    await asyncio.gather(*clients)
    big_began = small_began[0] + answer.head.number("x-kvgate-queue-ms") / 1000
    return len([began for began in began_at if small_began[0] < began < big_began])


@pytest.mark.parametrize("passes", [4, 16])
async def test_a_large_request_among_endless_small_ones_starts_within_the_passes_that_the_settings_allow(passes: int) -> None:
    async with gateway_with(KVGATE_BACKFILL_PASSES=str(passes)) as gateway:
        # Those that were on their way when it came do not count as passing: one for each client at most.
        assert await passed_by(gateway) <= passes + 1


async def test_without_a_limit_on_passes_it_would_not() -> None:
    async with gateway_with(KVGATE_BACKFILL_PASSES="100000", KVGATE_BACKFILL_AGE="1h") as gateway:
        assert await passed_by(gateway) > 32


# Half interactive, half batch, at one and a half times what the engine serves

RUN_S = 10.0
PATIENCE_S = 2.0


async def in_time(gateway: GatewayProcess) -> float:
    """Part of the interactive requests that were granted within their patience, at 1.5 times the engine's rate."""
    started = time.monotonic()
    for _ in range(2):
        await asyncio.gather(*(call(gateway, 8) for _ in range(8)))
    every_s = (time.monotonic() - started) / 2 / 8 / 1.5
    told: dict[bool, list[int]] = {True: [], False: []}

    async def one(is_interactive: bool) -> None:
        patience_s = PATIENCE_S if is_interactive else 60.0
        answer = await call(gateway, 8, x_request_timeout=str(patience_s))
        told[is_interactive].append(answer.status)

    calls = []
    for number in range(int(RUN_S / every_s)):
        calls.append(asyncio.create_task(one(number % 2 == 0)))
        await asyncio.sleep(max(0.0, started + 2 * 8 * every_s * 1.5 + number * every_s - time.monotonic()))
    await asyncio.gather(*calls)
    assert set(told[True]) <= {200, 429}
    return told[True].count(200) / len(told[True])


async def test_by_deadline_interactive_requests_are_served_in_time_under_overload() -> None:
    async with gateway_with(KVGATE_POLICY="fifo") as gateway:
        by_arrival = await in_time(gateway)
    by_deadline = 0.0
    for _ in range(RUNS):
        async with gateway_with(KVGATE_POLICY="deadline") as gateway:
            by_deadline = max(by_deadline, await in_time(gateway))
        print(f"in time: {by_deadline:.1%} by deadline, {by_arrival:.1%} by arrival")
        if by_deadline >= 0.97:
            break
    assert by_deadline >= 0.97 > by_arrival
