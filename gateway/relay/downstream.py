"""What a client looks like to the relay: somebody to write to, who may be gone at any instant.

`Downstream` is the small face that the relay is written against, so that another front can share it. `AsgiDownstream` is
the one over ASGI. Both promise: a client that leaves is noticed at once, in every phase, even while nothing is written.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, Protocol

from gateway.core.errors import InvalidRequest
from gateway.core.outcomes import RejectReason

Headers = Sequence[tuple[bytes, bytes]]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Downstream(Protocol):
    """gone: the client has left, or was given up. blocked_since: when a write began to wait for the client, None: none."""

    gone: bool
    blocked_since: float | None

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` once when the client leaves; at once if it has left already. None: call nobody."""

    async def write_head(self, status: int, headers: Headers, *, goes_on: bool = False) -> None:
        """headers: names in lower case. goes_on: body or end follows in this very tick, so the head may go out with it."""

    async def write_body(self, data: bytes) -> None: ...

    async def finish(self) -> None:
        """The tidy end of the answer."""

    @property
    def takes_at_once(self) -> bool:
        """Whether `write_now` may be called or, before there was a head, `write_whole`: a write would wait for nobody."""

    def write_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """As `write_head`, `write_body` and `finish`, without waiting. Only while it `takes_at_once`. lines: the headers, as
        they stand in a head."""

    def write_now(self, data: bytes, chunk: bytes | None) -> bool:
        """As `write_body`, without waiting; False, and nothing is written, where it may not be called. chunk: the same data as
        one chunk of the chunked coding, if it came so."""

    def abort(self) -> None:
        """End visibly broken: the client sees that the answer is not whole. Plain, idempotent."""

    def give_up(self) -> None:
        """Treat a client that takes nothing as gone: abort, and say so to whoever asked by `on_gone`."""


class Client(Downstream, Protocol):
    """A downstream whose request is still to be read. stated_bytes: how long the body will be, where its head does not say."""

    stated_bytes: int | None

    async def read_body(self, limit_bytes: int, take: Callable[[int], None]) -> bytes:
        """The whole request body. Raises InvalidRequest above the limit; sets `gone` and calls back if the client leaves.

        take: told of each part's bytes before it is kept; what it raises ends the reading.
        """

    def whole_body(self, limit_bytes: int, take: Callable[[int], None]) -> bytes | None:
        """As `read_body`, if the body is all here and nothing need be waited for; None if it is not."""

    def watch(self) -> None:
        """From now on notice when the client leaves. Call once, after the body was read."""

    def unwatch(self) -> None:
        """The request has ended: call nobody any more."""


def too_large(limit_bytes: int) -> InvalidRequest:
    return InvalidRequest(
        f"the request body is larger than {limit_bytes} bytes",
        reason=RejectReason.BODY_TOO_LARGE,
        facts={"limit_bytes": limit_bytes},
    )


class AsgiDownstream:
    """A client behind an ASGI server.

    After the body was read, one task waits for the server's word that the client has left. `send` of uvicorn waits while
    its write buffer is above the high-water mark: that is the backpressure.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.gone = False
        self.blocked_since: float | None = None
        self.stated_bytes: int | None = None
        self._receive = receive
        self._send = send
        self._callback: Callable[[], None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._broken = False

    # `send` of a server may wait, and nothing tells whether it would.
    takes_at_once: Final = False

    def whole_body(self, limit_bytes: int, take: Callable[[int], None]) -> bytes | None:
        return None  # nor can it be told what a server has of a body that nobody asked for yet

    async def read_body(self, limit_bytes: int, take: Callable[[int], None] | None = None) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._leave()
                # The callback has cancelled the reader, which takes effect here and not after a body that is none.
                await asyncio.sleep(0)
                return b""
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            if take is not None:
                take(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def watch(self) -> None:
        self._watch = self._loop.create_task(self._wait_for_departure(), name="client departure")

    def unwatch(self) -> None:
        self._callback = None
        watch, self._watch = self._watch, None  # kept, the two would be a circle
        if watch is not None:
            watch.cancel()

    async def _wait_for_departure(self) -> None:
        while not self.gone:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._leave()

    def _leave(self) -> None:
        self.gone = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        if callback is not None and self.gone:
            callback()
        else:
            self._callback = callback

    def write_now(self, data: bytes, chunk: bytes | None) -> bool:
        return False

    def write_whole(self, status: int, lines: bytes, body: bytes) -> None:
        raise RuntimeError("an ASGI server may have to be waited for")

    async def write_head(self, status: int, headers: Headers, *, goes_on: bool = False) -> None:
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def write_body(self, data: bytes) -> None:
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._write({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, message: Message) -> None:
        if self.gone or self._broken:
            return
        self.blocked_since = self._loop.time()
        try:
            await self._send(message)
        finally:
            self.blocked_since = None

    def abort(self) -> None:
        self._broken = True
        break_off(self._send)

    def give_up(self) -> None:
        self.abort()
        if not self.gone:
            self._leave()


def break_off(send: Send) -> None:
    """End the answer behind an ASGI `send` at once and visibly, where the server lets one.

    `send` is a method of the server's own object for the exchange: ours (web/http_protocol.py) knows how to break it off,
    uvicorn's has the connection. An abort, not a close, which would first flush what a stalled client never takes. With
    another server a broken answer is still visible, since the application returns without finishing it.
    """
    exchange = getattr(send, "__self__", None)
    how = getattr(exchange, "break_off", None) or getattr(getattr(exchange, "transport", None), "abort", None)
    if how is not None:
        how()
