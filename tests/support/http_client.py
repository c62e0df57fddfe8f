"""A bare HTTP/1.1 client on a real socket: what a proxy did to the bytes is seen, not repaired.

Libraries hide what these tests are about: whether a chunked body came to its tidy end, what was sent after it, and how a
client leaves. Here a connection sends exactly the bytes it is given, reads one answer at a time, and can leave politely
(FIN), brutally (RST) or by half.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

PATIENCE_S = 20.0
"""No single wait of a test is longer: what takes longer has failed."""

_READ_LIMIT_BYTES = 1 << 22


class Broken(Exception):
    """The peer ended the connection before the answer's tidy end. `so_far` is the body that had come."""

    def __init__(self, what: str, so_far: bytes = b"") -> None:
        super().__init__(what)
        self.so_far = so_far


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers, names in lower case, in the order in which they came."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The header's only value, None if absent. Two of them is a fault in every test that asks for one."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name.lower()]

    def number(self, name: str) -> int:
        """A header that has to be there and to be a whole number."""
        value = self.get(name)
        assert value is not None, f"no {name} in {self.headers}"
        return int(value)

    @property
    def is_chunked(self) -> bool:
        return self.get("transfer-encoding") == "chunked"

    @property
    def is_event_stream(self) -> bool:
        return (self.get("content-type") or "").startswith("text/event-stream")


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer. is_tidy: the body came to the end that its framing promised."""

    head: Head
    body: bytes
    is_tidy: bool = True

    @property
    def status(self) -> int:
        return self.head.status

    def json(self) -> Any:
        """The body as strict JSON: NaN and its kin are refused, as a careful client would."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} in an answer is not JSON: {self.body[:300]!r}")

        return json.loads(self.body, parse_constant=refuse)

    @property
    def error(self) -> dict[str, Any]:
        """The `error` object of a refusal, which must have the four members that the OpenAI clients read."""
        found = self.json()
        assert isinstance(found, dict), found
        assert set(found) == {"error"}, found
        error = found["error"]
        assert isinstance(error, dict)
        assert {"message", "type", "param", "code"} <= set(error), error
        assert error["message"], error
        return error

    @property
    def events(self) -> list[bytes]:
        """The `data:` payloads of an event stream."""
        return sse_payloads(self.body)


def sse_payloads(body: bytes) -> list[bytes]:
    """The payload of each `data:` line, in order."""
    return [line[5:].strip() for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]


@dataclass(slots=True)
class Connection:
    """One TCP connection. Reading and writing are the test's to order; nothing happens behind its back."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str
    _head: Head | None = None
    _left_bytes: int | None = field(default=None)
    _body: bytearray = field(default_factory=bytearray)
    _ended: bool = True

    @classmethod
    async def open(cls, url: str, *, receive_buffer: int | None = None) -> Self:
        """Connect to the host and port of `url`. receive_buffer: bytes that the kernel may hold for a slow reader."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        sock = socket.socket(socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(PATIENCE_S):
                await loop.sock_connect(sock, (parts.hostname, parts.port))
                reader, writer = await asyncio.open_connection(sock=sock, limit=_READ_LIMIT_BYTES)
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer, f"{parts.hostname}:{parts.port}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.vanish()

    # -- sending

    async def send_raw(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            await self.writer.drain()

    async def send(self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Send one whole request, head and body in one write."""
        await self.send_raw(self.request_bytes(method, target, body, headers))

    def request_bytes(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b"")

    # -- reading

    async def head(self) -> Head:
        """The next answer's head. Interim answers (1xx) are skipped. Raises Broken if the peer leaves before it."""
        while True:
            head = await self._read_head()
            if head.status >= 200:
                break
        self._head = head
        self._body.clear()
        length = head.get("content-length")
        assert length is None or not head.is_chunked, f"both framings at once: {head.headers}"
        self._left_bytes = int(length) if length is not None else None
        self._ended = self._left_bytes == 0 or head.status in (204, 304)
        return head

    async def _read_head(self) -> Head:
        try:
            async with asyncio.timeout(PATIENCE_S):
                raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Broken(f"no head: {error!r}") from error
        status_line, *lines = raw[:-4].decode("latin-1").split("\r\n")
        assert status_line.startswith("HTTP/1.1 "), status_line
        pairs = (line.partition(":") for line in lines)
        return Head(int(status_line.split(" ")[1]), tuple((name.lower(), value.strip()) for name, _, value in pairs))

    async def read(self) -> bytes:
        """Some of the body; b"" at its tidy end. Raises Broken when the peer leaves before that."""
        assert self._head is not None, "no answer is being read"
        if self._ended:
            return b""
        try:
            async with asyncio.timeout(PATIENCE_S):
                data = await self._read_framed(self._head)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Broken(f"cut: {error!r}", bytes(self._body)) from error
        self._body += data
        return data

    async def _read_framed(self, head: Head) -> bytes:
        if head.is_chunked:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
            self._ended = size == 0
            return data
        if self._left_bytes is None:  # the end of the connection is the end of the body
            data = await self.reader.read(1 << 16)
            self._ended = not data
            return data
        data = await self.reader.read(min(self._left_bytes, 1 << 16))
        if not data:
            raise asyncio.IncompleteReadError(b"", self._left_bytes)
        self._left_bytes -= len(data)
        self._ended = self._left_bytes == 0
        return data

    async def chunks(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def read_until(self, needle: bytes) -> bytes:
        """Read on until the body has `needle`; the body so far. Raises Broken if it ends before."""
        while needle not in self._body:
            if not await self.read():
                raise Broken(f"ended without {needle!r}", bytes(self._body))
        return bytes(self._body)

    async def rest(self) -> Answer:
        """The answer whose head was read, to its end, tidy or not."""
        assert self._head is not None
        try:
            async for _ in self.chunks():
                pass
        except Broken as broken:
            return Answer(self._head, broken.so_far, is_tidy=False)
        return Answer(self._head, bytes(self._body))

    async def answer(self) -> Answer:
        """The next answer, whole."""
        await self.head()
        return await self.rest()

    async def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request, its one answer; the connection stays."""
        await self.send(method, target, body, headers)
        return await self.answer()

    async def is_silent(self, for_s: float = 0.05) -> bool:
        """Whether nothing more comes: no second answer, no byte after the end of the first."""
        try:
            async with asyncio.timeout(for_s):
                return not await self.reader.read(1)
        except TimeoutError:
            return True
        except ConnectionError:
            return True

    # -- leaving

    def vanish(self) -> None:
        """Leave with a reset, at once, whatever is unread or unsent."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def hang_up(self) -> None:
        """Leave as a process that closes its socket does: FIN, or a reset by the kernel if bytes lie unread."""
        self.writer.close()

    def half_close(self) -> None:
        """Shut the sending side only; the answer can still be read."""
        self.writer.write_eof()


async def ask(
    url: str, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own."""
    async with await Connection.open(url) as connection:
        return await connection.ask(method, target, body, headers)


async def post(url: str, target: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
    """POST a value as JSON on a connection of its own; the whole answer."""
    return await ask(url, "POST", target, json.dumps(body).encode(), headers)


async def open_post(url: str, target: str, body: object, headers: Mapping[str, str] | None = None) -> Connection:
    """POST a value as JSON and read nothing yet."""
    connection = await Connection.open(url)
    try:
        await connection.send("POST", target, json.dumps(body).encode(), headers)
    except BaseException:
        connection.vanish()
        raise
    return connection


def statuses(answers: Sequence[Answer]) -> dict[int, int]:
    """How many answers of each status."""
    counted: dict[int, int] = {}
    for answer in answers:
        counted[answer.status] = counted.get(answer.status, 0) + 1
    return counted
