"""One exchange: its answer in every framing, its end in every manner, and what waits in between."""

import asyncio
import time

import pytest

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.upstream_pool import UpstreamPool
from support.fake_upstream import (
    FakeExchange,
    FakeUpstream,
    answer,
    chunk,
    eventually,
    head,
    never_answer,
    send_raw,
    stream,
)
from support.relay_calls import PoolMaker, failure_of, post, rest_of, whole

CHUNKED = (b"transfer-encoding", b"chunked")
STALLED = UpstreamFailed(BackendName("fake"), UpstreamStage.STALL, "too slow")


# Answers that are whole.


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("body", [b"", b"x", b"tokens " * 40_000])
async def test_a_whole_answer_arrives_whole_in_every_framing(
    upstream: FakeUpstream, pool: UpstreamPool, framing: str, body: bytes
) -> None:
    upstream.script("a", answer(200, body, framing=framing))
    exchange = await post(pool, "a", b"question")
    got, data = await whole(exchange)
    assert (got.status, got.reason, got.content_type, data) == (200, b"Said So", b"text/plain", body)
    assert exchange.is_ended
    assert exchange.failure is None
    assert await exchange.read() == b""
    assert upstream.requests[0].body == b"question"


async def test_a_request_arrives_with_its_headers_in_order_and_one_length(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    headers = [
        (b"host", b"engine:1"),
        (b"x-title", "日本".encode()),
        (b"x-latin", b"caf\xe9"),
        (b"x-empty", b""),
        (b"x-tag", b"h"),
    ]
    await whole(await pool.send(b"POST", b"/v1/x?y=%20z", headers, b"12345"))
    (seen,) = upstream.requests
    assert seen.target == b"/v1/x?y=%20z"
    assert seen.headers == [*headers, (b"content-length", b"5")]


async def test_header_bytes_beyond_ascii_come_back_as_they_are(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    odd = [(b"x-title", "日本".encode()), (b"x-latin", b"caf\xe9"), (b"x-empty", b""), (b"x-long", b"v" * 16_000)]
    upstream.script("a", answer(headers=odd))
    got, _ = await whole(await post(pool, "a"))
    assert got.headers == [*odd, (b"content-length", b"2")]


@pytest.mark.parametrize("cut", [False, True])
async def test_interim_answers_are_skipped(upstream: FakeUpstream, pool: UpstreamPool, cut: bool) -> None:
    pieces = [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
        head(200, [(b"content-length", b"2")]) + b"ok",
    ]
    upstream.script("a", send_raw(*pieces, gap_s=0.005) if cut else send_raw(b"".join(pieces)))
    got, data = await whole(await post(pool, "a"))
    assert (got.status, got.reason, data) == (200, b"Said So", b"ok")
    assert got.headers == [(b"content-length", b"2")]
    assert pool.idle_connections == 1


async def test_chunk_extensions_and_trailers_are_no_part_of_the_answer(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    body = chunk(b"hello ", extension=b";name=value") + chunk(b"world") + b"0;last\r\nx-trailer: 1\r\nx-other: 2\r\n\r\n"
    upstream.script("a", send_raw(head(200, [CHUNKED]) + body))
    got, data = await whole(await post(pool, "a"))
    assert (got.headers, data) == ([CHUNKED], b"hello world")
    assert pool.idle_connections == 1


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_that_have_no_body_by_their_status_end_with_their_head(
    upstream: FakeUpstream, pool: UpstreamPool, status: int
) -> None:
    upstream.script("a", send_raw(head(status, [(b"etag", b"x"), (b"content-length", b"5")])))
    got, data = await whole(await post(pool, "a"))
    assert (got.status, got.headers, data) == (status, [(b"etag", b"x")], b"")
    assert pool.idle_connections == 1


async def test_the_answer_to_head_has_no_body_whatever_length_it_names(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", send_raw(head(200, [(b"content-length", b"500")])))
    got, data = await whole(await post(pool, "a", b"", method=b"HEAD"))
    assert (got.content_length, data) == (500, b"")
    assert (await whole(await post(pool)))[1] == b"ok"
    assert upstream.connections_seen == 1


async def test_what_came_in_one_read_is_read_at_once(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", send_raw(head(200, [CHUNKED]) + chunk(b"one ") + chunk(b"two ") + chunk(b"three"), then="hang"))
    exchange = await post(pool, "a")
    await exchange.head()
    assert await exchange.read() == b"one two three"


# Answers that are not whole.


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "start",
    [
        head(200, [(b"content-length", b"10")]) + b"only",
        head(200, [CHUNKED]) + chunk(b"only"),
        head(200, [CHUNKED]) + b"9\r\nonly",
        head(200, [CHUNKED]) + chunk(b"only") + b"0\r\n",
    ],
    ids=["short of its length", "without the last chunk", "within a chunk", "within the last chunk"],
)
async def test_a_cut_body_never_looks_complete(upstream: FakeUpstream, pool: UpstreamPool, start: bytes, then: str) -> None:
    got = asyncio.Event()

    async def send_then_cut(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(start)
        await got.wait()
        exchange.close() if then == "close" else exchange.reset()

    upstream.script("a", send_then_cut)
    exchange = await post(pool, "a")
    assert await exchange.read() == b"only"
    got.set()
    with pytest.raises(UpstreamFailed) as broken:
        await exchange.read()
    assert broken.value.stage is UpstreamStage.BODY
    assert len(upstream.requests) == 1


async def test_a_body_that_ends_with_the_connection_is_cut_by_a_reset(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", send_raw(head(200) + b"only", then="reset"))
    assert (await failure_of(await post(pool, "a"))).stage in (UpstreamStage.BODY, UpstreamStage.HEAD)


async def test_bytes_before_the_break_are_read_before_the_failure(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", stream(3, then="close"))
    exchange = await post(pool, "a")
    await eventually(lambda: exchange.is_ended)
    assert await exchange.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    with pytest.raises(UpstreamFailed):
        await exchange.read()


NONSENSE = {
    "not HTTP at all": b"\x15\x03\x01\x00\x02\x02\x28",
    "another protocol's greeting": b"220 mail.example ESMTP\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    "a status below 100": b"HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n",
    "two lengths": head(200, [(b"content-length", b"1"), (b"content-length", b"2")]) + b"ab",
    "a length and chunks": head(200, [(b"content-length", b"1"), CHUNKED]) + chunk(b"a"),
    "too many fields": head(200, [(b"x-%d" % number, b"v") for number in range(257)]),
    "a long field": head(200, [(b"x-long", b"v" * 70_000)]),
    "a long status line": b"HTTP/1.1 200 " + b"o" * 300_000,
    "a name without end": b"HTTP/1.1 200 OK\r\n" + b"n" * 300_000,
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_instead_of_a_head_is_a_failure_of_the_head(
    upstream: FakeUpstream, pool: UpstreamPool, nonsense: bytes
) -> None:
    upstream.script("a", send_raw(nonsense, then="hang"))
    assert (await failure_of(await post(pool, "a"))).stage is UpstreamStage.HEAD
    assert pool.open_connections == 0
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "nonsense",
    [b"zz\r\n", b"0\r\nx-trailer: " + b"v" * 300_000, b"0\r\n" + b"x: 1\r\n" * 50_000, b"1;" + b"e" * 300_000],
    ids=["no size", "a trailer without end", "trailers without end", "an extension without end"],
)
async def test_nonsense_in_the_chunks_is_a_failure_of_the_body(
    upstream: FakeUpstream, pool: UpstreamPool, nonsense: bytes
) -> None:
    upstream.script("a", send_raw(head(200, [CHUNKED]) + chunk(b"hi") + nonsense, then="hang"))
    exchange = await post(pool, "a")
    assert await exchange.read() == b"hi"
    assert (await failure_of(exchange)).stage is UpstreamStage.BODY


@pytest.mark.parametrize("body_bytes", [0, 1_000, 40_000_000])
async def test_an_answer_before_the_body_was_read_is_delivered(
    upstream: FakeUpstream, pool: UpstreamPool, body_bytes: int
) -> None:
    refusal = head(413, [(b"content-length", b"9"), (b"connection", b"close")]) + b"too large"
    upstream.script("early", send_raw(refusal, then="close", read_body=False))
    upstream.script("pieces", send_raw(refusal[:-9], refusal[-9:], then="close", read_body=False))
    for tag in ["early", "pieces"] * 5:
        got, data = await whole(await post(pool, tag, b"x" * body_bytes))
        assert (got.status, data) == (413, b"too large")
    assert pool.open_connections == 0


async def test_an_early_answer_on_a_connection_that_stays_open_ends_the_upload(
    upstream: FakeUpstream, pool: UpstreamPool
) -> None:
    upstream.script("early", send_raw(head(413, [(b"content-length", b"2")]) + b"no", then="hang", read_body=False))
    got, data = await whole(await post(pool, "early", b"x" * 40_000_000))
    assert (got.status, data) == (413, b"no")
    assert pool.open_connections == 0
    await eventually(lambda: upstream.connections_open == 0)


async def test_a_large_body_arrives_whole(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    body = bytes(range(256)) * 80_000
    await whole(await post(pool, "", body))
    assert upstream.requests[0].body == body


# The end, told at once.


async def test_the_end_is_told_while_nobody_reads(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    body = b"x" * 200_000
    upstream.script("a", answer(200, body))
    exchange = await post(pool, "a")
    ends: list[int] = []
    exchange.on_end(lambda: ends.append(pool.idle_connections))
    await eventually(lambda: ends)
    # The connection was free again when we were told, so that whoever is let in next finds it warm.
    assert ends == [1]
    assert await whole(exchange) == (await exchange.head(), body)
    assert ends == [1]


async def test_the_end_is_told_before_the_reader_wakes(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    exchange = await post(pool)
    seen: list[str] = []
    exchange.on_end(lambda: seen.append("end"))
    await exchange.head()
    seen.append("head")
    await rest_of(exchange)
    assert seen == ["end", "head"]


async def test_a_broken_end_is_told_too_and_failure_says_how(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", send_raw(then="reset"))
    exchange = await post(pool, "a")
    failures: list[UpstreamFailed | None] = []
    exchange.on_end(lambda: failures.append(exchange.failure))
    assert (await failure_of(exchange)).stage is UpstreamStage.HEAD
    assert failures == [exchange.failure]
    assert exchange.failure is not None


async def test_who_asks_after_the_end_is_told_at_once(pool: UpstreamPool) -> None:
    exchange = await post(pool)
    await whole(exchange)
    told: list[bool] = []
    exchange.on_end(lambda: told.append(True))
    assert told == [True]
    with pytest.raises(RuntimeError):
        exchange.on_end(lambda: None)


# Giving up.


async def test_giving_up_before_the_head_wakes_the_reader_and_reaches_the_engine(
    upstream: FakeUpstream, pool: UpstreamPool
) -> None:
    upstream.script("a", never_answer())
    exchange = await post(pool, "a")
    told: list[bool] = []
    exchange.on_end(lambda: told.append(True))
    reader = asyncio.create_task(exchange.head())
    await eventually(lambda: upstream.open_requests("a") == 1)
    exchange.abort(STALLED)
    exchange.abort(None)
    assert told == [True]
    with pytest.raises(UpstreamFailed) as broken:
        await reader
    assert broken.value is STALLED
    assert pool.open_connections == 0
    await eventually(lambda: upstream.requests[0].end == "client gone")


async def test_giving_up_in_the_body_drops_what_waits(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", stream(None))
    exchange = await post(pool, "a")
    await exchange.head()
    await exchange.read()
    exchange.abort(None)
    with pytest.raises(UpstreamFailed) as broken:
        await exchange.read()
    assert broken.value.stage is UpstreamStage.BODY
    await eventually(lambda: upstream.requests[0].end == "client gone")


async def test_giving_up_while_the_engine_is_held_back_reaches_it(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", stream(None, event=lambda number: b"x" * 60_000))
    exchange = await post(pool, "a")
    await eventually(lambda: exchange.is_held_back)
    exchange.abort(None)
    await eventually(lambda: upstream.requests[0].end == "client gone")


async def test_giving_up_after_the_end_leaves_the_connection_to_others(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    read, unread = await post(pool), await post(pool)
    await whole(read)
    await eventually(lambda: unread.is_ended)
    read.abort(None)
    unread.abort(None)
    assert read.failure is None
    with pytest.raises(UpstreamFailed):
        await unread.read()
    assert pool.idle_connections == 2
    await whole(await post(pool))
    assert upstream.connections_seen == 2


async def test_a_cancelled_reader_can_be_followed_by_another(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    upstream.script("a", answer(after_s=0.05))
    exchange = await post(pool, "a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(exchange.head(), 0.001)
    assert (await whole(exchange))[1] == b"ok"


# Holding back.


async def test_an_engine_that_sends_faster_than_we_read_is_held_back(upstream: FakeUpstream, pool: UpstreamPool) -> None:
    total_bytes = 64_000_000

    async def flood(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, [(b"content-length", b"%d" % total_bytes)]))
        for _ in range(total_bytes // 64_000):
            await exchange.send(b"x" * 64_000)

    upstream.script("a", flood)
    exchange = await post(pool, "a")
    await eventually(lambda: exchange.is_held_back)
    held = time.monotonic()
    sent = -1
    while sent != upstream.requests[0].sent_bytes:  # until the kernel's buffers are full
        sent = upstream.requests[0].sent_bytes
        await asyncio.sleep(0.05)
    assert sent < total_bytes / 2
    assert exchange.last_read_at <= held
    assert not exchange.is_ended
    first = await exchange.read()
    assert len(first) < 256 * 1024 + 512 * 1024
    assert exchange.last_read_at > held
    received = len(first)
    while data := await exchange.read():
        received += len(data)
    assert received == total_bytes
    assert pool.idle_connections == 1


async def test_of_much_that_waits_one_read_takes_what_makes_64_kib_and_the_rest_holds_the_engine_back(
    upstream: FakeUpstream, make_pool: PoolMaker
) -> None:
    pool = make_pool(read_ahead_bytes=100_000)
    upstream.script("a", stream(10, event=lambda number: b"%d" % number * 30_000, gap_s=0.01))
    exchange = await post(pool, "a")
    await eventually(lambda: exchange.is_held_back)
    first = await exchange.read()
    assert 64 * 1024 <= len(first) < 100_000
    assert exchange.is_held_back
    assert first + (await whole(exchange))[1] == b"".join(b"%d" % number * 30_000 for number in range(10))
    assert not exchange.is_held_back


async def test_what_fits_the_read_ahead_is_taken_to_its_end_unread(upstream: FakeUpstream, make_pool: PoolMaker) -> None:
    pool = make_pool(read_ahead_bytes=100_000)
    upstream.script("fits", answer(200, b"x" * 99_000))
    upstream.script("does not", stream(10, event=lambda number: b"x" * 80_000))
    fits, does_not = await post(pool, "fits"), await post(pool, "does not")
    await eventually(lambda: fits.is_ended and does_not.is_held_back)
    assert not does_not.is_ended
    assert len((await whole(does_not))[1]) == 800_000
    assert len((await whole(fits))[1]) == 99_000
