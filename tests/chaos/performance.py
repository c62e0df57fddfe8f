"""One act of an engine, played on one connection: the bytes of an answer, good or bad, as the plan says."""

import asyncio
import zlib
from typing import Any, Protocol

from chaos.answers import DONE, events_of, plain_of, split
from chaos.plan import Act, Plan


class Stage(Protocol):
    """The connection on which an act is played. writable: the peer takes more; gone: it has left."""

    writable: asyncio.Event
    gone: asyncio.Event

    def write(self, data: bytes) -> None: ...

    def leave(self, *, reset: bool) -> None: ...


class Performance:
    """One act, played on one connection."""

    def __init__(self, connection: Stage, plan: Plan, asked: dict[str, Any]) -> None:
        self._connection = connection
        self._plan = plan
        self._wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))

    async def play(self) -> None:
        plan, connection = self._plan, self._connection
        if plan.first_gap_s:
            await asyncio.sleep(plan.first_gap_s)
        match plan.act:
            case Act.RESET_BEFORE | Act.CLOSE_BEFORE:
                connection.leave(reset=plan.act is Act.RESET_BEFORE)
            case Act.STALL_BEFORE:
                await connection.gone.wait()
            case Act.GARBAGE:
                connection.write(b"\x15\x03\x01\x00\x02\x02\x28 garbage\r\n\r\n")
            case Act.HUGE_HEAD:
                connection.write(b"HTTP/1.1 200 OK\r\nx-long: " + b"v" * 100_000)
            case Act.TWO_LENGTHS:
                connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab")
            case Act.UPGRADE:
                connection.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
            case Act.REFUSES:
                connection.write(json_answer(422, b'{"error":{"message":"no","code":422}}'))
            case Act.FAILS:
                connection.write(json_answer(500, b'{"error":{"message":"oh","code":500}}'))
            case _:
                await (self._stream() if plan.is_stream else self._plain())

    async def _plain(self) -> None:
        plan, connection = self._plan, self._connection
        body = plain_of(plan)
        fields = b"content-type: application/json\r\n"
        if plan.act is Act.ZIPPED:
            body = zlib.compress(body, wbits=31)
            fields += b"content-encoding: gzip\r\n"
        if plan.framing == "length" or plan.act in (Act.CUT, Act.RESET_WITHIN, Act.STALL_WITHIN):
            raw = b"HTTP/1.1 200 OK\r\n" + fields + b"content-length: %d\r\n\r\n" % len(body) + body
        elif plan.framing == "chunked":
            pieces = b"".join(_chunk(piece) for piece in split(body, plan.cut_seed, 4))
            raw = (
                b"HTTP/1.1 200 OK\r\n" + fields + b"transfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\nx-trailer: 1\r\n\r\n"
            )
        else:
            raw = b"HTTP/1.1 200 OK\r\n" + fields + b"connection: close\r\n\r\n" + body
        await self._send([raw])
        if plan.framing == "close":
            connection.leave(reset=False)

    async def _stream(self) -> None:
        plan = self._plan
        events = events_of(plan, wants_usage=self._wants_usage)
        fields = b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        if plan.act is Act.ZIPPED:
            events = [zlib.compress(b"".join(events), wbits=31)]
            fields += b"content-encoding: gzip\r\n"
        elif plan.act is Act.NO_END:
            # Neither an end mark nor a finish reason: as if the process behind it had died.
            events = [event.replace(b'"stop"', b"null").replace(b'"length"', b"null") for event in events if event != DONE]
        elif plan.act is Act.ERROR_EVENT:
            events = [*events[:-1], b'data: {"error": {"message": "it died", "code": 500}}\n\n', DONE]
        if not plan.gap_s:
            events = split(b"".join(events), plan.cut_seed, 3)
        pieces = [b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + _chunk(events[0]), *map(_chunk, events[1:])]
        if plan.act is Act.BAD_CHUNK:
            pieces[-1] = b"zz\r\n" + pieces[-1]
        pieces[-1] += b"0\r\n\r\n"
        await self._send(pieces)

    async def _send(self, pieces: list[bytes]) -> None:
        plan, connection = self._plan, self._connection
        if plan.act is Act.INTERIM:
            early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
            pieces = [b"HTTP/1.1 100 Continue\r\n\r\n", early + pieces[0], *pieces[1:]]
        if plan.act in (Act.CUT, Act.RESET_WITHIN, Act.STALL_WITHIN):
            pieces = _cut(pieces, plan.at)
        for number, piece in enumerate(pieces):
            if number and plan.gap_s:
                await asyncio.sleep(plan.gap_s)
            connection.write(piece)
            await connection.writable.wait()
        match plan.act:
            case Act.CUT | Act.RESET_WITHIN:
                connection.leave(reset=plan.act is Act.RESET_WITHIN)
            case Act.STALL_WITHIN:
                await connection.gone.wait()
            case Act.SURPLUS if plan.is_stream or plan.framing != "close":
                connection.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            case Act.EARLY:
                connection.leave(reset=False)
            case _:
                pass


def _cut(pieces: list[bytes], at: float) -> list[bytes]:
    """The pieces less their end, at least a byte of which is missing; at: which part is left."""
    left = int(at * (sum(map(len, pieces)) - 1))
    kept = []
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(kept[-1])
        if not left:
            break
    return [piece for piece in kept if piece] or [b""]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def json_answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Said So\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
