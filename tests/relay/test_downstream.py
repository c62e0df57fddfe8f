"""A client behind ASGI: read to its limit, written to while it is there, and noticed at once when it leaves."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.outcomes import RejectReason
from gateway.relay.downstream import AsgiDownstream
from support.fake_upstream import eventually

DISCONNECT = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


class Transport:
    def __init__(self) -> None:
        self.aborts = 0

    def abort(self) -> None:
        self.aborts += 1


class Server:
    """The server's side of ASGI: its messages are given by the test, and it can be slow to take ours."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[MutableMapping[str, Any]] = []
        self.takes = asyncio.Event()
        self.takes.set()
        self.transport = Transport()

    def say(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.incoming.put_nowait(message)

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.takes.wait()
        self.sent.append(message)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsgiDownstream]:
    client = AsgiDownstream(server.receive, server.send)
    yield client
    client.unwatch()
    await eventually(lambda: all("departure" not in task.get_name() for task in asyncio.all_tasks()))


async def test_a_body_in_parts_is_one_body(server: Server, client: AsgiDownstream) -> None:
    server.say(part(b"ab", more=True), part(b"", more=True), part(b"c"))
    assert await client.read_body(3) == b"abc"


async def test_a_message_without_a_body_is_an_empty_body(server: Server, client: AsgiDownstream) -> None:
    server.say({"type": "http.request"})
    assert await client.read_body(0) == b""


async def test_a_body_above_the_limit_is_refused_as_soon_as_it_is(server: Server, client: AsgiDownstream) -> None:
    server.say(part(b"abc", more=True), part(b"d", more=True))
    with pytest.raises(InvalidRequest) as refused:
        await client.read_body(3)
    assert refused.value.reason is RejectReason.BODY_TOO_LARGE
    assert refused.value.facts == {"limit_bytes": 3}


async def test_a_client_that_leaves_during_its_upload_is_gone(server: Server, client: AsgiDownstream) -> None:
    left: list[bool] = []
    client.on_gone(lambda: left.append(True))
    server.say(part(b"ab", more=True), DISCONNECT)
    assert await client.read_body(10) == b""
    assert client.gone
    assert left == [True]


async def test_a_client_that_leaves_while_nothing_is_written_is_told_at_once(server: Server, client: AsgiDownstream) -> None:
    left = asyncio.Event()
    client.on_gone(left.set)
    client.watch()
    await asyncio.sleep(0)
    assert not client.gone
    server.say(DISCONNECT)
    async with asyncio.timeout(5):
        await left.wait()
    assert client.gone


async def test_what_else_the_server_says_is_no_departure(server: Server, client: AsgiDownstream) -> None:
    client.watch()
    server.say(part(b""), part(b""))
    await eventually(server.incoming.empty)
    assert not client.gone


async def test_who_asks_late_is_called_at_once_and_everybody_once_only(server: Server, client: AsgiDownstream) -> None:
    left: list[str] = []
    client.on_gone(lambda: left.append("first"))
    client.give_up()
    client.give_up()
    client.on_gone(lambda: left.append("second"))
    assert left == ["first", "second"]


async def test_who_asks_for_nobody_calls_nobody(server: Server, client: AsgiDownstream) -> None:
    left: list[str] = []
    client.on_gone(lambda: left.append("first"))
    client.on_gone(None)
    client.give_up()
    assert left == []


async def test_an_answer_is_written_in_order_and_has_a_tidy_end(server: Server, client: AsgiDownstream) -> None:
    await client.write_head(200, [(b"a", b"b")])
    await client.write_body(b"one")
    await client.finish()
    assert server.sent == [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
        {"type": "http.response.body", "body": b"one", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": False},
    ]


async def test_a_write_that_waits_for_the_client_says_since_when(server: Server, client: AsgiDownstream) -> None:
    server.takes.clear()
    writing = asyncio.create_task(client.write_body(b"slow"))
    await asyncio.sleep(0)
    assert client.blocked_since is not None
    server.takes.set()
    await writing
    assert client.blocked_since is None


async def test_a_write_that_is_cancelled_waits_no_more(server: Server, client: AsgiDownstream) -> None:
    server.takes.clear()
    writing = asyncio.create_task(client.write_body(b"slow"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert client.blocked_since is None


async def test_nothing_is_written_to_one_who_has_left(server: Server, client: AsgiDownstream) -> None:
    client.watch()
    server.say(DISCONNECT)
    await eventually(lambda: client.gone)
    await client.write_head(200, [])
    await client.write_body(b"late")
    await client.finish()
    assert server.sent == []


async def test_a_broken_answer_is_cut_at_the_connection_and_never_ended_tidily(server: Server, client: AsgiDownstream) -> None:
    await client.write_head(200, [])
    client.abort()
    await client.finish()
    assert server.transport.aborts == 1
    assert [message["type"] for message in server.sent] == ["http.response.start"]
    assert not client.gone, "we broke it; the client did not leave"


async def test_a_broken_answer_is_unfinished_also_where_the_connection_cannot_be_found() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return DISCONNECT

    client = AsgiDownstream(receive, send)
    client.abort()
    await client.finish()
    assert sent == []
