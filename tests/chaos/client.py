"""A client of the storm: it sends what its plan says, behaves or dies as its plan says, and tells what it saw."""

import asyncio
import json
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httptools

from chaos.answers import events_of, expected_of
from chaos.plan import ANSWERED, WHOLE, Act, Death, Manner, Plan

PATIENCE_S = 60
"""Every clock of the gateway is shorter by far: what takes longer hangs."""

_SLOW_READ_S = 0.02
_READS_NOTHING_S = 1.5


@dataclass(slots=True)
class Seen:
    """What a client saw of its request. status None: no head came. is_tidy: the answer came to its framing's end.

    has_left: the client itself broke off, so that nothing can be demanded of what it saw.
    """

    plan: Plan
    has_left: bool = False
    is_refused: bool = False  # no connection
    status: int | None = None
    request_id: str | None = None
    content_type: str = ""
    encoding: str = ""
    body: bytes = b""
    is_tidy: bool = False

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    @property
    def code(self) -> str | None:
        """The `code` of an error answer, or of an error event of a stream; None if there is none."""
        for text in reversed(self.body.split(b"\n\n")) if self.is_event_stream else [self.body]:
            if self.is_event_stream and b'"error"' not in text:
                continue
            try:
                return str(json.loads(text.removeprefix(b"data: "))["error"]["code"])
            except (ValueError, TypeError, KeyError, UnicodeDecodeError):
                continue
        return None

    def faults(self) -> list[str]:
        """What of this no honest gateway would show, the client having behaved."""
        plan = self.plan
        if self.has_left or self.status is None:
            return []
        told = f"plan {plan.number} ({plan.kind}, {plan.act}): status {self.status}, tidy {self.is_tidy}, code {self.code}"
        if self.status == 500 and plan.act is not Act.FAILS:
            return [f"{told}: a failure of the gateway's own"]
        if self.status != 200:
            return [] if self.is_tidy else [f"{told}: an error answer that is not whole"]
        if not self.is_tidy:
            return []  # visibly broken
        if self.code is not None and self.is_event_stream:
            return []  # broken, and it says so
        if plan.kind == "uncounted" and plan.act is Act.NO_END:
            return []  # what is not counted is not read either
        if plan.act not in ANSWERED:
            return [f"{told}: whole, though the engine's answer was not: {self.body[-200:]!r}"]
        if plan.act in WHOLE and self.body not in self._possible():
            return [f"{told}: other bytes than the engine's: {self.body[-200:]!r}"]
        return []

    def _possible(self) -> list[bytes]:
        plan = self.plan
        with_usage = [b"".join(events_of(plan, wants_usage=True))] if plan.is_stream else []
        if plan.act is Act.ZIPPED:
            # Nothing can be cut out of a compressed answer, the usage event neither.
            return [zlib.compress(text, wbits=31) for text in (expected_of(plan), *with_usage)]
        return [expected_of(plan), *(with_usage if plan.act is Act.USAGE_LIES else [])]


class ClientConnection(asyncio.Protocol):
    """One connection to the gateway, which parses what comes and wakes whoever waits for more."""

    def __init__(self) -> None:
        self.is_lost = False
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self.seen: Seen | None = None
        self._parts: list[bytes] = []
        self._bytes = 0
        self._keeps_alive = False
        self._is_whole = False
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        seen = self.seen
        if seen is None:
            return "nothing asked"
        plan = seen.plan
        where = f"status {seen.status}, {self._bytes} bytes, request {seen.request_id}"
        return (
            f"plan {plan.number} ({plan.kind}, {plan.act}, {plan.manner}, stream {plan.is_stream}): {where}, {self._kernel()}"
        )

    def _kernel(self) -> list[str]:
        """What the kernel and the loop know of this connection: both ends' queues, and what is waited for."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return []
        port = f":{transport.get_extra_info('sockname')[1]:04X} "
        ends = [line[:78].strip() for line in Path("/proc/net/tcp").read_text().splitlines() if port in line]
        mark = f"tfd: {transport.get_extra_info('socket').fileno():8d} "
        polls = [line for info in Path("/proc/self/fdinfo").iterdir() for line in _lines(info) if line.startswith(mark)]
        return [*ends, f"is reading: {transport.is_reading()}", *polls]

    @property
    def is_usable(self) -> bool:
        return not self.is_lost and self._keeps_alive and self._is_whole

    @property
    def is_over(self) -> bool:
        return self._is_whole or self.is_lost

    @property
    def body_bytes(self) -> int:
        return self._bytes

    def more_than(self, body_bytes: int) -> Callable[[], bool]:
        return lambda: self._bytes > body_bytes

    def ask(self, data: bytes, seen: Seen) -> None:
        """Send the request, or a part of it, whose answer goes into `seen`."""
        self.seen, self._parts, self._bytes, self._is_whole = seen, [], 0, False
        self._parser = httptools.HttpResponseParser(self)
        self.send(data)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    async def until(self, fact: Callable[[], bool], within_s: float) -> bool:
        """Whether `fact` comes true in time, or the answer or the connection ends before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not self.is_over and not fact():
            if loop.time() >= deadline:
                return False
            self._waiter = loop.create_future()
            timer = loop.call_at(deadline, self._wake)  # anew each time: under uvloop it may come a little early
            try:
                await self._waiter
            finally:
                self._waiter = None
                timer.cancel()
        return True

    def leave(self, death: Death) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        match death:
            case Death.FIN:
                transport.close()
            case Death.RST:
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                transport.abort()
            case Death.HALF:
                transport.write_eof()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _store(self) -> None:
        if self.seen is not None:
            self.seen.body = b"".join(self._parts)

    # What the loop and the parser call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is not None:
            self._parser.feed_data(data)
        self._wake()

    def eof_received(self) -> None:
        """Returning None closes our side as well."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._store()
        self._transport = None
        self._parser = None
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        seen = self.seen
        if seen is None:
            return
        match name.lower():
            case b"x-kvgate-request-id":
                seen.request_id = value.decode("latin-1")
            case b"content-type":
                seen.content_type = value.decode("latin-1")
            case b"content-encoding":
                seen.encoding = value.decode("latin-1")
            case _:
                pass

    def on_headers_complete(self) -> None:
        if self.seen is not None:
            self.seen.status = self._parser.get_status_code()
            self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._bytes += len(body)

    def on_message_complete(self) -> None:
        self._is_whole = True
        if self.seen is not None:
            self.seen.is_tidy = True
        self._store()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def request_bytes(plan: Plan, host: str) -> bytes:
    lines = [f"POST {plan.path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", *plan.headers]
    lines.append(f"Content-Length: {len(plan.body)}")
    if not plan.keeps_connection:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + plan.body


class Client:
    """Sends one plan after the other, on the connection of before where that is still good. report: takes findings."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._connection: ClientConnection | None = None

    async def run(self, plan: Plan, port: int) -> Seen:
        seen = Seen(plan)
        try:
            connection = await self._connect(plan, port)
        except OSError:
            seen.is_refused = True
            return seen
        self._connection = None
        try:
            await self._behave(connection, plan, seen, request_bytes(plan, f"127.0.0.1:{port}"))
        finally:
            if plan.keeps_connection and not seen.has_left and connection.is_usable:
                self._connection = connection
            else:
                connection.leave(Death.FIN)
        return seen

    def close(self) -> None:
        if self._connection is not None:
            self._connection.leave(Death.FIN)
            self._connection = None

    async def _connect(self, plan: Plan, port: int) -> ClientConnection:
        connection = self._connection
        if connection is not None and connection.is_usable and not plan.is_big:
            return connection
        self.close()
        connection = ClientConnection()
        sock = socket.socket()
        try:
            if plan.is_big:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.create_connection(lambda: connection, sock=sock)
        except BaseException:
            sock.close()
            raise
        return connection

    async def _behave(self, connection: ClientConnection, plan: Plan, seen: Seen, data: bytes) -> None:
        match plan.manner:
            case Manner.DIES_UPLOADING | Manner.STOPS_UPLOADING:
                connection.ask(data[: int(plan.at * len(data))], seen)
                if plan.manner is Manner.STOPS_UPLOADING:
                    # It stays until the gateway loses patience; within a head that is the server's affair, so not for ever.
                    seen.has_left = not await connection.until(lambda: False, within_s=1.5)
                    return
                await connection.until(lambda: False, within_s=plan.pause_s)
                await self._die(connection, plan, seen)
            case Manner.DIES_LATER:
                connection.ask(data, seen)
                await connection.until(lambda: False, within_s=plan.pause_s)
                await self._die(connection, plan, seen)
            case Manner.DIES_READING:
                connection.ask(data, seen)
                at_bytes = 1 + int(plan.at * 600)
                await self._wait(connection, lambda: connection.body_bytes >= at_bytes)
                await self._die(connection, plan, seen)
            case Manner.READS_SLOWLY:
                connection.ask(data, seen)
                while not connection.is_over and connection.body_bytes < 200_000:
                    connection.pause()
                    await asyncio.sleep(_SLOW_READ_S)
                    connection.go_on()
                    await self._wait(connection, connection.more_than(connection.body_bytes))
                await self._wait(connection, lambda: False)
            case Manner.READS_NOTHING:
                connection.ask(data, seen)
                connection.pause()
                await asyncio.sleep(_READS_NOTHING_S)
                connection.go_on()
                await self._wait(connection, lambda: False)
                seen.has_left = True
            case Manner.OBEYS:
                if plan.pause_s > 0.05:  # some upload in two pieces
                    at = int(plan.at * len(data))
                    connection.ask(data[:at], seen)
                    await asyncio.sleep(plan.pause_s / 10)
                    connection.send(data[at:])
                else:
                    connection.ask(data, seen)
                await self._wait(connection, lambda: False)

    async def _wait(self, connection: ClientConnection, fact: Callable[[], bool]) -> None:
        # Second by second, so that a machine that stood still for a minute is not taken for a gateway that did.
        seconds, had = 0, connection.body_bytes
        while not await connection.until(fact, within_s=1.0):
            seconds = seconds + 1 if connection.body_bytes == had else 0
            had = connection.body_bytes
            if seconds >= PATIENCE_S:
                self._report(f"hangs: nothing came, and nothing was closed, in {PATIENCE_S} s: {connection}")
                return

    async def _die(self, connection: ClientConnection, plan: Plan, seen: Seen) -> None:
        if connection.is_over and seen.is_tidy:
            return
        seen.has_left = True
        connection.leave(plan.death)
        if plan.death is Death.HALF:
            await self._wait(connection, lambda: False)
