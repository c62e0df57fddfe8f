"""An engine and clients that cost so little that what is measured is the gateway: thousands of connections in one process."""

import asyncio
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from support.gateway_process import GatewayProcess

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"id":"c","choices":[{"index":0,"text":"tok ","finish_reason":null}]}\n\n'
_LAST = b'data: {"id":"c","choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
EVENT = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_LONG = _EVENT.replace(b"tok ", b"token " * 700)
LONG_EVENT = b"%x\r\n%b\r\n" % (len(_LONG), _LONG)
END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_LAST), _LAST)
_PLAIN = b'{"choices":[{"index":0,"text":"tok tok","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_PLAIN), _PLAIN)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

# The engine's budget is given by the settings: nothing is asked for but whether it is there.
SETTINGS = {
    "KVGATE_ENGINE": "static",
    "KVGATE_KV_BLOCKS": "1000000",
    "KVGATE_BLOCK_TOKENS": "16",
    "KVGATE_MAX_CONTEXT": "4096",
    "KVGATE_RESERVE": "0",
}


def raise_file_limit() -> int:
    """As many open files as may be. Returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class BenchEngine:
    """Answers at once. By its path, a stream is held after one event until `release` (`?hold`), or is 17 MB as fast as they are
    taken (`?flood`)."""

    def __init__(self) -> None:
        self.held: set[_EngineSide] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _EngineSide(self), "127.0.0.1", 0, backlog=8192)
        self.port = self._server.sockets[0].getsockname()[1]

    def tick(self) -> None:
        """One more event for each held stream."""
        for side in list(self.held):
            side.write(EVENT)

    def release(self) -> None:
        for side in list(self.held):
            side.write(END)
        self.held.clear()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()


class _EngineSide(asyncio.Protocol):
    def __init__(self, engine: BenchEngine) -> None:
        self._engine = engine
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._is_stream = False
        self._flood = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.held.discard(self)
        self._transport = None

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def on_message_begin(self) -> None:
        self._url, self._is_stream = b"", False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._is_stream = self._is_stream or b'"stream":true' in body

    def on_message_complete(self) -> None:
        if not self._url.startswith(b"/v1/completions"):
            self.write(NOT_FOUND)
        elif b"?hold" in self._url:
            self.write(HEAD + EVENT)
            self._engine.held.add(self)
        elif b"?flood" in self._url:
            self.write(HEAD)
            self._flood = 4_000
            self._pour()
        elif self._is_stream:
            self.write(HEAD + EVENT * 3 + END)
        else:
            self.write(PLAIN)

    def _pour(self) -> None:
        while self._flood and self._transport is not None and self._transport.get_write_buffer_size() < 65_536:
            self._flood -= 1
            self.write(LONG_EVENT)
        if self._flood == 0:
            self.write(END)

    def resume_writing(self) -> None:
        if self._flood:
            self._pour()


class BenchClient(asyncio.Protocol):
    """One connection that asks the same again and again, and counts its answers."""

    def __init__(self, done: Callable[["BenchClient"], None]) -> None:
        self.status: int | None = None
        self.body_bytes = 0
        self.is_lost = False
        self._done = done
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, url: str, done: Callable[["BenchClient"], None] = lambda client: None) -> "BenchClient":
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        _, client = await asyncio.get_running_loop().create_connection(lambda: cls(done), parts.hostname, parts.port)
        return client

    def ask(self, data: bytes) -> None:
        assert self._transport is not None
        self.status, self.body_bytes = None, 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def stop_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is not None:
            self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._transport = None
        self._done(self)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        self._done(self)


def request(query: bytes = b"", *, stream: bool = False) -> bytes:
    body = b'{"model":"m","prompt":[1,2,3],"max_tokens":16%b}' % (b',"stream":true' if stream else b"")
    return b"POST /v1/completions%b HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n\r\n%b" % (query, len(body), body)


def memory_bytes(gateway: GatewayProcess) -> int:
    """What the process has resident now."""
    pages = int(Path(f"/proc/{gateway.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def busy_s(gateway: GatewayProcess) -> float:
    """Seconds of a processor that the process has used."""
    fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
