"""A first wave of requests, and the connections that lie ready before they are needed: when there are some, and when not."""

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_openings import AT_FIRST, AT_MOST
from gateway.relay.upstream_pool import UpstreamPool
from support.fake_upstream import FakeUpstream, answer, close_before_head, eventually, never_answer
from support.relay_calls import PoolMaker, post, whole

CERTIFICATE = Path(__file__).with_name("loopback.pem")


async def busy(pool: UpstreamPool, upstream: FakeUpstream, count: int) -> list[UpstreamExchange]:
    """Requests that are not answered."""
    upstream.script("silent", never_answer())
    already = upstream.open_requests("silent")
    exchanges = [await post(pool, "silent") for _ in range(count)]
    await eventually(lambda: upstream.open_requests("silent") == already + count)
    return exchanges


async def most_under_way(pool: UpstreamPool, calls: "asyncio.Future[list[None]]") -> int:
    most = 0
    while not calls.done():
        most = max(most, pool.openings.under_way)
        await asyncio.sleep(0)
    await calls
    return most


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_a_first_wave_of_500_is_served_by_connections_of_which_few_are_opened_at_once(
    make_pool: PoolMaker, is_tls: bool
) -> None:
    serving = trusting = None
    if is_tls:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(CERTIFICATE)
        trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with FakeUpstream(default=answer(), tls=serving) as engine:
        pool = make_pool(port=engine.port, tls=trusting, connect_timeout_s=30.0)

        async def call() -> None:
            assert (await whole(await post(pool)))[1] == b"ok"

        most = await most_under_way(pool, asyncio.gather(*(call() for _ in range(500))))
        assert AT_FIRST <= most <= AT_MOST
        assert pool.requests == 500
        assert pool.fresh_requests <= pool.openings.opened <= 500 + AT_FIRST
        pool.close()
        await eventually(lambda: engine.connections_open == 0)


async def test_a_connection_that_becomes_free_serves_who_waits_before_one_opens(
    upstream: FakeUpstream, make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool()
    holder = await post(pool)
    opened = asyncio.Event()
    open_one = pool.openings._open_one

    async def open_late() -> object:
        await opened.wait()
        return await open_one()

    monkeypatch.setattr(pool.openings, "_open_one", open_late)
    waiting = asyncio.create_task(post(pool))
    await eventually(lambda: pool.openings.under_way == 1)
    await whole(holder)
    exchange = await waiting
    assert exchange.reused
    await whole(exchange)
    assert upstream.connections_seen == 1
    opened.set()
    await eventually(lambda: pool.idle_connections == 2)
    assert (pool.requests, pool.fresh_requests) == (2, 1)


async def test_where_few_are_busy_none_is_opened_ahead(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    await busy(pool, upstream, 7)
    assert (pool.open_connections, pool.openings.under_way) == (7, 0)


async def test_an_eighth_of_those_that_are_busy_lie_ready_and_are_used(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    await busy(pool, upstream, 64)
    await eventually(lambda: pool.idle_connections == 8)
    fresh = pool.fresh_requests
    assert (await whole(await post(pool)))[1] == b"ok"
    assert pool.fresh_requests == fresh
    await eventually(lambda: pool.openings.under_way == 0)
    assert upstream.connections_seen == pool.open_connections <= 73, "one may have taken the place of that one"


@pytest.mark.parametrize(
    ("is_serving", "seats", "ready"), [(True, None, 2), (True, 17, 1), (True, 16, 0), (True, 8, 0), (False, None, 0)]
)
async def test_none_is_opened_ahead_beyond_the_engines_seats_nor_where_it_serves_nothing_new(
    upstream: FakeUpstream, pool: UpstreamPool, is_serving: bool, seats: int | None, ready: int
) -> None:
    pool.backend_changed(is_serving=is_serving, seats=seats)
    await busy(pool, upstream, 16)
    await eventually(lambda: pool.openings.under_way == 0)
    assert (pool.idle_connections, upstream.connections_seen) == (ready, 16 + ready)


async def test_without_requests_what_lay_ready_goes_cold_and_nothing_takes_its_place(
    upstream: FakeUpstream, make_pool: PoolMaker
) -> None:
    pool = make_pool(idle_limit_s=0.05)
    exchanges = await busy(pool, upstream, 32)
    await eventually(lambda: pool.idle_connections == 0 and pool.openings.opened >= 36)
    seen = upstream.connections_seen
    await asyncio.sleep(0.2)
    assert (upstream.connections_seen, pool.idle_connections) == (seen, 0)
    exchanges[0].abort(None)
    await eventually(lambda: upstream.open_requests("silent") == 31)
    await busy(pool, upstream, 1)
    await eventually(lambda: upstream.connections_seen > seen)


async def test_what_was_used_last_comes_before_what_was_opened_ahead(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    await busy(pool, upstream, 32)
    await eventually(lambda: pool.idle_connections == 4)
    await whole(await post(pool))
    used = upstream.requests[-1].connection
    await eventually(lambda: pool.openings.under_way == 0)
    await whole(await post(pool))
    assert upstream.requests[-1].connection == used


async def test_one_that_lay_ready_and_dies_at_once_is_sent_again_like_one_that_was_used(
    upstream: FakeUpstream, pool: UpstreamPool
) -> None:
    upstream.script("again", close_before_head(), answer())
    await busy(pool, upstream, 8)
    await eventually(lambda: pool.idle_connections == 1)
    exchange = await post(pool, "again")
    assert exchange.reused, "it may have been closed for idleness"
    assert (await whole(exchange))[1] == b"ok"
    assert len(upstream.tagged("again")) == 2


async def test_an_engine_that_is_gone_is_not_connected_to_ahead_of_need(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    held = await busy(pool, upstream, 16)
    await eventually(lambda: pool.idle_connections == 2)
    await upstream.stop()
    await eventually(lambda: pool.open_connections == 0)
    await eventually(lambda: all(exchange.is_ended for exchange in held))
    failed_before = pool.openings.failed
    for _ in range(20):
        with pytest.raises(UpstreamFailed) as failed:
            await post(pool)
        assert failed.value.stage is UpstreamStage.CONNECT
    assert pool.openings.failed - failed_before == 20
    await upstream.start()
    await busy(pool, upstream, 16)
    await eventually(lambda: pool.idle_connections == 2)


async def test_closing_while_a_wave_waits_fails_all_of_it(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    calls = [asyncio.create_task(post(pool)) for _ in range(200)]
    await asyncio.sleep(0)
    pool.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, UpstreamFailed) for outcome in outcomes)
    assert (pool.open_connections, pool.openings.under_way) == (0, 0)
    await eventually(lambda: upstream.connections_open == 0)


async def test_a_wave_that_gives_up_leaves_nothing(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    for yields in range(8):
        calls = [asyncio.create_task(post(pool)) for _ in range(100)]
        for _ in range(yields):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, UpstreamExchange):  # it was sent before it could be cancelled
                outcome.abort(None)
        assert pool.openings.under_way <= 100 // 8
    await eventually(lambda: pool.open_connections == pool.idle_connections)
    await eventually(lambda: upstream.connections_open == pool.idle_connections <= 32)
