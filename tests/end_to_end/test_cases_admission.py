"""Cases A: who is let in, who waits, who is refused, and that neither waiting nor leaving costs anybody else."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from support.bench import (
    BUDGET_BLOCKS,
    CHAT,
    COMPLETIONS,
    MODEL,
    STD_CAP,
    Bench,
    block_body,
    blocks_of,
    chat_body,
    running_bench,
)
from support.fake_upstream import answer, eventually
from support.gates import held_head
from support.http_client import Answer, Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUEUE_REQUESTS = 8  # as the shared bench is set
LENIENT_S = 0.5  # what a busy machine may add to anything


@asynccontextmanager
async def full_line(bench: Bench, tag: str) -> AsyncIterator[list[Connection]]:
    """As many requests waiting as the line takes."""
    async with AsyncExitStack() as stack:
        waiting = [
            await stack.enter_async_context(await bench.open(COMPLETIONS, block_body(2), tag=tag))
            for _ in range(QUEUE_REQUESTS)
        ]
        await bench.state_where(lambda state: state.queued == QUEUE_REQUESTS, "the line is full")
        yield waiting


async def test_four_std_fit_and_a_fifth_waits(bench: Bench) -> None:
    gate, tag = asyncio.Event(), bench.tag("std")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await bench.open(CHAT, chat_body(), tag=tag)) for _ in range(5)]
        await eventually(lambda: bench.fake.open_requests(tag) == 4)
        await bench.state_where(
            lambda state: (state.in_flight, state.queued, state.held_blocks) == (4, 1, 4 * blocks_of(7, STD_CAP)),
            "four run, each held for what it may exactly take, and one waits",
        )
        gate.set()
        assert [(await client.answer()).status for client in clients] == [200] * 5
    assert bench.fake.high_water(tag) == 4
    await bench.end_case()


# --


NEVER_FITS = {
    "five samples": {**block_body(13), "n": 5},
    "five prompts": {"model": MODEL, "prompt": [[1]] * 5, "max_tokens": 13 * 16},
    "one block too many": {"model": MODEL, "prompt": [[1]] * 65, "max_tokens": 1},
}


@pytest.mark.parametrize("name", NEVER_FITS)
async def test_a1_what_can_never_fit_is_refused_at_once_with_the_numbers(bench: Bench, name: str) -> None:
    await bench.std()
    began = time.monotonic()
    await bench.std()
    undisturbed_s = time.monotonic() - began

    bench.watch.forget_depth()
    tag = bench.tag("a1")
    began = time.monotonic()
    refused = await bench.post(COMPLETIONS, NEVER_FITS[name], tag=tag)
    served = await bench.std()
    took_s = time.monotonic() - began

    assert refused.status == 400, refused
    assert refused.error["code"] == "kv_budget_exceeded"
    assert str(BUDGET_BLOCKS) in refused.error["message"]
    assert "65" in refused.error["message"]
    assert refused.head.get("x-should-retry") == "false"
    assert refused.head.get("retry-after") is None
    assert refused.head.get("retry-after-ms") is None
    assert served.status == 200
    assert took_s < 5 * undisturbed_s + LENIENT_S
    assert bench.watch.deepest_queue == 0
    assert bench.arrivals(tag) == 0
    await bench.end_case()


async def test_a1_exactly_the_whole_budget_is_served(bench: Bench) -> None:
    answered = await bench.post(COMPLETIONS, block_body(BUDGET_BLOCKS), tag=bench.tag("a1-whole"))
    assert (answered.status, answered.head.number("x-kvgate-blocks")) == (200, BUDGET_BLOCKS)
    await bench.end_case()


# --


async def test_a2_small_ones_pass_the_big_one_a_bounded_number_of_times() -> None:
    passes = 16
    async with running_bench(KVGATE_BACKFILL_PASSES=str(passes)) as bench:
        big_tag, small_tag = bench.tag("big"), bench.tag("small")
        bench.fake.script(small_tag, bench.engine.completion(first_gap_s=0.005))
        async with bench.everything_taken(32) as gate, await bench.wait_in_line(56, big_tag) as big:
            # First half: ten that fit are not kept waiting by one that does not.
            ten = await asyncio.gather(*(bench.post(COMPLETIONS, block_body(4), tag=small_tag) for _ in range(10)))
            assert [found.status for found in ten] == [200] * 10
            assert bench.arrivals(big_tag) == 0

            # Second half: small ones without end do not keep it waiting for ever.
            over = asyncio.Event()

            async def without_end() -> None:
                while not over.is_set():
                    assert (await bench.post(COMPLETIONS, block_body(4), tag=small_tag)).status == 200

            stream = [asyncio.create_task(without_end()) for _ in range(4)]
            await eventually(lambda: bench.arrivals(small_tag) == passes)
            await bench.state_where(lambda state: state.in_flight == 1, "room collects for the head")
            gate.set()
            assert (await big.answer()).status == 200
            over.set()
            await asyncio.gather(*stream)
            started = bench.fake.tagged(big_tag)[0].head_at
            passed = [small for small in bench.fake.tagged(small_tag) if small.head_at < started]
            assert len(passed) == passes
        await bench.end_case()


async def test_a2_no_pass_is_given_where_none_is_allowed() -> None:
    async with running_bench(KVGATE_BACKFILL_PASSES="0") as bench:
        big_tag, small_tag = bench.tag("big"), bench.tag("small")
        async with (
            bench.everything_taken(32) as gate,
            await bench.wait_in_line(56, big_tag) as big,
            await bench.wait_in_line(4, small_tag) as small,
        ):
            assert bench.arrivals(small_tag) == 0
            gate.set()
            assert (await big.answer()).status == 200
            assert (await small.answer()).status == 200
            assert bench.fake.tagged(big_tag)[0].head_at <= bench.fake.tagged(small_tag)[0].head_at
        await bench.end_case()


# --


@pytest.mark.parametrize("how", ["vanish", "hang_up"])
async def test_a3_places_of_queued_clients_that_leave_are_free_at_once(bench: Bench, how: str) -> None:
    tag, after = bench.tag("departed"), bench.tag("after")
    async with bench.everything_taken(), full_line(bench, tag) as waiting:
        refused = await bench.post(COMPLETIONS, block_body(2), tag=tag)
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        for client in waiting:
            getattr(client, how)()
        await bench.state_where(lambda state: state.queued == 0, "the line is empty")
        async with await bench.wait_in_line(2, after) as newcomer:
            assert bench.arrivals(after) == 0
            newcomer.vanish()
            await bench.state_where(lambda state: state.queued == 0, "the newcomer left as well")
    await bench.end_case()
    assert bench.arrivals(tag) == 0
    assert bench.arrivals(after) == 0


# --


ROLE_ERROR = b'{"error":{"message":"Unexpected role","type":"BadRequestError","param":"messages","code":400}}'
MODEL_ERROR = b'{"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","param":"model","code":404}}'
TIMES = 100


async def hundred(bench: Bench, body: dict[str, object], tag: str) -> list[Answer]:
    """The same request a hundred times, ten at once."""
    limit = asyncio.Semaphore(10)

    async def one() -> Answer:
        async with limit:
            return await bench.post(CHAT, body, tag=tag)

    return await asyncio.gather(*(one() for _ in range(TIMES)))


REFUSED_BY_ENGINE = {
    "bad role": (chat_body(1, messages=[{"role": "nobody", "content": "ping"}]), 400, ROLE_ERROR),
    "unknown model": (chat_body(1, model="nope"), 404, MODEL_ERROR),
    "a value that the engine refuses": (chat_body(1, temperature=-3), 400, ROLE_ERROR),
}


@pytest.mark.parametrize("name", REFUSED_BY_ENGINE)
async def test_a6_a_hundred_refusals_by_the_engine_leave_no_trace(bench: Bench, name: str) -> None:
    body, status, error = REFUSED_BY_ENGINE[name]
    before = await bench.idle()
    tag = bench.tag("a6")
    bench.fake.script(tag, answer(status, error, [(b"content-type", b"application/json")]))
    answers = await hundred(bench, body, tag)
    assert {(found.status, found.body) for found in answers} == {(status, error)}
    await bench.full()
    after = await bench.idle()
    assert after.outcomes["engine_refused"] - before.outcomes.get("engine_refused", 0) == TIMES
    assert after.received - before.received == TIMES + 1
    await bench.end_case()


REFUSED_BY_US = {
    "over the budget": (chat_body(224, n=5), 400, "kv_budget_exceeded"),
    "malformed": (chat_body(224, n="many"), 400, "invalid_request"),
    "prompt over the context": (chat_body(16, messages=[{"role": "user", "content": "ping " * 2000}]), 400, None),
}


@pytest.mark.parametrize("name", REFUSED_BY_US)
async def test_a6_a_hundred_refusals_of_ours_leave_no_trace(bench: Bench, name: str) -> None:
    body, status, code = REFUSED_BY_US[name]
    before = await bench.idle()
    tag = bench.tag("a6")
    answers = await hundred(bench, body, tag)
    assert {(found.status, found.error["code"]) for found in answers} == {(status, code or "context_length_exceeded")}
    assert bench.arrivals(tag) == 0
    await bench.full()
    after = await bench.idle()
    assert after.received - before.received == TIMES + 1
    assert sum(after.outcomes.values()) - sum(before.outcomes.values()) == TIMES + 1
    await bench.end_case()


async def test_a6_a_hundred_refusals_from_a_full_line_leave_no_trace(bench: Bench) -> None:
    tag, line = bench.tag("a6"), bench.tag("line")
    async with bench.everything_taken() as gate, full_line(bench, line) as waiting:
        answers = await hundred(bench, chat_body(16), tag)
        assert {(found.status, found.error["code"]) for found in answers} == {(429, "queue_full")}
        state = await bench.gateway.state()
        assert (state.queued, state.held_blocks) == (QUEUE_REQUESTS, BUDGET_BLOCKS)
        gate.set()
        assert [(await client.answer()).status for client in waiting] == [200] * QUEUE_REQUESTS
    assert bench.arrivals(tag) == 0
    await bench.full()
    await bench.end_case()


# --


@pytest.mark.parametrize(("target", "body"), [(CHAT, chat_body(16)), (COMPLETIONS, block_body(2))])
async def test_a10_a_refusal_from_a_full_line_can_be_acted_on(bench: Bench, target: str, body: dict[str, object]) -> None:
    before = (await bench.gateway.metrics()).by("kvgate_requests_total", "outcome")
    tag, line, callers = bench.tag("a10"), bench.tag("line"), 30
    async with bench.everything_taken() as gate, full_line(bench, line) as waiting:
        delays_ms = list[int]()
        async with await Connection.open(bench.gateway.url) as connection:
            for _ in range(callers):
                raw = connection.request_bytes("POST", target, json.dumps(body).encode(), {"x-tag": tag})
                await connection.send_raw(raw)
                refused = await connection.answer()
                assert refused.status == 429
                assert refused.error["code"] == "queue_full"
                whole_s, exact_ms = refused.head.number("retry-after"), refused.head.number("retry-after-ms")
                assert 1 <= whole_s <= 120
                assert abs(whole_s * 1000 - exact_ms) <= 1000  # the same instant, told twice
                assert refused.head.get("x-kvgate-request-id")
                delays_ms.append(exact_ms)
            # The same connection, after thirty refusals, still serves.
            assert (await connection.ask("GET", "/health")).status == 200
        # Callers that were refused together do not come back together.
        assert max(Counter(delays_ms).values()) <= 3, delays_ms
        gate.set()
        assert [(await client.answer()).status for client in waiting] == [200] * QUEUE_REQUESTS
    assert bench.arrivals(tag) == 0
    await bench.idle()
    after = await bench.gateway.metrics()
    rose = {name: total - before.get(name, 0) for name, total in after.by("kvgate_requests_total", "outcome").items()}
    assert {name: total for name, total in rose.items() if total} == {
        "refused_queue_full": callers,
        "completed": QUEUE_REQUESTS + 1,
    }
    assert after.total("kvgate_rejections_total", reason="queue_full") >= callers
    await bench.end_case()


async def test_a10_a_wait_until_the_deadline_is_told_as_such() -> None:
    async with running_bench(KVGATE_QUEUE_TIMEOUT="300ms") as bench, bench.everything_taken():
        tag = bench.tag("late")
        late = await bench.post(COMPLETIONS, block_body(2), tag=tag)
        assert (late.status, late.error["code"]) == (429, "queue_timeout")
        assert late.head.number("retry-after") >= 1
        assert late.head.number("x-kvgate-queue-ms") >= 200
        # One whose own patience is over is not invited back: nobody waits for that answer any more.
        impatient = await bench.post(COMPLETIONS, block_body(2), tag=tag, headers={"x-stainless-timeout": "0.1"})
        assert (impatient.status, impatient.error["code"]) == (429, "queue_timeout")
        assert impatient.head.get("x-should-retry") == "false"
        assert bench.arrivals(tag) == 0
