"""A bare HTTP/1.1 server that does exactly what a test tells it, well or badly, and logs what it saw.

No HTTP library is underneath, so that it can misbehave in any way. For every request it runs one *behaviour*:

    async def behaviour(exchange: FakeExchange) -> None

started when the head has arrived (so that an answer may precede the body: `await exchange.body()` reads it) and
cancelled when the client goes away. Which behaviour runs:

    server = FakeUpstream(default=answer(200, b"ok"))
    server.script("tag", reset_before_head())              # every request tagged "tag"
    server.script("tag", reset_before_head(), answer())    # the first one, then the second; the last one stays
    async with server:
        ... server.url, server.port ...

A request is tagged by its header `x-tag`, or else by the text `[tag:NAME]` anywhere in its body (then the body is read
before the behaviour starts), or else by nothing: the default runs. `support.fake_engine.FakeEngine` is a default that
looks like a vLLM server.

The log: `server.requests` (a `SeenRequest` each, in order of arrival: raw head, headers, body, times, bytes sent, how it
ended and when the client was seen to go), `server.connections_seen`, `server.connections_open`, `server.open_requests(tag)`,
`server.high_water(tag)` (the most that were open at once). Times are `time.monotonic()` seconds. A request is open from
its head until its behaviour has ended, or until its connection is gone, whichever is first.

Facts are awaited, never slept for: `await eventually(lambda: server.open_requests() == 0)`.
"""

import asyncio
import re
import socket
import ssl
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast

Header = tuple[bytes, bytes]


async def eventually(fact: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Return once `fact()` is true; AssertionError if it does not become so in `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, f"did not come true within {within_s} s"
        await asyncio.sleep(0.002)


@dataclass(slots=True)
class SeenRequest:
    """One request as it came off the wire. `end` is None while it is open."""

    tag: str
    method: bytes
    target: bytes
    headers: list[Header]
    raw_head: bytes
    connection: int  # which connection it came on, counted from 1
    turn: int  # which request on that connection, counted from 1
    head_at: float
    body: bytes = b""
    body_at: float | None = None
    sent_bytes: int = 0  # of answer, taken by the kernel
    end: str | None = None  # "answered", "client gone", "reset", "closed"
    ended_at: float | None = None

    def header(self, name: str) -> bytes | None:
        """The first header of that name, None if there is none."""
        wanted = name.lower().encode()
        return next((value for key, value in self.headers if key.lower() == wanted), None)


class FakeExchange:
    """One request in the hands of its behaviour."""

    def __init__(self, connection: "_FakeConnection", request: SeenRequest) -> None:
        self.request = request
        self.keep_alive = True  # set False to close after the behaviour
        self._connection = connection

    async def body(self) -> bytes:
        """The whole request body."""
        return await self._connection.read_body(self.request)

    async def send(self, *pieces: bytes) -> None:
        """Write each piece in a system call of its own, waiting until the kernel took it."""
        for piece in pieces:
            await self._connection.write(piece)
            self.request.sent_bytes += len(piece)

    def reset(self) -> None:
        """Close with a TCP reset: what the client has not read yet is lost."""
        self._connection.finish("reset")

    def close(self) -> None:
        """Close in an orderly way, without another byte."""
        self._connection.finish("closed")


Behaviour = Callable[[FakeExchange], Awaitable[None]]


@dataclass(slots=True)
class _Script:
    behaviours: list[Behaviour]

    def next(self) -> Behaviour:
        return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]


@dataclass
class FakeUpstream:
    """The server. `port` is 0 until it was started, then fixed: `stop()` and `start()` come back on the same one.

    drop_idle_after_s: close kept-alive connections that were idle for so long, without a word.
    reset_on_accept: reset every new connection at once (may be changed while running).
    faults: what behaviours raised, or requests that could not be parsed; leaving `async with` raises the first.
    """

    default: Behaviour
    drop_idle_after_s: float | None = None
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    reset_on_accept: bool = False
    requests: list[SeenRequest] = field(default_factory=list)
    connections_seen: int = 0
    faults: list[Exception] = field(default_factory=list)
    _connections: set["_FakeConnection"] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _scripts: dict[str, _Script] = field(default_factory=dict)
    _open: Counter[str] = field(default_factory=Counter)
    _high: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _high_in_all: int = 0
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; afterwards `port` is the real one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _FakeConnection(self), self.host, self.port, ssl=self.tls, reuse_address=True, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections from now on, cut those that are open, and wait until they are gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.finish("reset")
        await eventually(lambda: not self._connections and not self._tasks)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()
        if self.faults and error is None:
            raise self.faults[0]

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    def script(self, tag: str, *behaviours: Behaviour) -> None:
        """Requests tagged `tag` get these, one each in turn; the last one goes on for ever."""
        self._scripts[tag] = _Script(list(behaviours))

    def drop_connections(self) -> None:
        """Close every connection in an orderly way, idle or not."""
        for connection in list(self._connections):
            connection.finish("closed")

    def tagged(self, tag: str) -> list[SeenRequest]:
        """The requests of one tag, in order of arrival."""
        return [request for request in self.requests if request.tag == tag]

    def open_requests(self, tag: str | None = None) -> int:
        """How many are open now, of one tag or in all."""
        return self._open.total() if tag is None else self._open[tag]

    def high_water(self, tag: str | None = None) -> int:
        """The most that were open at once, of one tag or in all."""
        return self._high_in_all if tag is None else self._high[tag]

    def opened(self, request: SeenRequest) -> None:
        self.requests.append(request)
        self._open[request.tag] += 1
        self._high[request.tag] = max(self._high[request.tag], self._open[request.tag])
        self._high_in_all = max(self._high_in_all, self._open.total())

    def ended(self, request: SeenRequest, end: str) -> None:
        if request.end is None:
            request.end = end
            request.ended_at = time.monotonic()
            self._open[request.tag] -= 1

    def behaviour_for(self, tag: str) -> Behaviour:
        script = self._scripts.get(tag)
        return self.default if script is None else script.next()

    def watch(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def joined(self, connection: "_FakeConnection") -> int:
        self._connections.add(connection)
        self.connections_seen += 1
        return self.connections_seen

    def left(self, connection: "_FakeConnection") -> None:
        self._connections.discard(connection)


class _FakeConnection(asyncio.Protocol):
    """Reads requests one after the other and runs a behaviour for each; one task per connection."""

    def __init__(self, server: FakeUpstream) -> None:
        self._server = server
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._request: SeenRequest | None = None
        self._body_read = True
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._number = 0

    # what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._number = self._server.joined(self)
        # No buffer of our own: `sent_bytes` then means what the kernel took.
        if self._server.tls is None:  # asyncio's TLS would never resume
            self._transport.set_write_buffer_limits(high=0)
        if self._server.reset_on_accept:
            self._transport.abort()
            return
        self._task = asyncio.create_task(self._serve(), name=f"fake upstream connection {self._number}")
        self._server.watch(self._task)

    def data_received(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._buffer += data
        self._arrived.set()

    def eof_received(self) -> None:
        """A half-closed client counts as gone, as it does in vLLM; returning None closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.left(self)
        if self._request is not None:
            self._server.ended(self._request, "client gone")
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # what behaviours call

    async def write(self, data: bytes) -> None:
        self._transport.write(data)
        await self._writable.wait()

    def finish(self, end: str) -> None:
        if self._request is not None:
            self._server.ended(self._request, end)
        if end == "reset":
            _reset(self._transport)
        else:
            self._transport.close()

    async def read_body(self, request: SeenRequest) -> bytes:
        if not self._body_read:
            self._body_read = True
            length = request.header("content-length")
            if (request.header("transfer-encoding") or b"").lower() == b"chunked":
                request.body = await self._read_chunks()
            elif length is not None:
                request.body = await self._take(int(length))
            request.body_at = time.monotonic()
        return request.body

    # reading

    async def _serve(self) -> None:
        try:
            await self._serve_in_turn()
        except Exception as fault:
            self._server.faults.append(fault)
            self._transport.abort()

    async def _serve_in_turn(self) -> None:
        for turn in range(1, 1_000_000):
            request = await self._read_head(turn)
            if not request.tag and (found := re.search(rb"\[tag:([\w.-]+)\]", await self.read_body(request))):
                request.tag = found[1].decode()
            self._request = request
            self._server.opened(request)
            exchange = FakeExchange(self, request)
            await self._server.behaviour_for(request.tag)(exchange)
            self._server.ended(request, "answered")
            if not exchange.keep_alive or not self._body_read:
                self._transport.close()
            if self._transport.is_closing():
                return

    async def _read_head(self, turn: int) -> SeenRequest:
        if turn > 1 and not self._buffer and self._server.drop_idle_after_s is not None:
            self._idle = asyncio.get_running_loop().call_later(self._server.drop_idle_after_s, self._transport.close)
        raw = await self._take_until(b"\r\n\r\n")
        first, *lines = raw[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
        self._body_read = False
        request = SeenRequest("", method, target, headers, raw, self._number, turn, head_at=time.monotonic())
        request.tag = (request.header("x-tag") or b"").decode("latin-1")
        return request

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int((await self._take_until(b"\r\n")).split(b";")[0], 16):
            body += (await self._take(size + 2))[:-2]
        while await self._take_until(b"\r\n") != b"\r\n":
            pass
        return body

    async def _take_until(self, mark: bytes) -> bytes:
        while (at := self._buffer.find(mark)) < 0:
            await self._fill(len(self._buffer) + 1)
        return await self._take(at + len(mark))

    async def _take(self, length: int) -> bytes:
        await self._fill(length)
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    async def _fill(self, length: int) -> None:
        while len(self._buffer) < length:
            self._arrived.clear()
            await self._arrived.wait()


def _reset(transport: asyncio.Transport) -> None:
    """Close so that the peer sees a reset: no lingering, whatever waits is thrown away."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


# Behaviours, ready made.


def head(status: int = 200, headers: Sequence[Header] = (), *, reason: bytes = b"Said So") -> bytes:
    """The bytes of an answer's head."""
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines)


def chunk(data: bytes, *, extension: bytes = b"") -> bytes:
    """One chunk of a chunked body; of no data, the last one (without trailers)."""
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def answer(
    status: int = 200,
    body: bytes = b"ok",
    headers: Sequence[Header] = ((b"content-type", b"text/plain"),),
    *,
    framing: str = "length",
    after_s: float = 0.0,
) -> Behaviour:
    """A well-formed answer after the body was read. framing: "length", "chunked" (two chunks) or "close"."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await asyncio.sleep(after_s)
        if framing == "length":
            await exchange.send(head(status, [*headers, (b"content-length", b"%d" % len(body))]) + body)
        elif framing == "chunked":
            half = len(body) // 2
            pieces = [chunk(piece) for piece in (body[:half], body[half:]) if piece]
            await exchange.send(head(status, [*headers, (b"transfer-encoding", b"chunked")]) + b"".join(pieces) + chunk(b""))
        else:
            await exchange.send(head(status, headers) + body)
            exchange.keep_alive = False

    return behave


def send_raw(*pieces: bytes, then: str = "keep", gap_s: float = 0.0, read_body: bool = True) -> Behaviour:
    """Send these very bytes, a write each, `gap_s` apart. then: "keep" the connection, "close" it, "reset" it, or "hang"."""

    async def behave(exchange: FakeExchange) -> None:
        if read_body:
            await exchange.body()
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(gap_s)
            await exchange.send(piece)
        if then == "close":
            exchange.close()
        elif then == "reset":
            exchange.reset()
        elif then == "hang":
            await asyncio.Event().wait()

    return behave


def reset_before_head() -> Behaviour:
    """Read the whole request, then reset."""
    return send_raw(then="reset")


def close_before_head() -> Behaviour:
    """Read the whole request, then close without an answer."""
    return send_raw(then="close")


def never_answer() -> Behaviour:
    """Read the whole request and stay silent until the client goes."""
    return send_raw(then="hang")


def stream(
    events: int | None,
    *,
    event: Callable[[int], bytes] = lambda number: b"data: %d\n\n" % number,
    gap_s: float = 0.0,
    then: str = "end",
) -> Behaviour:
    """A chunked event stream, one event a write. events: None goes on for ever. then: "end", "close", "reset" or "hang"."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]))
        number = 0
        while events is None or number < events:
            await exchange.send(chunk(event(number)))
            number += 1
            await asyncio.sleep(gap_s)
        if then == "end":
            await exchange.send(chunk(b""))
        elif then == "close":
            exchange.close()
        elif then == "reset":
            exchange.reset()
        else:
            await asyncio.Event().wait()

    return behave
