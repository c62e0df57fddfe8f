"""The one safe retry: a request on a connection that had died idle, and never one that may have generated (U-1, U-2)."""

import asyncio

import pytest

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.relay.upstream_pool import UpstreamPool
from support.fake_upstream import (
    Behaviour,
    FakeExchange,
    FakeUpstream,
    answer,
    close_before_head,
    eventually,
    head,
    reset_before_head,
    send_raw,
    stream,
)
from support.relay_calls import PoolMaker, failure_of, post, whole


async def test_u1_an_engine_that_drops_idle_connections_costs_no_request(upstream: FakeUpstream, make_pool: PoolMaker) -> None:
    upstream.drop_idle_after_s = 0.05

    async def calls(pool: UpstreamPool) -> int:
        reused = 0
        for number in range(25):
            exchange = await post(pool, body=b"%d" % number)
            got, data = await whole(exchange)
            assert (got.status, data) == (200, b"ok")
            reused += exchange.reused
            await asyncio.sleep(0.045 + (number % 11) / 1000)
        return reused

    assert sum(await asyncio.gather(*(calls(make_pool()) for _ in range(4)))) > 0
    assert len(upstream.requests) == 100


@pytest.mark.parametrize("death", [close_before_head(), reset_before_head()], ids=["closed", "reset"])
@pytest.mark.parametrize("body", [b"small", b"large" * 100_000], ids=["small", "large"])
async def test_a_reused_connection_that_dies_before_any_byte_is_retried_once_unseen(
    upstream: FakeUpstream, pool: UpstreamPool, death: Behaviour, body: bytes
) -> None:
    upstream.script("again", death, answer())
    await whole(await post(pool))
    exchange = await post(pool, "again", body)
    ends: list[bool] = []
    exchange.on_end(lambda: ends.append(True))
    got, data = await whole(exchange)
    assert (got.status, data, ends) == (200, b"ok", [True])
    assert not exchange.reused
    assert [request.body for request in upstream.tagged("again")] == [body, body]


async def test_the_retry_needs_nobody_who_waits_for_it(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("again", close_before_head(), answer())
    await whole(await post(pool))
    exchange = await post(pool, "again")
    await eventually(lambda: exchange.is_ended)
    assert (await whole(exchange))[1] == b"ok"


async def test_there_is_only_one_retry(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("again", close_before_head())
    await whole(await post(pool))
    assert (await failure_of(await post(pool, "again"))).stage is UpstreamStage.HEAD
    assert len(upstream.tagged("again")) == 2
    assert pool.open_connections == 0


@pytest.mark.parametrize(
    "death",
    [
        close_before_head(),
        reset_before_head(),
        send_raw(b"HTTP/1.1 200 O", then="close"),
        stream(1, then="close"),
        stream(1, then="reset"),
    ],
)
async def test_u2_what_a_fresh_connection_was_given_is_never_sent_again(
    upstream: FakeUpstream, pool: UpstreamPool, death: Behaviour
) -> None:
    upstream.script("once", death)
    assert (await failure_of(await post(pool, "once"))).stage in (UpstreamStage.HEAD, UpstreamStage.BODY)
    assert len(upstream.tagged("once")) == 1


@pytest.mark.parametrize("first", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", head(200, [(b"content-length", b"2")])])
async def test_u2_after_the_first_byte_of_an_answer_nothing_is_sent_again(
    upstream: FakeUpstream, pool: UpstreamPool, first: bytes
) -> None:
    upstream.script("once", send_raw(first, then="close"))
    await whole(await post(pool))
    exchange = await post(pool, "once")
    assert exchange.reused
    await failure_of(exchange)
    assert len(upstream.tagged("once")) == 1


async def test_u2_a_reused_connection_that_dies_late_may_have_generated_and_is_not_retried(
    upstream: FakeUpstream, make_pool: PoolMaker
) -> None:
    pool = make_pool(retry_window_s=0.02)

    async def die_late(exchange: FakeExchange) -> None:
        await exchange.body()
        await asyncio.sleep(0.1)
        exchange.close()

    upstream.script("once", die_late)
    await whole(await post(pool))
    exchange = await post(pool, "once")
    assert exchange.reused
    assert (await failure_of(exchange)).stage is UpstreamStage.HEAD
    assert len(upstream.tagged("once")) == 1


async def test_a_retry_that_cannot_connect_says_so(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    await whole(await post(pool))
    connection_is_there = await post(pool)
    await upstream.stop()
    assert (await failure_of(connection_is_there)).stage is UpstreamStage.CONNECT


async def test_giving_up_while_a_retry_connects_wakes_the_reader_at_once(
    upstream: FakeUpstream, make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool()
    upstream.script("again", close_before_head())
    await whole(await post(pool))
    exchange = await post(pool, "again")
    reader = asyncio.create_task(exchange.head())
    connecting = asyncio.Event()

    async def never(*_: object) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pool.openings, "_open_one", never)
    await asyncio.wait_for(connecting.wait(), 5)
    exchange.abort(None)
    with pytest.raises(UpstreamFailed):
        await reader
