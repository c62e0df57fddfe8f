"""An engine that costs next to nothing: `python -m benchmarks.proxies.engine --port 9100`.

Plain requests are answered at once. A stream goes as its prompt says (bodies.py), and every chunk is one send of its own, as
an engine sends each token: whatever comes together later was put together by somebody else.
"""

import argparse
import asyncio
import os
from typing import Any, Final, cast

import httptools
import uvloop

from benchmarks.proxies.bodies import ANSWER, STREAMS, WANTS_USAGE, StreamPlan, chunk, ending
from benchmarks.proxies.engine_pages import PAGES, metrics_page

_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END: Final = b"0\r\n\r\n"
# Only the prompt is long, so that the members of a body stand near one of its ends.
_NEAR_BYTES: Final = 2048


def plain(body: bytes, *, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """A whole answer."""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, content_type, len(body))
    return head + body


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


_ANSWER: Final = plain(ANSWER)
_UNKNOWN: Final = plain(b"{}", status=b"404 Not Found")


class Engine:
    """running: streams that have begun and not ended, and whose client is still there."""

    def __init__(self) -> None:
        self.running = 0

    async def serve(self, port: int) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self, loop), "127.0.0.1", port, backlog=4096)
        await server.serve_forever()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._parser: Any = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""
        self._stream: _Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cut()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer of HTTP/2 may be passed over
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._body = []
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if self._parser.get_method() == b"POST" and path.endswith(b"/chat/completions"):
            self._answer(b"".join(self._body))
        elif path == b"/metrics":
            self._transport.write(plain(metrics_page(self._engine.running), content_type=b"text/plain; version=0.0.4"))
        elif path in PAGES:
            self._transport.write(plain(PAGES[path]))
        else:
            self._transport.write(_UNKNOWN)

    def _answer(self, body: bytes) -> None:
        near = body if len(body) <= 2 * _NEAR_BYTES else body[:_NEAR_BYTES] + body[-_NEAR_BYTES:]
        if not STREAMS.search(near):
            self._transport.write(_ANSWER)
            return
        tail = WANTS_USAGE.search(near) is not None
        self._stream = _Stream(self._engine, self._loop, self._transport, StreamPlan.read(body), with_usage=tail)


class _Stream:
    """One answer, chunk by chunk."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        plan: StreamPlan,
        *,
        with_usage: bool,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._plan = plan
        self._with_usage = with_usage
        self._sent = 0
        self._is_running = True
        engine.running += 1
        transport.write(_STREAM_HEAD)
        self._due = loop.time()
        self._timer = self._next()

    def cut(self) -> None:
        """Its client is gone. After its end nothing happens."""
        self._timer.cancel()
        self._end()

    def _end(self) -> None:
        if self._is_running:
            self._is_running = False
            self._engine.running -= 1

    def _next(self) -> asyncio.Handle:
        if not self._plan.gap_ms:
            return self._loop.call_soon(self._tick)
        self._due += self._plan.gap_ms / 1000
        return self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        if not self._is_running:
            return
        self._send(framed(chunk(self._sent, self._plan)))
        self._sent += 1
        if self._sent < self._plan.chunks:
            self._timer = self._next()
            return
        self._end()
        self._send(framed(ending(self._plan, with_usage=self._with_usage)) + _END)

    def _send(self, data: bytes) -> None:
        """Now, and by itself: some loops gather what is written until their turn ends."""
        if not self._transport.get_write_buffer_size():
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                pass
            except OSError:
                self._transport.abort()
                return
        if data:
            self._transport.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.proxies.engine", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    try:
        uvloop.run(Engine().serve(parser.parse_args().port))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
