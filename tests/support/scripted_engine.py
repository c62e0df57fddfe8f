"""A bare HTTP server on loopback that gives each path the answer that a test wrote for it, and logs what it was asked.

    async with ScriptedEngine() as engine:
        engine.json("/v1/models", {"data": []})
        engine.text("/metrics", "...")
        ... engine.url, engine.asked("/metrics") ...

A path without an answer is 404. One answer per connection. `go_away()` refuses connections until `come_back()`, on the
same port. Nothing here is a gateway's: it can be slow, huge, garbage, or silent.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

# For probes that never speak TLS: reading the usual certificates takes longer than a whole test.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Scripted:
    """What a path answers. gate: held back until it is set. raw: sent instead of a well-formed answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    raw: bytes | None = None


class ScriptedEngine:
    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.open = 0
        self.most_open = 0
        self.answers: dict[str, Scripted] = {}
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.come_back()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.go_away()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def come_back(self) -> None:
        """Listen, on the port of before."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def json(self, path: str, value: object, *, status: int = 200) -> None:
        self.answers[path] = Scripted(status, json.dumps(value).encode(), {"content-type": "application/json"})

    def text(self, path: str, body: str, *, status: int = 200, **headers: str) -> None:
        self.answers[path] = Scripted(status, body.encode(), headers)

    def forget(self, *paths: str) -> None:
        """Answer 404 there; everywhere if none is named."""
        for path in paths or tuple(self.answers):
            self.answers.pop(path, None)

    def asked(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side left: its right
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append(Seen(method, path, headers, body))
        answer = self.answers.get(path, Scripted(404, b'{"detail":"Not Found"}'))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if answer.gate is not None:
                await answer.gate.wait()
            writer.write(answer.raw if answer.raw is not None else _well_formed(answer))
            await writer.drain()
        finally:
            self.open -= 1


def _well_formed(answer: Scripted) -> bytes:
    fields = {"content-length": str(len(answer.body)), "connection": "close", **answer.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode() + answer.body
