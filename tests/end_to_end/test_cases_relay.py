"""Cases R-1 to R-4: every way an answer can go, and that each gives back what it held, once, at its end and not before."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.bench import CHAT, COMPLETIONS, TWIN_CAP, Bench, block_body, chat_body, running_bench
from support.endings import AFTER, BEFORE, check_told, rise
from support.fake_upstream import (
    Behaviour,
    FakeExchange,
    Header,
    answer,
    chunk,
    close_before_head,
    eventually,
    head,
    never_answer,
    reset_before_head,
    send_raw,
)
from support.gates import DONE, EVENT_STREAM, chat_event, held_head, held_stream, ticking_stream

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")


# --


async def test_r1_two_hundred_streams_that_vanish_at_random_leave_nothing_held() -> None:
    odds, clients = random.Random(1), 200
    async with running_bench(KVGATE_QUEUE_REQUESTS="200") as bench:
        tag = bench.tag("r1")
        bench.fake.script(tag, ticking_stream(gap_s=0.02))

        async def come_and_go() -> None:
            stay_s = odds.uniform(0, 0.5)
            async with await bench.open(COMPLETIONS, block_body(3, stream=True), tag=tag) as client:
                await asyncio.sleep(stay_s)
                client.vanish()

        await asyncio.gather(*(come_and_go() for _ in range(clients)))
        state = await bench.idle()
        ends = {name: count for name, count in state.outcomes.items() if name.startswith("client_gone")}
        assert sum(ends.values()) == state.received == clients, state.outcomes
        assert ends.get("client_gone_streaming"), ends
        await bench.end_case()


# --


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def short_clocks() -> AsyncIterator[Bench]:
    """A bench whose patience with the engine ends within a second."""
    async with running_bench(
        KVGATE_FIRST_TOKEN_TIMEOUT="400ms",
        KVGATE_STALL_TIMEOUT="400ms",
        KVGATE_TOTAL_TIMEOUT="800ms",
        KVGATE_QUEUE_TIMEOUT="3s",
        KVGATE_QUEUE_REQUESTS="64",
    ) as running:
        yield running


TIMES = 20


def plain_error(status: int) -> Behaviour:
    return answer(status, b'{"error":{"message":"no","type":"x","param":null,"code":%d}}' % status, [JSON])


def cut_body(then: str) -> Behaviour:
    """Half of a promised body, then the end of the connection."""
    return send_raw(head(200, [JSON, (b"content-length", b"1000")]) + b'{"id":', then=then)


def cut_stream(then: str) -> Behaviour:
    """Two events of a stream, then what `send_raw` calls `then`."""
    return send_raw(head(200, EVENT_STREAM), chunk(chat_event("one ")), chunk(chat_event("two ")), then=then)


def whole_then_reset() -> Behaviour:
    """A good answer, and a reset as soon as it is out: closing such a connection may itself fail."""

    async def behave(exchange: FakeExchange) -> None:
        await answer(200, b"{}", [JSON])(exchange)
        await asyncio.sleep(0.005)
        exchange.reset()

    return behave


FAILURES: dict[str, tuple[Behaviour, bool, set[int], set[str]]] = {
    # name: what the upstream does, whether it is asked to stream, the statuses and the outcomes that are right
    **{
        f"{name}, {'streamed' if stream else 'plain'}": (behaviour, stream, statuses, outcomes)
        for stream in (False, True)
        for name, (behaviour, statuses, outcomes) in {
            "reset before the head": (reset_before_head(), {502}, {BEFORE}),
            "closed before the head": (close_before_head(), {502}, {BEFORE}),
            "half a head": (send_raw(b"HTTP/1.1 200 OK\r\ncontent-ty", then="close"), {502}, {BEFORE}),
            "no HTTP at all": (send_raw(b"+OK ready\r\n\r\n", then="close"), {502}, {BEFORE}),
            "says 502": (plain_error(502), {502}, {BEFORE}),
            "says 503": (plain_error(503), {503}, {BEFORE}),
            "says 504": (plain_error(504), {504}, {BEFORE}),
        }.items()
    },
    "never answers, plain": (never_answer(), False, {504}, {"timeout_total"}),
    "never answers, streamed": (never_answer(), True, {504}, {"timeout_first_token"}),
    "body reset": (cut_body("reset"), False, {200}, {AFTER}),
    "body closed short": (cut_body("close"), False, {200}, {AFTER}),
    "body hangs": (cut_body("hang"), False, {200}, {"timeout_total"}),
    "stream reset": (cut_stream("reset"), True, {200}, {AFTER}),
    "stream closed short": (cut_stream("close"), True, {200}, {AFTER}),
    "stream hangs": (cut_stream("hang"), True, {200}, {"timeout_stall"}),
    "stream head and then nothing": (send_raw(head(200, EVENT_STREAM), then="hang"), True, {200}, {"timeout_first_token"}),
    "whole, then a reset": (whole_then_reset(), False, {200}, {"completed"}),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_r2_every_failure_of_the_upstream_is_told_and_releases_once(short_clocks: Bench, name: str) -> None:
    bench = short_clocks
    behaviour, stream, statuses, outcomes = FAILURES[name]
    before = await bench.idle()
    tag = bench.tag("r2")
    bench.fake.script(tag, behaviour)
    answers = await asyncio.gather(*(bench.post(CHAT, chat_body(16, stream=stream), tag=tag) for _ in range(TIMES)))
    for found in answers:
        assert found.status in statuses, found
        check_told(found)
    after = await bench.idle()
    assert rise(before.outcomes, after.outcomes).keys() <= outcomes, rise(before.outcomes, after.outcomes)
    assert sum(rise(before.outcomes, after.outcomes).values()) == TIMES
    metrics = await bench.gateway.metrics()
    assert metrics.total("kvgate_in_flight") == metrics.total("kvgate_held_blocks") == 0
    await bench.end_case()


@pytest.mark.parametrize("stream", [False, True])
async def test_r2_an_upstream_that_refuses_connections_is_told_and_comes_back(stream: bool) -> None:
    async with running_bench(KVGATE_QUEUE_TIMEOUT="1s") as bench:
        await bench.full()
        before = await bench.idle()
        await bench.fake.stop()
        answers = await asyncio.gather(*(bench.post(CHAT, chat_body(16, stream=stream)) for _ in range(TIMES)))
        # Two refusals in a row make it unhealthy; whoever waits then is told that nobody serves.
        assert {found.status for found in answers} <= {502, 503}
        for found in answers:
            check_told(found)
            assert found.head.number("retry-after") >= 1
        state = await bench.state_where(lambda state: state.is_idle, "IDLE")
        told = rise(before.outcomes, state.outcomes)
        assert told.keys() <= {BEFORE, "refused_no_backend", "timeout_queue"}, told
        assert sum(told.values()) == TIMES
        await bench.fake.start()
        await bench.state_where(lambda state: state.backend["healthy"], "seen as up", within_s=30)
        await bench.end_case()


async def test_r2_an_upstream_that_resets_new_connections_is_told(short_clocks: Bench) -> None:
    bench = short_clocks
    before = await bench.idle()
    bench.fake.drop_connections()
    await eventually(lambda: bench.fake.connections_open == 0)
    bench.fake.reset_on_accept = True
    answers = [await bench.post(CHAT, chat_body(16)) for _ in range(3)]
    bench.fake.reset_on_accept = False
    assert {found.status for found in answers} <= {502, 503}
    for found in answers:
        check_told(found)
    await bench.state_where(lambda state: state.is_idle and state.backend["healthy"], "IDLE and healthy", within_s=30)
    told = rise(before.outcomes, (await bench.gateway.state()).outcomes)
    assert sum(told.values()) == 3
    await bench.end_case()


# --


async def test_r3_a_second_that_does_not_fit_reaches_the_engine_after_the_last_byte_of_the_first(bench: Bench) -> None:
    gate, first_tag, second_tag = asyncio.Event(), bench.tag("r3-first"), bench.tag("r3-second")
    bench.fake.script(first_tag, held_stream(gate, before=5, after=5))
    async with await bench.open(CHAT, chat_body(TWIN_CAP, stream=True), tag=first_tag) as first:
        assert (await first.head()).is_event_stream
        await first.read_until(b"before-4")
        async with await bench.open(CHAT, chat_body(TWIN_CAP, stream=True), tag=second_tag) as second:
            await bench.state_where(lambda state: state.queued == 1, "the second waits")
            assert bench.arrivals(second_tag) == 0
            gate.set()
            assert (await first.rest()).events[-1] == b"[DONE]"
            assert (await second.answer()).events[-1] == b"[DONE]"
    (first_seen,), (second_seen,) = bench.fake.tagged(first_tag), bench.fake.tagged(second_tag)
    assert first_seen.ended_at is not None
    assert second_seen.head_at >= first_seen.ended_at
    await bench.end_case()


async def test_r3_streaming_twins_are_never_open_together(bench: Bench) -> None:
    tag = bench.tag("r3-twins")
    bench.fake.script(tag, bench.engine.completion(events=5, gap_s=0.02))
    answers = await asyncio.gather(*(bench.post(CHAT, chat_body(TWIN_CAP, stream=True), tag=tag) for _ in range(4)))
    assert all(found.events[-1] == b"[DONE]" for found in answers)
    assert bench.fake.high_water(tag) == 1
    await bench.end_case()


# --


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["vanish", "hang_up"])
async def test_r4_a_client_that_leaves_a_silent_engine_before_the_head_is_noticed(bench: Bench, how: str, stream: bool) -> None:
    before, tag = await bench.idle(), bench.tag("r4")
    bench.fake.script(tag, never_answer())
    async with await bench.open(CHAT, chat_body(TWIN_CAP, stream=stream), tag=tag) as client:
        await eventually(lambda: bench.fake.open_requests(tag) == 1)
        getattr(client, how)()
        await eventually(lambda: bench.fake.tagged(tag)[0].end == "client gone")
    after = await bench.idle()
    assert rise(before.outcomes, after.outcomes) == {"client_gone_waiting": 1}
    await bench.end_case()


@pytest.mark.parametrize("how", ["vanish", "hang_up"])
async def test_r4_a_client_that_leaves_right_behind_the_end_mark_has_its_whole_answer(bench: Bench, how: str) -> None:
    """Load tools close there, before the engine has closed its answer: the request counted as one whose client had gone."""
    before, tag = await bench.idle(), bench.tag("r4")

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, EVENT_STREAM))
        for event in (chat_event("a"), chat_event("", "stop"), DONE):
            await exchange.send(chunk(event))
        await asyncio.Event().wait()

    bench.fake.script(tag, behave)
    async with await bench.open(CHAT, chat_body(TWIN_CAP, stream=True), tag=tag) as client:
        await client.head()
        await client.read_until(b"[DONE]")
        getattr(client, how)()
        await eventually(lambda: bench.fake.tagged(tag)[0].end == "client gone")
    after = await bench.idle()
    assert rise(before.outcomes, after.outcomes) == {"completed": 1}
    await bench.end_case()


@pytest.mark.parametrize("how", ["vanish", "hang_up"])
async def test_r4_a_client_that_leaves_a_stream_that_fell_silent_is_noticed(bench: Bench, how: str) -> None:
    before, tag = await bench.idle(), bench.tag("r4")
    bench.fake.script(tag, held_stream(asyncio.Event()))
    async with await bench.open(CHAT, chat_body(TWIN_CAP, stream=True), tag=tag) as client:
        await client.head()
        await client.read_until(b"before-0")
        getattr(client, how)()
        await eventually(lambda: bench.fake.tagged(tag)[0].end == "client gone")
    after = await bench.idle()
    assert rise(before.outcomes, after.outcomes) == {"client_gone_streaming": 1}
    await bench.end_case()


async def test_r4_leaving_in_the_tick_of_the_first_byte_leaves_nothing_held(bench: Bench) -> None:
    before, times = await bench.idle(), 100
    odds = random.Random(4)
    for number in range(times):
        gate, tag = asyncio.Event(), bench.tag("r4-tick")
        bench.fake.script(tag, held_head(gate, ticking_stream()))
        async with await bench.open(CHAT, chat_body(TWIN_CAP, stream=True), tag=tag) as client:
            await eventually(lambda tag=tag: bench.fake.open_requests(tag) == 1)  # type: ignore[misc]
            gate.set()
            if number % 2:
                await asyncio.sleep(odds.uniform(0, 0.002))
            client.vanish()
        await eventually(lambda tag=tag: bench.fake.open_requests(tag) == 0)  # type: ignore[misc]
    after = await bench.idle()
    told = rise(before.outcomes, after.outcomes)
    assert told.keys() <= {"client_gone_waiting", "client_gone_streaming"}
    assert sum(told.values()) == times
    await bench.end_case()
