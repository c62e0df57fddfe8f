"""Every framing of a well-formed answer, cut at every byte, read as httpx reads it whole."""

import asyncio

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.names import BackendName
from gateway.relay.known_answer import KnownAnswer
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_connection import UpstreamConnection, only_chunk
from gateway.relay.upstream_request import write_request
from support.fake_upstream import FakeUpstream, head, send_raw
from support.relay_calls import PoolMaker, post, whole

CHUNKED = (b"transfer-encoding", b"chunked")
EVENTS = b'data: {"a": "\xc3\xa9"}\n\ndata: [DONE]\n\n'

# name -> (raw answer, the connection may be used again)
WELL_FORMED: dict[str, tuple[bytes, bool]] = {
    "length": (head(200, [(b"content-length", b"%d" % len(EVENTS))]) + EVENTS, True),
    "length of nothing": (head(404, [(b"content-length", b"0")]), True),
    "blanks around values": (b"HTTP/1.1 200 OK\r\nContent-Length:  5 \r\nX-A:\tb\r\nX-Empty:\r\n\r\nhello", True),
    "no reason": (b"HTTP/1.1 500\r\ncontent-length: 1\r\n\r\nx", True),
    "chunks": (head(200, [CHUNKED]) + b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", True),
    "chunks with all that is allowed": (
        head(200, [CHUNKED, (b"trailer", b"x-t")]) + b'00A;n=v;q="z"\r\n0123456789\r\n1\r\n!\r\n000\r\nx-t: 1\r\n\r\n',
        True,
    ),
    "chunked in capitals": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", True),
    "until the end of the connection": (head(200, [(b"content-type", b"text/plain")]) + b"until the end", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nold style", False),
    "close": (head(200, [(b"content-length", b"3"), (b"connection", b"close")]) + b"abc", False),
    "continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + head(201, [(b"content-length", b"3")]) + b"abc", True),
    "no content": (head(204), True),
}


class MemoryTransport(asyncio.Transport):
    """A transport that goes nowhere, so that a test decides what arrives in which read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class Keeper:
    """Owns one connection and remembers what became of it."""

    def __init__(self) -> None:
        self.fate = ""
        self.answers = KnownAnswer()

    def settled(self, connection: UpstreamConnection) -> None:
        self.fate = "kept"

    def lost(self, connection: UpstreamConnection) -> None:
        self.fate = "lost"

    def resend(self, exchange: UpstreamExchange) -> None:
        raise AssertionError("nothing here was ever idle")


def answered(pieces: list[bytes]) -> tuple[UpstreamExchange, str]:
    """The exchange after these reads and the end of the connection, and what became of the connection before that end."""
    keeper, transport = Keeper(), MemoryTransport()
    connection = UpstreamConnection(keeper, BackendName("fake"), default_idle_limit_s=3.0, retry_window_s=1.0)
    connection.connection_made(transport)
    request = write_request(b"POST", b"/", [(b"host", b"fake")], b"{}")
    exchange = UpstreamExchange(BackendName("fake"), request, read_ahead_bytes=10**6)
    connection.send(exchange)
    assert transport.written == request.buffers[0]
    for piece in pieces:
        assert not exchange.is_ended
        connection.data_received(piece)
    fate = keeper.fate
    connection.eof_received()
    connection.connection_lost(None)
    return exchange, fate


@pytest.mark.parametrize("name", WELL_FORMED)
async def test_wherever_a_well_formed_answer_is_cut_it_reads_as_httpx_reads_it(
    upstream: FakeUpstream, make_pool: PoolMaker, name: str
) -> None:
    raw, may_be_reused = WELL_FORMED[name]
    then = "keep" if may_be_reused else "close"
    upstream.script("raw", send_raw(raw, then=then))
    async with httpx.AsyncClient(base_url=upstream.url, trust_env=False) as client:
        wanted = await client.post("/", headers={"x-tag": "raw"})
    expected = (wanted.status_code, wanted.content)

    cuts = [[raw], [raw[at : at + 1] for at in range(len(raw))], *([raw[:at], raw[at:]] for at in range(1, len(raw)))]
    for pieces in cuts:
        exchange, fate = answered(pieces)
        got, body = await whole(exchange)
        assert (got.status, body) == expected
        assert [value.strip().lower() for _, value in got.headers] == [value.lower() for _, value in wanted.headers.raw]
        assert fate == ("kept" if may_be_reused else "lost" if exchange.is_ended and not wanted_eof(raw) else "")

    pool = make_pool()
    upstream.script(
        "drip", send_raw(*(raw[at : at + 7] for at in range(0, len(raw), 7)), then="keep" if may_be_reused else "close")
    )
    got, body = await whole(await post(pool, "drip"))
    assert (got.status, body) == expected
    assert pool.open_connections == may_be_reused


def wanted_eof(raw: bytes) -> bool:
    """Only the end of the connection ends this answer."""
    fields = raw.lower().partition(b"\r\n\r\n")[0]
    return b"content-length" not in fields and b"transfer-encoding" not in fields and b" 204 " not in fields


@pytest.mark.parametrize("name", [name for name, (raw, _) in WELL_FORMED.items() if not wanted_eof(raw)])
def test_an_answer_that_ends_early_at_any_byte_is_broken_never_short(name: str) -> None:
    raw, _ = WELL_FORMED[name]
    for at in range(len(raw)):
        exchange, fate = answered([raw[:at]] if at else [])
        assert exchange.is_ended
        assert exchange.failure is not None
        assert fate == ""


SIZES = st.sampled_from([b"%x", b"%X", b"00%x", b"%x;a=b", b'%x;q="\\r"'])
PIECES = st.lists(st.tuples(SIZES, st.binary(min_size=1, max_size=40)), min_size=1, max_size=8)


@given(pieces=PIECES, data=st.data())
def test_reads_of_one_chunk_and_all_others_read_alike(pieces: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """Cut between chunks, behind lines and anywhere: the parser sees some reads, and some it need not see."""
    parts = [form % len(body) + b"\r\n" + body + b"\r\n" for form, body in pieces]
    raw = head(200, [CHUNKED]) + b"".join(parts) + b"0\r\n\r\n"
    between = [len(head(200, [CHUNKED]) + b"".join(parts[:number])) for number in range(len(parts) + 1)]
    lines = [at + 2 for at in range(len(raw)) if raw.startswith(b"\r\n", at)]
    some = data.draw(st.lists(st.sampled_from(lines) | st.integers(1, len(raw)), max_size=3), label="other cuts")
    cuts = sorted({*data.draw(st.sampled_from([between, between[1::2], []]), label="between"), *some} - {len(raw)})
    reads = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    exchange, fate = answered([read for read in reads if read])
    assert asyncio.run(whole(exchange))[1] == b"".join(body for _, body in pieces)
    assert fate == "kept"


async def test_a_read_of_one_chunk_is_offered_with_its_framing() -> None:
    offered: list[tuple[bytes, bytes | None]] = []

    def pass_on(data: bytes, chunk: bytes | None) -> bool:
        offered.append((data, chunk))
        return True

    keeper = Keeper()
    connection = UpstreamConnection(keeper, BackendName("fake"), default_idle_limit_s=3.0, retry_window_s=1.0)
    connection.connection_made(MemoryTransport())
    request = write_request(b"POST", b"/", [(b"host", b"fake")], b"{}")
    exchange = UpstreamExchange(BackendName("fake"), request, read_ahead_bytes=10**6)
    connection.send(exchange)
    connection.data_received(head(200, [CHUNKED]))
    reading = asyncio.create_task(exchange.read(pass_on))
    await asyncio.sleep(0)
    for read in (b"3\r\nabc\r\n", b"A\r\n0123456789\r\n", b"1\r\nx\r\n1\r\ny\r\n", b"2;e=f\r\nzz\r\n", b"0\r\n\r\n"):
        connection.data_received(read)
    assert await reading == b""
    assert offered == [
        (b"abc", None),  # the first tells that there are chunks
        (b"0123456789", b"A\r\n0123456789\r\n"),
        (b"xy", None),
        (b"zz", None),
    ]
    assert keeper.fate == "kept"


@pytest.mark.parametrize(
    "read",
    [
        b"4\r\nabc\r\n",
        b"2\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3\r\nabc\r",
        b"0\r\n\r\n",
        b"\r\n",
    ],
)
def test_what_is_not_precisely_one_chunk_is_left_to_the_parser(read: bytes) -> None:
    assert only_chunk(read) is None


@pytest.mark.parametrize("read", [b"2\r\nabc\r\n", b"0x3\r\nabc\r\n", b"+3\r\nabc\r\n", b"3\r\nabcd\n"])
def test_a_broken_chunk_behind_good_ones_breaks_the_answer(read: bytes) -> None:
    exchange, _ = answered([head(200, [CHUNKED]), b"1\r\na\r\n", b"1\r\nb\r\n", read])
    assert exchange.failure is not None
