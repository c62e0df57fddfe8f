"""No bytes that an engine sends make the upstream connection raise, hang, end twice, or take half an answer for a whole."""

import asyncio
import random
from collections.abc import Iterator

import h11
import pytest

from fuzz.mutation import cuts, try_all
from fuzz.wire import Wire
from gateway.core.errors import UpstreamFailed

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWERS = [
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"a": 1234}',
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\netag: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end",
    b"HTTP/1.0 200 OK\r\n\r\nold style",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    CHUNKED + b"b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n",
    CHUNKED + b"b;n=v\r\ndata: one\n\n\r\n0\r\nx-trailer: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nX-A: 1\r\nX-A: 2\r\nset-cookie: a=b\r\ncontent-length: 3\r\n\r\nabc",
]
WIRE_WORDS = (
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"connection: close\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"x" * 70_000 + b": y\r\n",
    b"x: y\r\n" * 300,
)


def body_of(wire: Wire) -> tuple[bytes, UpstreamFailed | None]:
    """Everything that can be read of the answer, and how it broke."""

    async def read() -> tuple[bytes, UpstreamFailed | None]:
        parts = []
        try:
            await wire.exchange.head()
            while data := await wire.exchange.read():
                parts.append(data)
        except UpstreamFailed as failure:
            return b"".join(parts), failure
        return b"".join(parts), None

    reading = read()
    try:
        reading.send(None)
    except StopIteration as stop:
        result: tuple[bytes, UpstreamFailed | None] = stop.value
        return result
    raise AssertionError("the exchange has ended, and its reader waits")


def by_h11(raw: bytes) -> tuple[str, int, bytes]:
    """What another parser makes of the same bytes: ("whole" | "cut" | "wrong", status, body)."""
    other = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    other.send(h11.Request(method="POST", target="/", headers=[("host", "fake")]))
    other.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        other.receive_data(raw)
        other.receive_data(b"")
        while True:
            event = other.next_event()
            match event:
                case h11.Response():
                    status = event.status_code
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    return "whole", status, body
                case h11.ConnectionClosed() | h11.NEED_DATA | h11.PAUSED:
                    return "cut", status, body
                case _:
                    pass
    except h11.RemoteProtocolError as error:
        return ("cut" if "without" in str(error) else "wrong"), status, body


def check_answer(data: bytes, dice: random.Random) -> None:
    wire = Wire()
    wire.feed(cuts(dice, data))
    wire.end(by_reset=dice.random() < 0.2)
    assert wire.exchange.is_ended
    assert wire.ends == 1
    assert not (wire.keeper.is_kept and wire.exchange.failure)
    body, failure = body_of(wire)
    assert failure is wire.exchange.failure
    if failure is None:
        verdict, status, theirs = by_h11(data)
        assert verdict != "cut", "taken for whole, and another parser waits for more"
        if verdict == "whole":
            head = wire.exchange._head
            assert head is not None
            assert (head.status, body) == (status, theirs)


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """The exchange makes a future when it waits, which here it never does; it may ask for the loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def test_mutated_answers_end_once_and_are_whole_only_if_another_parser_says_so(fuzz_inputs: int) -> None:
    try_all("answers on the wire", fuzz_inputs, ANSWERS, check_answer, words=WIRE_WORDS)


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_an_answer_that_is_cut_at_any_byte_ends_once(number: int) -> None:
    raw = ANSWERS[number]
    for at in range(len(raw) + 1):
        for by_reset in (False, True):
            wire = Wire()
            wire.feed([raw[:at]] if at else [])
            wire.end(by_reset=by_reset)
            assert wire.ends == 1
            body_of(wire)
            if wire.exchange.failure is None:
                assert by_h11(raw[:at])[0] == "whole"
