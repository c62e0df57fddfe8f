"""A small HTTP/1.1 client over asyncio streams, one connection per request: exact about when bytes came and how they ended."""

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024


class BrokenAnswer(Exception):
    """The connection failed, or the answer ended before it was whole or was no HTTP."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer whose head has come. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    _reader: asyncio.StreamReader

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes, unchunked. Raises BrokenAnswer if it ends early."""
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                async for part in self._chunks():
                    yield part
            elif "content-length" in self.headers:
                yield await self._reader.readexactly(int(self.headers["content-length"]))
            else:
                while part := await self._reader.read(_READ_BYTES):
                    yield part
        except (OSError, EOFError, ValueError) as error:
            raise BrokenAnswer(f"the answer broke off: {error!r}") from error

    async def body(self) -> bytes:
        """The whole body. Raises BrokenAnswer."""
        return b"".join([part async for part in self.parts()])

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            length = int((await self._reader.readline()).partition(b";")[0], 16)
            data = await self._reader.readexactly(length + 2)
            if length == 0:
                return
            yield data[:length]


@contextlib.asynccontextmanager
async def request(
    method: str, url: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> AsyncIterator[Exchange]:
    """Send a request and wait for the head of its answer; leaving the block closes the connection. Raises BrokenAnswer."""
    parts = urllib.parse.urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = {"host": parts.netloc, "connection": "close", "content-length": str(len(body)), **(headers or {})}
    head = f"{method} {target or '/'} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        raise BrokenAnswer(f"cannot connect to {parts.netloc}: {error}") from error
    try:
        try:
            writer.write(head.encode("latin-1") + body)
            await writer.drain()
            raw = await reader.readuntil(b"\r\n\r\n")
            status_line, *fields = raw.decode("latin-1").rstrip().split("\r\n")
            pairs = (field.partition(":") for field in fields)
            exchange = Exchange(int(status_line.split()[1]), {k.strip().lower(): v.strip() for k, _, v in pairs}, reader)
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise BrokenAnswer(f"no answer from {parts.netloc}: {error!r}") from error
        yield exchange
    finally:
        writer.close()


async def get(url: str, *, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """Status and body of a GET. Raises BrokenAnswer, also when it takes longer than `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s), request("GET", url) as exchange:
            return exchange.status, await exchange.body()
    except TimeoutError as error:
        raise BrokenAnswer(f"{url} did not answer in {timeout_s} s") from error
