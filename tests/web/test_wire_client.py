"""A client on a connection of ours: read to its limit, written to while it is there, and noticed at once when it leaves."""

import asyncio
from collections.abc import Callable

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.core.errors import InvalidRequest
from gateway.core.outcomes import RejectReason
from gateway.relay.headers import header_lines
from gateway.web.wire_client import WireClient

DATE = (b"date", b"Mon, 30 Nov 2026 20:00:00 GMT")


class Transport(asyncio.Transport):
    """Keeps each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborts = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def abort(self) -> None:
        self.aborts += 1

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """What the protocol has of one request. answered: how often it was told that the answer is whole."""

    def __init__(self, *, keep_alive: bool = True) -> None:
        self.transport = Transport()
        self.flow = FlowControl(self.transport)
        self.answered = 0
        self.client = WireClient(
            self.transport,
            self.flow,
            asyncio.get_running_loop(),
            keep_alive=keep_alive,
            on_answered=self._answered,
        )

    def _answered(self) -> None:
        self.answered += 1

    @property
    def text(self) -> bytes:
        return b"".join(self.transport.writes)


@pytest.fixture
async def connection() -> Connection:
    return Connection()


def cancel(task: asyncio.Task[bytes]) -> None:
    task.cancel()


def with_body(connection: Connection, *parts: bytes) -> WireClient:
    """The client once its body has come."""
    for part in parts:
        connection.client.take_body(part)
    connection.client.end_body()
    return connection.client


# The body


async def test_a_body_that_is_there_is_read_without_waiting(connection: Connection) -> None:
    client = with_body(connection, b"ab", b"c")
    taken: list[int] = []
    assert (client.whole_body(3, taken.append), taken) == (b"abc", [3])
    assert client.unread_bytes == 0


async def test_a_body_that_is_there_need_not_be_taken_as_a_whole(connection: Connection) -> None:
    client = with_body(connection, b"ab", b"c")
    taken: list[int] = []
    reading = client.read_body(3, taken.append)
    with pytest.raises(StopIteration) as done:
        reading.send(None)
    assert (done.value.value, taken) == (b"abc", [2, 1])


async def test_a_request_may_have_no_body(connection: Connection) -> None:
    assert await with_body(connection).read_body(0, lambda size: None) == b""


async def test_a_body_that_comes_later_is_waited_for(connection: Connection) -> None:
    client = connection.client
    client.take_body(b"a")
    assert client.whole_body(10, lambda size: None) is None
    reading = asyncio.create_task(client.read_body(10, lambda size: None))
    await asyncio.sleep(0)
    client.take_body(b"b")
    await asyncio.sleep(0)
    assert client.unread_bytes == 0
    assert not reading.done()
    client.end_body()
    assert await reading == b"ab"


async def test_a_body_above_the_limit_is_refused_as_soon_as_it_is(connection: Connection) -> None:
    connection.client.take_body(b"abcd")
    with pytest.raises(InvalidRequest) as refused:
        await connection.client.read_body(3, lambda size: None)
    assert refused.value.reason is RejectReason.BODY_TOO_LARGE
    connection.client.end_body()
    with pytest.raises(InvalidRequest):
        connection.client.whole_body(3, lambda size: None)


async def test_a_body_that_breaks_is_the_callers_error_and_the_connection_ends_with_its_answer(connection: Connection) -> None:
    client = connection.client
    reading = asyncio.create_task(client.read_body(10, lambda size: None))
    await asyncio.sleep(0)
    client.break_body("no HTTP")
    with pytest.raises(InvalidRequest, match="no HTTP"):
        await reading
    await client.write_head(400, [(b"content-length", b"0")])
    await client.finish()
    assert b"connection: close\r\n" in connection.text
    assert client.is_last


async def test_who_leaves_during_its_upload_cancels_who_reads_it(connection: Connection) -> None:
    client = connection.client
    reading = asyncio.create_task(client.read_body(10, lambda size: None))
    client.on_gone(lambda: cancel(reading))
    await asyncio.sleep(0)
    client.leave()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert client.gone


async def test_who_left_before_anybody_read_has_no_body_to_read(connection: Connection) -> None:
    client = with_body(connection, b"ab")
    client.leave()
    reading = asyncio.create_task(client.read_body(10, lambda size: None))
    client.on_gone(lambda: cancel(reading))
    with pytest.raises(asyncio.CancelledError):
        await reading


# Departures


async def test_who_asks_late_is_called_at_once_and_everybody_once_only(connection: Connection) -> None:
    client, left = connection.client, list[str]()
    client.on_gone(lambda: left.append("first"))
    client.leave()
    client.give_up()
    client.on_gone(lambda: left.append("second"))
    assert left == ["first", "second"]


@pytest.mark.parametrize("forget", [lambda client: client.unwatch(), lambda client: client.on_gone(None)])
async def test_who_asks_no_more_is_not_called(connection: Connection, forget: Callable[[WireClient], None]) -> None:
    left: list[bool] = []
    connection.client.on_gone(lambda: left.append(True))
    forget(connection.client)
    connection.client.leave()
    assert left == []


# The answer


async def test_head_body_and_end_of_a_plain_answer_are_one_write(connection: Connection) -> None:
    client = with_body(connection)
    await client.write_head(200, [DATE, (b"content-length", b"2")], goes_on=True)
    assert connection.transport.writes == []
    await client.write_body(b"hi")
    await client.finish()
    assert connection.transport.writes == [
        b"HTTP/1.1 200 OK\r\n" + DATE[0] + b": " + DATE[1] + b"\r\ncontent-length: 2\r\n\r\nhi"
    ]
    assert (connection.answered, client.response_complete, client.is_last) == (1, True, False)


@pytest.mark.parametrize("status", [200, 204, 404])
@pytest.mark.parametrize("length", [[], [(b"content-length", b"2")]])
@pytest.mark.parametrize("body", [b"", b"hi"])
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_a_whole_answer_is_one_write_of_the_bytes_that_its_parts_would_be(
    status: int, length: list[tuple[bytes, bytes]], body: bytes, keep_alive: bool
) -> None:
    whole, parts = Connection(keep_alive=keep_alive), Connection(keep_alive=keep_alive)
    ended = list[type[Exception] | None]()
    for connection in (whole, parts):
        client = with_body(connection)
        try:
            if connection is whole:
                assert client.takes_at_once
                client.write_whole(status, header_lines([DATE, *length]), body)
            else:
                await client.write_head(status, [DATE, *length], goes_on=True)
                if body:
                    await client.write_body(body)
                await client.finish()
            ended.append(None)
        except RuntimeError as error:  # not as long as it said
            ended.append(type(error))
    assert ended[0] is ended[1]
    if ended[0] is None:
        assert whole.transport.writes == [parts.text]
    else:
        assert whole.transport.writes == []
    assert whole.answered == parts.answered == (ended[0] is None)
    assert (whole.client.response_complete, whole.client.is_last) == (parts.client.response_complete, parts.client.is_last)


async def test_a_head_that_nothing_follows_goes_out_at_once(connection: Connection) -> None:
    await with_body(connection).write_head(200, [DATE])
    assert connection.text.endswith(b"transfer-encoding: chunked\r\n\r\n")


async def test_what_has_no_length_goes_in_chunks_to_its_end(connection: Connection) -> None:
    client = with_body(connection)
    await client.write_head(200, [DATE])
    del connection.transport.writes[:]
    assert client.takes_at_once
    client.write_now(b"0123456789", None)
    await client.write_body(b"x")
    await client.finish()
    assert connection.transport.writes == [b"a\r\n0123456789\r\n", b"1\r\nx\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_may_have_no_body_is_not_framed(connection: Connection, status: int) -> None:
    client = with_body(connection)
    await client.write_head(status, [DATE], goes_on=True)
    await client.finish()
    assert b"chunked" not in connection.text
    assert connection.text.endswith(b"\r\n\r\n")
    assert connection.answered == 1


async def test_every_answer_has_a_date(connection: Connection) -> None:
    await with_body(connection).write_head(429, [(b"content-length", b"0")])
    assert connection.text.count(b"\r\ndate: ") == 1


@pytest.mark.parametrize("why", ["the client wants it", "the body is still coming", "the server shuts down"])
async def test_the_last_answer_of_a_connection_says_so(why: str) -> None:
    connection = Connection(keep_alive=why != "the client wants it")
    client = connection.client
    if why != "the body is still coming":
        client.end_body()
    if why == "the server shuts down":
        client.keep_alive = False
    await client.write_head(200, [(b"content-length", b"0")])
    await client.finish()
    assert b"\r\nconnection: close\r\n" in connection.text
    assert client.is_last


@pytest.mark.parametrize("body", [b"12", b"1234"])
async def test_an_answer_that_is_not_as_long_as_it_said_is_a_bug_and_says_so(connection: Connection, body: bytes) -> None:
    client = with_body(connection)
    await client.write_head(200, [DATE, (b"content-length", b"3")])
    with pytest.raises(RuntimeError):  # noqa: PT012  # too long shows at the write, too short at the end
        await client.write_body(body)
        await client.finish()
    assert connection.answered == 0
    client.close()
    assert connection.transport.aborts == 1


async def test_a_write_that_waits_for_the_client_says_since_when(connection: Connection) -> None:
    client = with_body(connection)
    await client.write_head(200, [DATE])
    connection.flow.pause_writing()
    assert not client.takes_at_once
    writing = asyncio.create_task(client.write_body(b"slow"))
    await asyncio.sleep(0)
    since = client.blocked_since
    assert since is not None
    assert b"slow" not in connection.text
    connection.flow.resume_writing()
    await writing
    assert connection.client.blocked_since is None
    assert b"slow" in connection.text


async def test_a_write_that_is_cancelled_waits_no_more(connection: Connection) -> None:
    client = with_body(connection)
    await client.write_head(200, [DATE])
    connection.flow.pause_writing()
    writing = asyncio.create_task(client.write_body(b"slow"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert client.blocked_since is None


async def test_nothing_is_written_to_one_who_has_left(connection: Connection) -> None:
    client = with_body(connection)
    client.leave()
    await client.write_head(200, [DATE])
    await client.write_body(b"late")
    await client.finish()
    assert connection.transport.writes == []
    assert not client.takes_at_once


async def test_a_broken_answer_is_cut_at_the_connection_and_never_ended_tidily(connection: Connection) -> None:
    client = with_body(connection)
    await client.write_head(200, [DATE])
    client.abort()
    await client.finish()
    assert connection.transport.aborts == 1
    assert b"0\r\n\r\n" not in connection.text
    assert connection.answered == 0
    assert not client.gone, "we broke it; the client did not leave"


async def test_what_was_left_unanswered_is_broken_off(connection: Connection) -> None:
    with_body(connection).close()
    assert connection.transport.aborts == 1


async def test_an_answer_that_is_whole_is_left_in_peace(connection: Connection) -> None:
    client = with_body(connection)
    await client.write_head(200, [(b"content-length", b"0")])
    await client.finish()
    client.close()
    assert connection.transport.aborts == 0
