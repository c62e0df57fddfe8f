"""A client on one of our own connections, with no ASGI in between: its body comes from the parser, its answer goes to the
transport.

It is what HttpProtocol makes of an ordinary request to an inference route. It promises what AsgiDownstream promises, and:
* a request whose body is there, and an answer that its client takes, cost no task, future or timer here.
* head and first bytes go out as one write, and so does each write of the relay's.
"""

import asyncio
import http
from collections.abc import Callable
from functools import cache
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.batched import BatchedTask
from gateway.core.errors import InvalidRequest
from gateway.relay.downstream import Headers, too_large
from gateway.relay.headers import date_header, header_lines

_PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus}
_LENGTH: Final = b"\r\ncontent-length: "
_BODILESS: Final = frozenset({204, 304})


@cache
def status_line(status: int) -> bytes:
    """As it stands at the beginning of an answer. status: of three digits."""
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()


class WireClient:
    """One request and its answer on a connection that carries no other in the meantime.

    keep_alive: the connection may carry another request. on_answered: called when the answer has been written whole.
    task: the one that serves it, as the protocol says before that begins.
    stated_bytes: how long the body will be, if that is not what its head says.
    more_body, unread_bytes, response_complete, is_last: as a cycle has them, for the protocol.
    """

    __slots__ = (
        "_callback",
        "_fault",
        "_flow",
        "_head",
        "_is_broken",
        "_is_chunked",
        "_loop",
        "_on_answered",
        "_reader",
        "_transport",
        "_unread",
        "_unsent_bytes",
        "blocked_since",
        "gone",
        "is_last",
        "keep_alive",
        "more_body",
        "response_complete",
        "stated_bytes",
        "task",
        "unread_bytes",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: FlowControl,
        loop: asyncio.AbstractEventLoop,
        *,
        keep_alive: bool,
        on_answered: Callable[[], None],
    ) -> None:
        self.gone = False
        self.blocked_since: float | None = None
        self.keep_alive = keep_alive
        self.is_last = False
        self.more_body = True
        self.task: BatchedTask
        self.response_complete = False
        self.stated_bytes: int | None = None
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._on_answered = on_answered
        self._callback: Callable[[], None] | None = None
        self._unread: list[bytes] = []
        self.unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._fault: InvalidRequest | None = None
        self._head = b""  # waits for the bytes that follow at once
        self._is_chunked = False
        self._unsent_bytes = 0  # of the length that the head has stated
        self._is_broken = False

    # What the protocol tells.

    def take_body(self, data: bytes) -> None:
        """More of the body has come."""
        self._unread.append(data)
        self.unread_bytes += len(data)
        self._wake()

    def take_whole(self, body: bytes) -> None:
        """The whole body has come at once, before anybody could ask for it."""
        self._unread.append(body)
        self.unread_bytes = len(body)
        self.more_body = False

    def end_body(self) -> None:
        """The body is whole."""
        self.more_body = False
        self._wake()

    def break_body(self, why: str) -> None:
        """The body will never be whole."""
        self._fault = InvalidRequest(why)
        self.keep_alive = False
        self._wake()

    def leave(self) -> None:
        """The client has gone."""
        if self.gone:
            return
        self.gone = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # What a request needs.

    def whole_body(self, limit_bytes: int, take: Callable[[int], None]) -> bytes | None:
        if self.more_body or self.gone or self._fault is not None:
            return None
        if self.unread_bytes > limit_bytes:
            raise too_large(limit_bytes)
        take(self.unread_bytes)
        parts, self._unread = self._unread, []
        self.unread_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_body(self, limit_bytes: int, take: Callable[[int], None]) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            if self.gone:
                await asyncio.sleep(0)  # the callback has cancelled the reader, which takes effect here
            if self._fault is not None:
                raise self._fault
            size += self.unread_bytes
            if size > limit_bytes:
                raise too_large(limit_bytes)
            for part in self._unread:
                take(len(part))
            parts += self._unread
            self._unread = []
            self.unread_bytes = 0
            if not self.more_body:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            self._flow.resume_reading()
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def watch(self) -> None:
        """The protocol tells in any case when the client leaves."""

    def unwatch(self) -> None:
        self._callback = None

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        if callback is not None and self.gone:
            callback()
        else:
            self._callback = callback

    # What the relay needs.

    async def write_head(self, status: int, headers: Headers, *, goes_on: bool = False) -> None:
        if self._is_over():
            return
        self._take_head(status, header_lines(headers))
        if not goes_on:
            await self._write(b"")

    def _take_head(self, status: int, lines: bytes) -> None:
        """The head is as it goes out now, and waits for what goes out with it."""
        if self.more_body:
            self.keep_alive = False  # what is still to come of the body cannot be told from a next request
        head = status_line(status) + lines
        if b"\r\ndate: " not in head:
            head += header_lines((date_header(),))
        if not self.keep_alive:
            head += b"connection: close\r\n"
        length = head.find(_LENGTH) + len(_LENGTH)
        if length >= len(_LENGTH):
            self._unsent_bytes = int(head[length : head.index(b"\r", length)])
        elif status not in _BODILESS:
            self._is_chunked = True
            head += b"transfer-encoding: chunked\r\n"
        self._head = head + b"\r\n"

    async def write_body(self, data: bytes) -> None:
        if not self._is_over():
            await self._write(self._framed(data))

    @property
    def takes_at_once(self) -> bool:
        return not (self._flow.write_paused or self._head or self._is_broken or self.gone)

    def write_now(self, data: bytes, chunk: bytes | None) -> bool:
        if self._flow.write_paused or self._head or self._is_broken or self.gone:
            return False
        self._transport.write(chunk if chunk is not None and self._is_chunked else self._framed(data))
        return True

    def write_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._take_head(status, lines)
        framed = self._framed(body) if body else b""
        self._check_length()
        head, self._head = self._head, b""
        self._transport.write(head + framed + b"0\r\n\r\n" if self._is_chunked else head + framed)
        self._end()

    async def finish(self) -> None:
        if self._is_over():
            return
        self._check_length()
        if self._is_chunked or self._head:
            await self._write(b"0\r\n\r\n" if self._is_chunked else b"")
        if self._is_over():  # while the end of it waited
            return
        self._end()

    def _check_length(self) -> None:
        if self._unsent_bytes:
            raise RuntimeError(f"the answer is {self._unsent_bytes} bytes shorter than its head says")

    def _end(self) -> None:
        """All of it has been written."""
        self.response_complete = True
        if not self.keep_alive:
            self.is_last = True
        self._on_answered()

    def abort(self) -> None:
        self._is_broken = True
        self._transport.abort()

    def give_up(self) -> None:
        self.abort()
        self.leave()

    def _is_over(self) -> bool:
        """Nothing more can be written."""
        return self.gone or self._is_broken

    def _framed(self, data: bytes) -> bytes:
        """A part of the body as it goes out."""
        if self._is_chunked:
            return b"%x\r\n%b\r\n" % (len(data), data)
        self._unsent_bytes -= len(data)
        if self._unsent_bytes < 0:
            raise RuntimeError(f"the answer is {-self._unsent_bytes} bytes longer than its head says")
        return data

    async def _write(self, data: bytes) -> None:
        """Write, behind the head if that is still here, once the client takes it."""
        if self._flow.write_paused:
            self.blocked_since = self._loop.time()
            try:
                await self._flow.drain()
            finally:
                self.blocked_since = None
        if self._is_over():
            return
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def close(self) -> None:
        """Whoever served the request has left it: what is not answered by now never will be."""
        if not self.response_complete and not self._is_over():
            self.abort()
