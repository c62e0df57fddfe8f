"""Cases A-4 and A-7: what happens at one moment, and what goes on while nothing happens. No grant is lost, none is wiped."""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from statistics import median

import pytest

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, TWIN_CAP, Bench, block_body, blocks_of, chat_body, running_bench
from support.endings import rise
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeExchange, answer, eventually, never_answer
from support.gates import held_head, held_stream
from support.http_client import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENIENT_S = 0.5  # what a busy machine may add to anything


# --


REPETITIONS = 250  # of each kind
JITTER_S = 0.005
ODDS = random.Random(4)


async def hand_over(bench: Bench, *, rival: str | None) -> float:
    """A holds everything; B (if there is a rival) and C wait; A ends as B goes. Seconds from then until C is at the engine."""
    a, b, c = (bench.tag(name) for name in "abc")
    gate = asyncio.Event()
    bench.fake.script(a, held_head(gate, answer(200, b"{}")))
    bench.fake.script(b, never_answer() if rival == "vanishes" else answer(200, b"{}"))
    jitter_s = ODDS.uniform(-JITTER_S, JITTER_S)
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(await bench.take(BUDGET_BLOCKS, a))
        leaver: Connection | None = None
        limit_s = 0.02
        if rival is not None:
            patience = {"x-stainless-timeout": str(limit_s)} if rival == "times out" else None
            arrived = time.monotonic()
            leaver = await stack.enter_async_context(await bench.open(COMPLETIONS, block_body(1), tag=b, headers=patience))
        waiter = await stack.enter_async_context(await bench.open(COMPLETIONS, block_body(BUDGET_BLOCKS), tag=c))
        if leaver is None:
            await bench.state_where(lambda state: state.queued == 1, "C waits")
        elif rival == "vanishes":
            await bench.state_where(lambda state: state.queued == 2, "B and C wait")
            if jitter_s < 0:
                gate.set()
                await asyncio.sleep(-jitter_s)
                leaver.vanish()
            else:
                leaver.vanish()
                await asyncio.sleep(jitter_s)
        else:
            await asyncio.sleep(arrived + limit_s + jitter_s - time.monotonic())
        gate.set()
        ended = time.monotonic()
        if rival == "times out" and leaver is not None:
            found = await leaver.answer()
            assert found.status == 200 or (found.status, found.error["code"]) == (429, "queue_timeout"), found
        assert (await waiter.answer()).status == 200
        assert (await holder.answer()).status == 200
    (seen,) = bench.fake.tagged(c)
    return seen.head_at - ended


@pytest.mark.parametrize("rival", ["vanishes", "times out"])
async def test_a4_a_grant_that_meets_a_goodbye_goes_to_the_next(bench: Bench, rival: str) -> None:
    undisturbed = [await hand_over(bench, rival=None) for _ in range(10)]
    before = await bench.idle()
    waits = [await hand_over(bench, rival=rival) for _ in range(REPETITIONS)]
    assert max(waits) < 5 * max(undisturbed) + LENIENT_S
    assert median(waits) < 5 * median(undisturbed) + 0.1
    told = rise(before.outcomes, (await bench.idle()).outcomes)
    if rival == "vanishes":
        assert told.get("client_gone_queued", 0) + told.get("client_gone_waiting", 0) == REPETITIONS, told
    else:
        # Both ends of the race occurred, or the race was not run.
        assert 0 < told["timeout_queue"] < REPETITIONS, told
    await bench.end_case()


ONE_TICK = {
    # what happens while the gateway sees nothing, in this order
    "the holder ends, the next leaves": ("end", "leave"),
    "the next leaves, the holder ends": ("leave", "end"),
    "the holder leaves, the next leaves": ("go", "leave"),
    "the next leaves, the holder leaves": ("leave", "go"),
    "the holder ends while the next one's limit passes": ("end", "late"),
    "the holder leaves while the next one's limit passes": ("late", "go"),
}


@pytest.mark.parametrize("name", ONE_TICK)
async def test_a4_a_grant_and_a_goodbye_in_one_tick_of_the_loop_lose_nothing(bench: Bench, name: str) -> None:
    limit_s = 0.05
    for _ in range(10):
        a, b, c = bench.tag("a"), bench.tag("b"), bench.tag("c")
        gate = asyncio.Event()
        bench.fake.script(a, held_head(gate, answer(200, b"{}")))
        bench.fake.script(b, answer(200, b"{}") if "late" in ONE_TICK[name] else never_answer())
        async with (
            await bench.take(BUDGET_BLOCKS, a) as holder,
            await bench.open(
                COMPLETIONS,
                block_body(BUDGET_BLOCKS),
                tag=b,
                headers={"x-stainless-timeout": str(limit_s)} if "late" in ONE_TICK[name] else None,
            ) as leaver,
            await bench.open(COMPLETIONS, block_body(BUDGET_BLOCKS), tag=c) as waiter,
        ):
            if "late" not in ONE_TICK[name]:
                await bench.state_where(lambda state: state.queued == 2, "two wait")
            async with bench.gateway.frozen():
                for event in ONE_TICK[name]:
                    match event:
                        case "end":
                            gate.set()
                            await eventually(lambda a=a: bench.fake.tagged(a)[0].end == "answered")  # type: ignore[misc]
                        case "go":
                            holder.vanish()
                        case "leave":
                            leaver.vanish()
                        case _:
                            await asyncio.sleep(limit_s)
                    await asyncio.sleep(0.002)
            assert (await waiter.answer()).status == 200
        await bench.idle()
    await bench.end_case()


@pytest.mark.parametrize("how", ["vanish", "hang_up", "late"])
async def test_a4_whoever_fits_behind_a_head_that_gives_up_is_let_in_at_once(how: str) -> None:
    async with running_bench(KVGATE_BACKFILL_PASSES="0") as bench:
        big_tag, small_tag = bench.tag("big"), bench.tag("small")
        patience = {"x-stainless-timeout": "0.5"} if how == "late" else None
        async with (
            bench.everything_taken(32),
            await bench.wait_in_line(56, big_tag, headers=patience) as big,
            await bench.wait_in_line(4, small_tag) as small,
        ):
            assert bench.arrivals(small_tag) == 0
            if how == "late":
                assert (await big.answer()).status == 429
            else:
                getattr(big, how)()
            assert (await small.answer()).status == 200  # while the first still runs
        assert bench.arrivals(big_tag) == 0
        await bench.end_case()


# --


class Sick:
    """A fake engine whose every route but the inference ones can fail for a while."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.is_sick = False

    async def __call__(self, exchange: FakeExchange) -> None:
        if self.is_sick and exchange.request.method == b"GET":
            await answer(500, b"sick")(exchange)
        else:
            await self.engine(exchange)


async def test_a7_a_silent_stream_keeps_its_share_across_an_outage_of_the_health_check() -> None:
    # Side by side: an outage takes its time to be seen, and nothing runs meanwhile.
    await asyncio.gather(*(silent_through_an_outage(silence) for silence in ("before the head", "after the first event")))


async def silent_through_an_outage(silence: str) -> None:
    async with running_bench() as bench:
        sick = Sick(bench.engine)
        bench.fake.default = sick
        gate, first_tag, second_tag = asyncio.Event(), bench.tag("first"), bench.tag("second")
        first_behaviour = held_head(gate, bench.engine.completion()) if silence == "before the head" else held_stream(gate)
        bench.fake.script(first_tag, first_behaviour)
        async with (
            await bench.open(CHAT, chat_body(TWIN_CAP, stream=True), tag=first_tag) as first,
        ):
            await eventually(lambda: bench.fake.open_requests(first_tag) == 1)
            if silence == "after the first event":
                await first.head()
                await first.read_until(b"before-0")
            held = blocks_of(7, TWIN_CAP)  # as soon as somebody waits, the prompt is counted exactly and the hold shrinks
            async with await bench.open(CHAT, chat_body(TWIN_CAP), tag=second_tag) as second:
                await bench.state_where(lambda state: state.queued == 1 and state.held_blocks == held, "the second waits")
                sick.is_sick = True
                down = await bench.state_where(lambda state: not state.backend["healthy"], "seen as down", within_s=40)
                assert (down.held_blocks, down.queued, down.in_flight) == (held, 1, 1)
                sick.is_sick = False
                up = await bench.state_where(lambda state: state.backend["healthy"], "seen as up", within_s=40)
                assert (up.held_blocks, up.queued, up.in_flight) == (held, 1, 1)
                assert bench.arrivals(second_tag) == 0
                gate.set()
                ended = await first.answer() if silence == "before the head" else await first.rest()
                assert ended.is_tidy
                assert ended.events[-1] == b"[DONE]"
                assert (await second.answer()).status == 200
        first_seen, second_seen = bench.fake.tagged(first_tag)[0], bench.fake.tagged(second_tag)[0]
        assert first_seen.ended_at is not None
        assert second_seen.head_at >= first_seen.ended_at
        await bench.end_case()
