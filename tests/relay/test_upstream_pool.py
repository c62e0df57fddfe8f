"""The pool: which connection a request gets, what happens when it is dead, and what is left open."""

import asyncio
import socket
import ssl
import time
from pathlib import Path

import pytest

from gateway.core.errors import InvalidRequest, UpstreamFailed, UpstreamStage
from gateway.relay.upstream_pool import UpstreamPool
from gateway.relay.upstream_request import write_request
from support.fake_upstream import (
    FakeExchange,
    FakeUpstream,
    answer,
    chunk,
    close_before_head,
    eventually,
    head,
    never_answer,
    reset_before_head,
    send_raw,
    stream,
)
from support.relay_calls import PoolMaker, failure_of, post, whole

OK = head(200, [(b"content-length", b"2")]) + b"ok"


async def failure_of_send(pool: UpstreamPool) -> UpstreamFailed:
    with pytest.raises(UpstreamFailed) as failed:
        await post(pool)
    assert pool.open_connections == 0
    return failed.value


# Reuse.


async def test_one_connection_serves_calls_that_follow_each_other_in_every_lasting_framing(
    upstream: FakeUpstream, pool: UpstreamPool
) -> None:
    upstream.script("length", answer())
    upstream.script("chunked", answer(framing="chunked"))
    for tag in ["length", "chunked"] * 20:
        exchange = await post(pool, tag)
        assert (await whole(exchange))[1] == b"ok"
        assert exchange.reused is (len(upstream.requests) > 1)
    assert upstream.connections_seen == 1
    assert (pool.open_connections, pool.idle_connections) == (1, 1)


async def test_a_request_can_be_sent_at_once_while_a_connection_is_free(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    request = write_request(b"POST", b"/", [(b"host", b"x")], b"{}")
    assert pool.send_at_once(request) is None
    assert pool.open_connections == 0
    await whole(await post(pool))
    await eventually(lambda: pool.idle_connections == 1)
    exchange = pool.send_at_once(request)
    assert exchange is not None
    assert pool.send_at_once(request) is None
    assert (await whole(exchange))[1] == b"ok"
    assert upstream.connections_seen == 1


async def test_the_connection_used_last_is_used_first(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    for _ in range(3):
        exchanges = [await post(pool) for _ in range(3)]
        for exchange in exchanges:
            await whole(exchange)
    await eventually(lambda: pool.idle_connections == 3)
    last = upstream.requests[-1].connection
    await whole(await post(pool))
    await whole(await post(pool))
    assert [request.connection for request in upstream.requests[-2:]] == [last, last]
    assert upstream.connections_seen == 3


NOT_FOR_REUSE = {
    "the engine says so": head(200, [(b"content-length", b"2"), (b"connection", b"close")]) + b"ok",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "it states no patience at all": head(200, [(b"content-length", b"2"), (b"keep-alive", b"timeout=0, max=9")]) + b"ok",
    "another answer behind": OK + OK,
    "nonsense behind": OK + b"nonsense",
    "a body where none may be": head(204) + b"body",
    "nonsense behind the last chunk": head(200, [(b"transfer-encoding", b"chunked")]) + chunk(b"ok") + chunk(b"") + b"\0",
}


@pytest.mark.parametrize("raw", NOT_FOR_REUSE.values(), ids=NOT_FOR_REUSE.keys())
async def test_a_connection_that_cannot_be_trusted_is_closed_behind_its_answer(
    upstream: FakeUpstream, pool: UpstreamPool, raw: bytes
) -> None:
    upstream.script("a", send_raw(raw, then="hang"))
    for _ in range(2):
        _, data = await whole(await post(pool, "a"))
        assert data in (b"ok", b"")
    assert pool.open_connections == 0
    assert upstream.connections_seen == 2


async def test_bytes_that_nobody_asked_for_close_an_idle_connection(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    later = asyncio.Event()

    async def speak_again(exchange: FakeExchange) -> None:
        await exchange.send(OK)
        await later.wait()
        await exchange.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await asyncio.Event().wait()

    upstream.script("a", speak_again)
    await whole(await post(pool, "a"))
    assert pool.idle_connections == 1
    later.set()
    await eventually(lambda: pool.open_connections == 0)
    assert (await whole(await post(pool)))[1] == b"ok"


async def test_a_connection_that_the_engine_closed_is_not_kept(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    await whole(await post(pool))
    upstream.drop_connections()
    await eventually(lambda: pool.open_connections == 0)
    exchange = await post(pool)
    assert not exchange.reused
    await whole(exchange)


async def test_a_connection_is_not_used_beyond_its_idle_limit_and_closed_soon_after(
    upstream: FakeUpstream, make_pool: PoolMaker
) -> None:
    pool = make_pool(idle_limit_s=0.05)
    for _ in range(2):
        await whole(await post(pool))
        time.sleep(0.06)  # noqa: ASYNC251 - nothing may run meanwhile, so that only the hand-out can notice
    assert upstream.connections_seen == 2
    await whole(await post(pool))
    await eventually(lambda: pool.open_connections == 0)
    await eventually(lambda: upstream.connections_open == 0)


async def test_a_stated_keep_alive_takes_the_place_of_our_own_limit(upstream: FakeUpstream, make_pool: PoolMaker) -> None:
    pool = make_pool(idle_limit_s=0.01)
    upstream.script("patient", answer(headers=[(b"keep-alive", b"timeout=30, max=100")]))
    await whole(await post(pool, "patient"))
    await asyncio.sleep(0.05)
    assert (await post(pool, "patient")).reused
    assert upstream.connections_seen == 1


async def test_no_more_than_max_idle_are_kept(upstream: FakeUpstream, make_pool: PoolMaker) -> None:
    pool = make_pool(max_idle=2)
    for exchange in [await post(pool) for _ in range(5)]:
        await whole(exchange)
    assert (pool.open_connections, pool.idle_connections) == (2, 2)
    await eventually(lambda: upstream.connections_open == 2)


# Opening.


async def test_a_refused_connection_is_named(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    await upstream.stop()
    failure = await failure_of_send(pool)
    assert failure.stage is UpstreamStage.CONNECT
    assert f"127.0.0.1:{upstream.port}" in failure.detail


async def test_a_host_name_that_cannot_be_is_a_failure_to_connect(make_pool: PoolMaker) -> None:
    assert (await failure_of_send(make_pool(host="a" * 70 + ".invalid"))).stage is UpstreamStage.CONNECT


async def test_a_host_that_does_not_accept_is_given_up_in_time(make_pool: PoolMaker) -> None:
    with socket.socket() as deaf, socket.socket() as filler, socket.socket() as another:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for one in (filler, another):  # they fill the line of those who wait to be accepted
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        failure = await failure_of_send(make_pool(port=deaf.getsockname()[1], connect_timeout_s=0.1))
    assert failure.stage is UpstreamStage.CONNECT_TIMEOUT
    assert "0.1 s" in failure.detail


async def test_a_connection_reset_on_accept_is_a_failure_and_sent_once_at_most(
    upstream: FakeUpstream, pool: UpstreamPool
) -> None:
    upstream.reset_on_accept = True
    for _ in range(20):
        with pytest.raises(UpstreamFailed) as failed:
            await whole(await post(pool))
        assert failed.value.stage in (UpstreamStage.CONNECT, UpstreamStage.HEAD)
    assert upstream.requests == []
    assert upstream.connections_seen <= 20


async def test_a_cancelled_call_has_sent_nothing_and_leaves_nothing(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    for yields in range(6):
        call = asyncio.create_task(post(pool))
        for _ in range(yields):
            await asyncio.sleep(0)
        call.cancel()
        try:
            (await call).abort(None)  # it was sent before it could be cancelled
        except asyncio.CancelledError:
            pass
    assert pool.open_connections == 0
    await eventually(lambda: upstream.connections_open == 0)


async def test_a_request_that_would_break_out_of_its_line_is_refused_before_it_connects(
    upstream: FakeUpstream, pool: UpstreamPool
) -> None:
    with pytest.raises(InvalidRequest):
        await pool.send(b"POST", b"/", [(b"x-a", b"1\r\nx-b: 2")], b"")
    assert upstream.connections_seen == 0


async def test_u4_the_environment_redirects_nothing(
    upstream: FakeUpstream, pool: UpstreamPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert (await whole(await post(pool)))[1] == b"ok"


CERTIFICATE = Path(__file__).with_name("loopback.pem")


async def test_tls_is_spoken_to_an_engine_that_is_trusted_and_its_errors_are_named(
    upstream: FakeUpstream, make_pool: PoolMaker
) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(CERTIFICATE)
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with FakeUpstream(default=answer(framing="chunked"), tls=serving) as engine:
        engine.script("cut", stream(1, then="close"))
        engine.script("again", close_before_head(), answer())
        pool = make_pool(port=engine.port, tls=trusting)
        for _ in range(3):
            assert (await whole(await post(pool, body=b"x" * 300_000)))[1] == b"ok"
        assert (await whole(await post(pool, "again")))[1] == b"ok"
        assert engine.connections_seen == 2
        assert (await failure_of(await post(pool, "cut"))).stage is UpstreamStage.BODY
        assert pool.open_connections == 0
        by_name = make_pool(port=engine.port, tls=trusting, server_hostname="localhost")
        assert (await whole(await post(by_name)))[1] == b"ok"
        by_name.close()

        def answer_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 No\r\n\r\n")
            writer.close()

        plain = await asyncio.start_server(answer_plainly, "127.0.0.1")
        for wrong in (
            make_pool(port=engine.port, tls=ssl.create_default_context()),
            make_pool(port=engine.port, tls=trusting, server_hostname="elsewhere.example"),
            make_pool(port=plain.sockets[0].getsockname()[1], tls=trusting),
        ):
            failure = await failure_of_send(wrong)
            assert failure.stage is UpstreamStage.CONNECT
            assert "TLS" in failure.detail
        plain.close()
        silent = make_pool(tls=trusting, connect_timeout_s=0.1)  # the plain fake waits for the end of a line
        assert (await failure_of_send(silent)).stage is UpstreamStage.CONNECT_TIMEOUT


# Closing, and many at once.


async def test_closing_cuts_what_is_open_and_refuses_what_comes(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("silent", never_answer())
    await whole(await post(pool))
    silent, streaming = await post(pool, "silent"), await post(pool, "silent")
    await whole(await post(pool))
    await eventually(lambda: upstream.open_requests("silent") == 2)
    pool.close()
    pool.close()
    assert (pool.open_connections, pool.idle_connections) == (0, 0)
    for exchange in (silent, streaming):
        assert (await failure_of(exchange)).stage is UpstreamStage.HEAD
    await eventually(lambda: upstream.connections_open == 0)
    assert (await failure_of_send(pool)).stage is UpstreamStage.CONNECT


async def test_closing_while_one_connects_fails_it(pool: UpstreamPool) -> None:
    call = asyncio.create_task(post(pool))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(UpstreamFailed):
        await call


async def test_u3_error_answers_give_their_connections_back(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    body = b'{"error": {"message": "no", "code": 422}}'
    upstream.script("bad", answer(422, body, [(b"content-type", b"application/json")]))

    async def call() -> None:
        got, data = await whole(await post(pool, "bad", b'{"stream": true}'))
        assert (got.status, got.content_type, data) == (422, b"application/json", body)

    for _ in range(300):
        await call()
    assert upstream.connections_seen == 1
    await asyncio.gather(*(call() for _ in range(300)))
    assert pool.open_connections == pool.idle_connections <= 256
    got, data = await whole(await post(pool))
    assert (got.status, data) == (200, b"ok")


async def test_failures_of_every_kind_leave_no_connection(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    pool.backend_changed(is_serving=False, seats=None)  # so that none lies ready that was never used
    upstream.script("reset", reset_before_head())
    upstream.script("cut", stream(2, then="reset"))
    upstream.script("garbage", send_raw(b"garbage\r\n\r\n", then="hang"))
    upstream.script("refused", answer(503, framing="close"))

    async def call(tag: str) -> None:
        try:
            await whole(await post(pool, tag))
        except UpstreamFailed:
            pass

    await asyncio.gather(*(call(tag) for tag in ["reset", "cut", "garbage", "refused"] * 20))
    assert pool.open_connections == 0
    await eventually(lambda: upstream.open_requests() == 0)
