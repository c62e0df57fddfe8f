"""The lean client beside httpx, before the same upstream: the same bodies, the same errors, the same use of connections.

Where the two differ on purpose, `DIFFERENT` says how and why; everything else must be equal.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from gateway.core.errors import UpstreamFailed
from gateway.core.names import BackendName
from gateway.relay.upstream_pool import UpstreamPool
from support.fake_upstream import Behaviour, FakeUpstream, answer, chunk, eventually, head, send_raw
from support.relay_calls import post

CHUNKED = (b"transfer-encoding", b"chunked")
EVENTS = b'data: {"a": "\xc3\xa9"}\n\ndata: [DONE]\n\n'
EACH_BYTE = b"".join(b"1\r\n%c\r\n" % byte for byte in EVENTS) + b"0\r\n\r\n"


def length(data: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % len(data))


@dataclass(slots=True)
class Got:
    """What a client made of an answer. broke: "" if it was whole, else where: "connect", "head" or "body"."""

    status: int | None = None
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    broke: str = ""


def fields_of(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Names in lower case, values without blanks around them; httpx writes codings in lower case as well."""
    fields = [(name.lower(), value.strip()) for name, value in headers]
    return [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in fields]


async def by_lean(pool: UpstreamPool, tag: str, body: bytes = b"{}") -> Got:
    got = Got()
    try:
        exchange = await post(pool, tag, body)
        answered = await exchange.head()
        got.status, got.reason = answered.status, answered.reason
        got.headers = fields_of(answered.headers)
        while data := await exchange.read():
            got.body += data
    except UpstreamFailed as failure:
        got.broke = failure.stage.value
    return got


async def by_httpx(client: httpx.AsyncClient, tag: str, body: bytes = b"{}") -> Got:
    got = Got()
    try:
        async with client.stream("POST", "/v1/chat/completions", headers={"x-tag": tag}, content=body) as response:
            got.status, got.reason = response.status_code, response.extensions["reason_phrase"]
            got.headers = fields_of(response.headers.raw)
            async for data in response.aiter_raw():
                got.body += data
    except httpx.ConnectError:
        got.broke = "connect"
    except httpx.TransportError:
        got.broke = "head" if got.status is None else "body"
    return got


@asynccontextmanager
async def clients(upstream: FakeUpstream) -> AsyncIterator[tuple[UpstreamPool, httpx.AsyncClient]]:
    pool = UpstreamPool(upstream.host, upstream.port, backend=BackendName("fake"))
    async with httpx.AsyncClient(base_url=upstream.url, trust_env=False) as client:
        yield pool, client
    pool.close()
    await eventually(lambda: upstream.connections_open == 0)


async def compare(upstream: FakeUpstream, behaviour: Behaviour, *, times: int = 3, body: bytes = b"{}") -> tuple[Got, Got]:
    """Both ask so often. What they got is returned, and how many connections they used is compared."""
    upstream.script("same", behaviour)
    async with clients(upstream) as (pool, client):
        before = upstream.connections_seen
        lean = [await by_lean(pool, "same", body) for _ in range(times)]
        between = upstream.connections_seen
        theirs = [await by_httpx(client, "same", body) for _ in range(times)]
        assert between - before == upstream.connections_seen - between
    assert all(got == lean[0] for got in lean)
    assert all(got == theirs[0] for got in theirs)
    return lean[0], theirs[0]


async def demand_equal(upstream: FakeUpstream, behaviour: Behaviour, *, times: int = 3, body: bytes = b"{}") -> Got:
    lean, theirs = await compare(upstream, behaviour, times=times, body=body)
    assert lean == theirs
    return lean


# Framings.

ABC = head(201, [length(b"abc")]) + b"abc"
TEXT = (b"content-type", b"text/event-stream")
WELL_FORMED: dict[str, tuple[list[bytes], str]] = {
    "a length": ([head(200, [TEXT, length(EVENTS)]) + EVENTS], "keep"),
    "a length, head and body apart": ([head(200, [length(EVENTS)]), EVENTS], "keep"),
    "nothing": ([head(200, [(b"content-length", b"0")])], "keep"),
    "chunks": ([head(200, [CHUNKED]), chunk(EVENTS[:5]) + chunk(EVENTS[5:]), chunk(b"")], "keep"),
    "chunks of one byte": ([head(200, [CHUNKED]) + EACH_BYTE], "keep"),
    "chunks in capitals": (
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n1a\r\n%b\r\n0\r\n\r\n" % (26 * b"x")],
        "keep",
    ),
    "chunk extensions": ([head(200, [CHUNKED]) + chunk(b"hello", extension=b';a="b"') + b"0;last\r\n\r\n"], "keep"),
    "trailers": ([head(200, [CHUNKED, (b"trailer", b"x-t")]) + chunk(b"hello") + b"0\r\nx-t: 1\r\nx-u: 2\r\n\r\n"], "keep"),
    "the end of the connection": ([head(200, [TEXT]), EVENTS], "close"),
    "HTTP/1.0": ([b"HTTP/1.0 200 OK\r\n\r\nold"], "close"),
    "HTTP/1.0 with a length": ([b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nold"], "close"),
    "connection: close": ([head(200, [length(b"abc"), (b"connection", b"close")]) + b"abc"], "close"),
    "100 first": ([b"HTTP/1.1 100 Continue\r\n\r\n", ABC], "keep"),
    "103 first, in the same read": (
        [b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + ABC],
        "keep",
    ),
    "two interims": (
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n", ABC],
        "keep",
    ),
    "204": ([head(204)], "keep"),
    "304": ([head(304, [(b"etag", b"x")])], "keep"),
    "an error with a body": ([head(422, [(b"content-type", b"application/json"), length(b"{}")]) + b"{}"], "keep"),
    "repeated headers": ([head(200, [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), length(b"x")]) + b"x"], "keep"),
    "bytes beyond ASCII": ([head(200, [(b"x-title", "日本".encode()), (b"x-latin", b"caf\xe9"), length(b"x")]) + b"x"], "keep"),
    "blanks around values": ([b"HTTP/1.1 200 OK\r\nContent-Length:  5 \r\nX-A:\tb\r\nX-Empty:\r\n\r\nhello"], "keep"),
    "no reason": ([b"HTTP/1.1 500 \r\ncontent-length: 1\r\n\r\nx"], "keep"),
}


@pytest.mark.parametrize("name", WELL_FORMED)
async def test_a_well_formed_answer_is_the_same_to_both(upstream: FakeUpstream, name: str) -> None:
    pieces, then = WELL_FORMED[name]
    got = await demand_equal(upstream, send_raw(*pieces, then=then))
    assert not got.broke


@pytest.mark.parametrize("size", [1, 1_000, 70_000, 3_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_a_body_of_any_size_is_the_same_to_both_both_ways(upstream: FakeUpstream, size: int, framing: str) -> None:
    body = random.Random(size).randbytes(size)
    got = await demand_equal(upstream, answer(200, body, framing=framing), times=2, body=body)
    assert (got.broke, got.body) == ("", body)
    assert all(request.body == body for request in upstream.tagged("same"))


@pytest.mark.parametrize("seed", range(10))
async def test_answers_put_together_at_random_are_the_same_to_both(upstream: FakeUpstream, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(5):
        raw, then = random_answer(dice)
        edges = sorted(dice.randint(0, len(raw)) for _ in range(dice.choice((0, 1, 3, 8))))
        pieces = [raw[start:end] for start, end in zip([0, *edges], [*edges, len(raw)], strict=True) if start < end]
        await demand_equal(upstream, send_raw(*pieces, then=then), times=2)


def random_answer(dice: random.Random) -> tuple[bytes, str]:
    """A well-formed answer, and what becomes of its connection."""
    body = dice.randbytes(dice.choice((0, 1, 30, 5_000)))
    fields = [(b"x-%d" % number, b"v" * dice.randint(0, 200)) for number in range(dice.randint(0, 20))]
    interim = b"HTTP/1.1 103 Early\r\nx: y\r\n\r\n" * dice.choice((0, 0, 1, 2))
    status = dice.choice((200, 200, 201, 400, 404, 429, 500, 503))
    match dice.randrange(3):
        case 0:
            return interim + head(status, [*fields, length(body)]) + body, "keep"
        case 1:
            parts, at = [], 0
            while at < len(body):
                size = dice.randint(1, 900)
                parts.append(chunk(body[at : at + size], extension=dice.choice((b"", b";x=1"))))
                at += size
            trailers = b"x-t: 1\r\n" * dice.choice((0, 0, 2))
            return interim + head(status, [*fields, CHUNKED]) + b"".join(parts) + b"0\r\n" + trailers + b"\r\n", "keep"
        case _:
            return interim + head(status, fields) + body, "close"


# Breaks.

FULL = head(200, [length(EVENTS)]) + EVENTS
CHUNKS = head(200, [CHUNKED]) + chunk(EVENTS[:20]) + chunk(EVENTS[20:]) + chunk(b"")
BROKEN: dict[str, tuple[Sequence[bytes], str, str]] = {
    "nothing at all": ((), "close", "head"),
    "half a status line": ((b"HTTP/1.1 20",), "close", "head"),
    "half a head": ((FULL[:30],), "close", "head"),
    "an interim answer only": ((b"HTTP/1.1 100 Continue\r\n\r\n",), "close", "head"),
    "a head, and no body": ((head(200, [length(EVENTS)]),), "close", "body"),
    "short of its length": ((FULL[:-1],), "close", "body"),
    "within a chunk": ((CHUNKS[:-20],), "close", "body"),
    "without the last chunk": ((CHUNKS[:-5],), "close", "body"),
    "within the last chunk": ((CHUNKS[:-2],), "close", "body"),
    "within a trailer": ((CHUNKS[:-2] + b"x-t: 1\r\n",), "close", "body"),
    "no HTTP": ((b"220 mail.example ESMTP\r\n\r\n",), "close", "head"),
    "no chunk size": ((head(200, [CHUNKED]), b"zz\r\nhello\r\n"), "close", "body"),
    "two different lengths": ((head(200, [(b"content-length", b"1"), (b"content-length", b"2")]) + b"ab",), "close", "head"),
    "a length that is none": ((head(200, [(b"content-length", b"many")]) + b"ab",), "close", "head"),
    "a switch of protocols": ((b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",), "close", "head"),
    "a name with a blank": ((b"HTTP/1.1 200 OK\r\nx y: z\r\ncontent-length: 0\r\n\r\n",), "close", "head"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_broken_to_both_at_the_same_place(upstream: FakeUpstream, name: str) -> None:
    pieces, then, where = BROKEN[name]
    # Once each: on a connection that was used before, the lean client asks again, see below.
    got = await demand_equal(upstream, send_raw(*pieces, gap_s=0.02, then=then), times=1)
    assert got.broke == where


@pytest.mark.parametrize("raw", [FULL, CHUNKS], ids=["a length", "chunks"])
async def test_an_answer_that_is_cut_at_any_byte_is_cut_to_both(upstream: FakeUpstream, raw: bytes) -> None:
    for at in range(0, len(raw), 11):
        got = await demand_equal(upstream, send_raw(*([raw[:at]] if at else []), then="close"), times=1)
        assert got.broke in ("head", "body")
        assert EVENTS.startswith(got.body)


async def test_a_refused_connection_is_refused_to_both(upstream: FakeUpstream) -> None:
    async with clients(upstream) as (pool, client):
        await upstream.stop()
        assert (await by_lean(pool, "same")).broke == (await by_httpx(client, "same")).broke == "connect"


async def test_an_early_refusal_of_a_large_body_reaches_both(upstream: FakeUpstream) -> None:
    refusal = head(413, [length(b"too large"), (b"connection", b"close")]) + b"too large"
    got = await demand_equal(upstream, send_raw(refusal, then="keep", read_body=False), times=1, body=b"x" * 1_000)
    assert (got.status, got.body, got.broke) == (413, b"too large", "")


# Use of connections.


async def test_connections_that_the_engine_drops_while_they_are_idle_cost_neither_a_request(upstream: FakeUpstream) -> None:
    async with clients(upstream) as (pool, client):
        for _ in range(5):
            assert (await by_lean(pool, "")).body == (await by_httpx(client, "")).body == b"ok"
            upstream.drop_connections()
            await eventually(lambda: upstream.connections_open == 0)


# Where they differ, and why: pieces, what becomes of the connection, what each makes of it.
DIFFERENT: dict[str, tuple[Sequence[bytes], str, str, str]] = {
    # Who frames an answer in two ways may be smuggling; httpx believes the chunks.
    "a length beside chunks": ((head(200, [length(b"hello"), CHUNKED]) + chunk(b"hello"), chunk(b"")), "close", "head", ""),
}


@pytest.mark.parametrize("name", DIFFERENT)
async def test_where_the_two_differ_the_lean_client_is_the_stricter(upstream: FakeUpstream, name: str) -> None:
    pieces, then, lean_broke, their_broke = DIFFERENT[name]
    lean, theirs = await compare(upstream, send_raw(*pieces, then=then), times=1)
    assert (lean.broke, theirs.broke) == (lean_broke, their_broke)


async def test_a_used_connection_that_dies_before_a_byte_is_asked_again_by_the_lean_client_alone(
    upstream: FakeUpstream,
) -> None:
    async with clients(upstream) as (pool, client):
        for tag in ("lean", "theirs"):
            upstream.script(tag, answer(), send_raw(then="close"), answer())
        assert [(await by_lean(pool, "lean")).broke for _ in range(2)] == ["", ""]
        assert [(await by_httpx(client, "theirs")).broke for _ in range(2)] == ["", "head"]
