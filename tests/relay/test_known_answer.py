"""An answer's head that has come before is not parsed again, and nothing else is different for that."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.names import BackendName
from gateway.relay.known_answer import KnownAnswer
from gateway.relay.upstream import UpstreamExchange, UpstreamHead
from gateway.relay.upstream_connection import UpstreamConnection
from gateway.relay.upstream_request import write_request
from relay.test_upstream_connection import MemoryTransport
from support.relay_calls import whole

DATE = b"date: Mon, 30 Nov 2026 20:00:00 GMT"
FIELDS = (DATE, b"server: uvicorn", b"content-type: application/json")


def answer(body: bytes, *, fields: Sequence[bytes] = FIELDS, status: bytes = b"200 OK", length: bytes | None = None) -> bytes:
    size = b"content-length: " + (b"%d" % len(body) if length is None else length)
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields, size, b"", body])


class Knowing(KnownAnswer):
    """Counts what it spared the parser."""

    __slots__ = ("spared",)

    def __init__(self) -> None:
        super().__init__()
        self.spared = 0

    def read(self, data: bytes) -> tuple[UpstreamHead, bytes] | None:
        known = super().read(data)
        self.spared += known is not None
        return known


class Unknowing(KnownAnswer):
    """Leaves everything to the parser."""

    __slots__ = ()

    def read(self, data: bytes) -> tuple[UpstreamHead, bytes] | None:
        return None


class Engine:
    """Connections that carry one exchange after the other as long as they may, each with its answer in the reads of a test."""

    def __init__(self, answers: KnownAnswer) -> None:
        self.answers = answers
        self._idle: UpstreamConnection | None = None

    def settled(self, connection: UpstreamConnection) -> None:
        self._idle = connection

    def lost(self, connection: UpstreamConnection) -> None:
        self._idle = None

    def resend(self, exchange: UpstreamExchange) -> None:
        raise AssertionError("no connection here dies without an answer")

    def call(self, *reads: bytes, method: bytes = b"POST") -> tuple[object, ...]:
        """What came of it: status, headers, those for the client, body or failure; whether and how long it may be reused."""
        connection, self._idle = self._idle, None
        if connection is None:
            connection = UpstreamConnection(self, BackendName("fake"), default_idle_limit_s=3.0, retry_window_s=0.0)
            connection.connection_made(MemoryTransport())
        exchange = UpstreamExchange(BackendName("fake"), write_request(method, b"/", [], b"{}"), read_ahead_bytes=10**6)
        connection.send(exchange)
        for read in reads:
            connection.data_received(read)
        reuse = (self._idle is not None, connection.idle_limit_s)
        connection.eof_received()
        if exchange.failure is not None:
            return exchange.failure.stage, exchange.failure.detail, *reuse
        head, body = asyncio.run(whole(exchange))
        back = [header for header in head.going_back([(b"x", b"y")]) if header[0] != b"date" or DATE in b"".join(reads)]
        facts = (
            head.content_type,
            head.content_length,
            head.content_encoding,
            head.has_length,
            head.is_chunked,
            head.keep_alive,
        )
        return head.status, head.reason, head.headers, back, facts, body, *reuse


def check(*calls: Sequence[bytes]) -> int:
    """These answers read alike, whether or not heads are known. Returns how many the parser did not see."""
    knowing = Knowing()
    known, unknown = Engine(knowing), Engine(Unknowing())
    for reads in calls:
        assert known.call(*reads) == unknown.call(*reads)
    return knowing.spared


FIRST = answer(b'{"a": 1}')


def test_a_head_that_comes_again_is_not_parsed_whatever_its_length() -> None:
    assert check([FIRST], [answer(b"{}")], [answer(b"x" * 70_000)], [FIRST]) == 3


@pytest.mark.parametrize(
    "fields",
    [
        (b"server: x", b"content-type: text/plain"),  # no Date: each answer gets ours
        (*FIELDS, b"keep-alive: timeout=7"),
        (*FIELDS, b"connection: keep-alive, x-hop", b"x-hop: 1"),
        (*FIELDS, b"content-encoding: gzip", b"set-cookie: a=b", b"set-cookie: c=d"),
    ],
)
def test_what_follows_from_a_head_follows_from_it_again(fields: Sequence[bytes]) -> None:
    assert check(*([answer(b"x" * size, fields=fields)] for size in (1, 20, 300))) == 2


@pytest.mark.parametrize(
    "reads",
    [
        [answer(b"{}", fields=(DATE.replace(b"00:00", b"00:01"), *FIELDS[1:]))],
        [answer(b"{}", fields=FIELDS[::-1])],
        [answer(b"{}", status=b"500 Internal Server Error")],
        [answer(b"{}", fields=(*FIELDS, b"connection: close"))],
        [answer(b"")],
        [answer(b"{}", length=b"3")],
        [answer(b"{}", length=b"1")],
        [answer(b"{}", length=b"+2")],
        [answer(b"{}", length=b"2 ")],
        [answer(b"{}", length=b"2\r\ncontent-length: 2")],
        [answer(b"{}", length=b"2\r\nx-more: 1")],
        [answer(b"{}", length=b"2\r\ntransfer-encoding: chunked")],
        [answer(b"{}") + answer(b"{}")],
        [answer(b"{}")[:-1], b"}"],
        [answer(b"{}")[:10], answer(b"{}")[10:]],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"{}")],
        [answer(b"{}").replace(b"HTTP/1.1", b"HTTP/1.0")],
        [b"nonsense"],
    ],
)
def test_whatever_is_not_that_head_with_its_whole_body_is_for_the_parser(reads: list[bytes]) -> None:
    assert check([FIRST], reads) == 0
    assert check([FIRST], [FIRST], reads, [FIRST]) >= 1


def test_the_answer_to_head_has_no_body_and_is_for_the_parser() -> None:
    knowing = Knowing()
    engine = Engine(knowing)
    engine.call(FIRST)
    head_only = FIRST.removesuffix(b'{"a": 1}')
    assert engine.call(head_only, method=b"HEAD")[5] == b""
    assert engine.call(FIRST)[5] == b'{"a": 1}'
    assert knowing.spared == 1


def test_heads_that_never_come_again_are_soon_not_kept() -> None:
    learned: list[object] = []

    class Counting(KnownAnswer):
        def read(self, data: bytes) -> tuple[UpstreamHead, bytes] | None:
            if self._known is not None and self._known not in learned:
                learned.append(self._known)
            return super().read(data)

    engine = Engine(Counting())
    for number in range(200):
        engine.call(answer(b"{}", fields=(*FIELDS, b"x-request-id: %d" % number)))
    assert 8 <= len(learned) <= 8 + 200 // 64
    for _ in range(70):
        engine.call(FIRST)
    before = len(learned)
    for _ in range(100):
        engine.call(FIRST)
    assert len(learned) == before


PARTS = st.sampled_from(
    [
        FIRST,
        answer(b"{}"),
        answer(b"", status=b"204 No Content"),
        answer(b"x" * 1000),
        answer(b"{}", fields=(*FIELDS, b"connection: close")),
        answer(b"{}", length=b"02"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ]
)


@given(answers=st.lists(st.tuples(PARTS, st.lists(st.integers(1, 100), max_size=2)), max_size=8))
def test_any_answers_in_any_reads_read_alike(answers: list[tuple[bytes, list[int]]]) -> None:
    calls: list[list[bytes]] = []
    for raw, cuts in answers:
        at = [0, *sorted({cut % len(raw) for cut in cuts} - {0}), len(raw)]
        calls.append([raw[start:end] for start, end in itertools.pairwise(at)])
    check(*calls)
