"""A connection to an engine: one request after the other, each answer parsed just far enough to find its end.

It promises:
* it is offered for reuse only when an answer was whole, both sides may keep the connection, nothing came behind the
  answer and nothing of the request is still unsent; it is never offered after the engine's end of file.
* bytes that nobody asked for close it.
* a read that is precisely one chunk of an answer need not be parsed: it is handed on with its framing as it came.
* an answer that is whole is delivered, also when the engine closed before it had read all of the request.
"""

import asyncio
import re
import time
from functools import lru_cache
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.known_answer import KnownAnswer
from gateway.relay.upstream import UpstreamExchange, UpstreamHead

HEAD_LIMIT_BYTES = 64 * 1024  # also for trailers, and for anything else that is not body and does not end
HEAD_LIMIT_FIELDS = 256
STATED_IDLE_LIMIT_S = 60.0  # a longer `Keep-Alive: timeout` is not believed

_STATED_TIMEOUT = re.compile(rb"timeout\s*=\s*(\d{1,6})")


class Owner(Protocol):
    """Who keeps the connections: the pool. answers: what it knows of the heads that come on them."""

    answers: KnownAnswer

    def settled(self, connection: "UpstreamConnection") -> None:
        """The connection can carry another request."""

    def lost(self, connection: "UpstreamConnection") -> None:
        """The connection is no more. May be told twice."""

    def resend(self, exchange: UpstreamExchange) -> None:
        """Send the request once more, on a fresh connection: no answer will come from this one."""


class UpstreamConnection(asyncio.Protocol):
    """idle_limit_s: how long it may lie idle, by what the engine stated, else `default_idle_limit_s`.

    is_fresh: it has neither carried anything nor lain idle, so the engine cannot have closed it for idleness.
    retry_window_s: one that was not fresh and dies within this time after sending, before any byte of an answer, was closed
    by the engine for idleness; the request was never taken up and may be sent again. Later, the engine may have worked
    on it, and nothing is generated twice.
    """

    __slots__ = (
        "_backend",
        "_ends_with_eof",
        "_exchange",
        "_fault",
        "_field_bytes",
        "_has_answered",
        "_has_ended_chunk",
        "_has_progress",
        "_has_surplus",
        "_head",
        "_headers",
        "_is_between_chunks",
        "_is_head_request",
        "_is_interim",
        "_is_paused",
        "_is_whole",
        "_keeps_alive",
        "_owner",
        "_parser",
        "_parts",
        "_quiet_bytes",
        "_reason",
        "_retry_window_s",
        "_transport",
        "_was_fresh",
        "idle_limit_s",
        "idle_since",
        "is_fresh",
    )  # fmt: skip

    def __init__(self, owner: Owner, backend: BackendName, *, default_idle_limit_s: float, retry_window_s: float) -> None:
        self._owner = owner
        self._backend = backend
        self._retry_window_s = retry_window_s
        self.idle_limit_s = default_idle_limit_s
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._exchange: UpstreamExchange | None = None
        self.is_fresh = self._was_fresh = True
        self._is_head_request = False
        self._is_paused = False
        self._parser: HttpResponseParser | None = None
        self._forget_answer()

    def _forget_answer(self) -> None:
        self._fault: str | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._field_bytes = 0
        self._quiet_bytes = 0
        self._parts: list[bytes] = []
        self._has_answered = False
        self._head: UpstreamHead | None = None
        self._has_progress = False
        self._is_interim = False
        self._has_ended_chunk = False  # a chunk's end was the last that the parser told of
        self._is_between_chunks = False
        self._is_whole = False
        self._has_surplus = False
        self._keeps_alive = False
        self._ends_with_eof = False

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: UpstreamExchange) -> None:
        """Write the exchange's request and carry its answer. Only for a usable connection that carries none."""
        assert self._transport is not None
        assert exchange.request is not None
        self._forget_answer()
        self._exchange = exchange
        self._was_fresh, self.is_fresh = self.is_fresh, False
        if self._parser is None:
            self._parser = HttpResponseParser(self)
        self._is_head_request = exchange.request.is_head
        exchange.carried_by(self, reused=not self._was_fresh)
        # One call: under uvloop two writes are two system calls, and two packets.
        buffers = exchange.request.buffers
        if self._was_fresh:
            exchange.request = None  # never sent again; a body may be large
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    # What the exchange asks for.

    def hold_back(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def cut(self) -> None:
        self._exchange = None
        self.close()

    def close(self) -> None:
        """Close at once, sending nothing more."""
        self._parser = None
        if self._transport is not None:
            self._transport.abort()
        self._owner.lost(self)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.close()
            return
        exchange.last_read_at = time.monotonic()
        if self._is_between_chunks and (chunk := only_chunk(data)) is not None:
            # The parser would only be back where it is now.
            exchange.take(chunk, data)
            return
        is_first = not self._has_answered
        if is_first:
            self._has_answered = True
            exchange.request = None
            if not self._is_head_request and (known := self._owner.answers.read(data)) is not None:
                self._take_whole(exchange, *known)
                return
        self._has_progress = False
        broken: str | None = None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            # Behind a whole answer it is only surplus.
            broken = self._fault or f"the answer is not HTTP/1.1 ({error})"
            self._has_surplus = True
        if self._parts:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._has_progress = True
            exchange.take(body, None)
        # It would have told of a whole line with a size: where a line ends here, none has begun.
        self._is_between_chunks = self._has_ended_chunk and data.endswith(b"\r\n")
        if self._is_whole:
            if is_first and self._keeps_alive and not self._has_surplus and self._head is not None:
                self._owner.answers.learn(data, self._head)
            self._settle(exchange)
            return
        if broken is None and not self._has_progress:
            self._quiet_bytes += len(data)
            if self._quiet_bytes > HEAD_LIMIT_BYTES:
                broken = f"{self._quiet_bytes} bytes came that are neither a whole head nor body"
        else:
            self._quiet_bytes = 0
        if broken is not None:
            self._break(broken)

    def eof_received(self) -> None:
        """The engine has closed. Returning None closes our side as well."""
        exchange = self._exchange
        if exchange is None:
            self._owner.lost(self)
        elif self._head is not None and self._ends_with_eof:
            self._settle(exchange)
        else:
            self._break("the connection was closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        if self._exchange is not None:
            self._break("the connection was closed" if exc is None else f"the connection broke: {exc}")
        self._parser = None
        self._transport = None

    # How an answer ends.

    def _take_whole(self, exchange: UpstreamExchange, head: UpstreamHead, body: bytes) -> None:
        """A whole answer has come, which the parser need not see."""
        self._head = head
        self._keeps_alive = True
        self._obey(head)
        exchange.begin(head)
        exchange.take(body, None)
        self._settle(exchange)

    def _obey(self, head: UpstreamHead) -> None:
        """What the engine says of its patience: half of it, since our request must arrive before it is over."""
        if head.keep_alive and (stated := _STATED_TIMEOUT.search(head.keep_alive.lower())):
            self.idle_limit_s = min(int(stated[1]) / 2, STATED_IDLE_LIMIT_S)

    def _settle(self, exchange: UpstreamExchange) -> None:
        self._exchange = None
        if self._is_head_request:
            self._parser = None  # it waits for a body that never comes
        transport = self._transport
        if (
            transport is not None
            and self._keeps_alive
            and not self._has_surplus
            and self.idle_limit_s > 0
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            self.go_on()
            self._owner.settled(self)
        else:
            self.close()
        exchange.end(None)

    def _break(self, detail: str) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is None:
            return
        if (
            not self._was_fresh
            and not self._has_answered
            and exchange.may_resend
            and time.monotonic() - exchange.sent_at <= self._retry_window_s
        ):
            exchange.may_resend = False
            self._owner.resend(exchange)
            return
        stage = UpstreamStage.BODY if self._head is not None else UpstreamStage.HEAD
        exchange.end(UpstreamFailed(self._backend, stage, detail))

    # What the parser calls, within data_received.

    def on_message_begin(self) -> None:
        if self._is_whole:
            self._has_surplus = True

    def on_status(self, status: bytes) -> None:
        if self._head is None:
            self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > HEAD_LIMIT_BYTES:
            self._refuse(f"the answer's head is larger than {HEAD_LIMIT_BYTES} bytes")
        if self._head is not None:
            return  # a trailer: it belongs to this hop
        if len(self._headers) >= HEAD_LIMIT_FIELDS:
            self._refuse(f"the answer's head has more than {HEAD_LIMIT_FIELDS} fields")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None or self._head is not None:
            return
        status = parser.get_status_code()
        if status == 101 or status < 100:
            self._refuse(f"the answer's status is {status}")
        if status < 200:
            self._is_interim = True
            return
        # Asked later, once the message is complete, the parser says no to everybody.
        self._keeps_alive = parser.should_keep_alive()
        self._has_progress = True
        self._field_bytes = 0
        head = UpstreamHead(status, self._reason, self._headers)
        self._obey(head)
        if self._is_head_request or status in (204, 304):
            self._is_whole = True
            if not self._is_head_request:
                # A length without a body; whoever frames the answer anew would wait for it.
                head.headers = [field for field in head.headers if field[0] != b"content-length"]
        else:
            self._ends_with_eof = not (head.has_length or head.is_chunked)
        self._head = head
        exchange.begin(head)

    def on_body(self, body: bytes) -> None:
        if self._is_whole:
            self._has_surplus = True  # a body where none may be
        else:
            self._parts.append(body)

    def on_chunk_header(self) -> None:
        self._has_ended_chunk = False

    def on_chunk_complete(self) -> None:
        self._has_ended_chunk = True

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
            self._headers = []
            self._reason = b""
        else:
            self._is_whole = True

    def _refuse(self, fault: str) -> None:
        self._fault = fault
        raise ValueError(fault)


def only_chunk(data: bytes) -> bytes | None:
    """What is in the one chunk that `data` is, with a size written as servers write it; None if it is anything else."""
    lines, start = _size_line(len(data))
    return data[start:-2] if start and data.startswith(lines) and data.endswith(b"\r\n") else None


@lru_cache(maxsize=1024)
def _size_line(chunk_bytes: int) -> tuple[tuple[bytes, ...], int]:
    """How the line with the size of a chunk may read that is so long with all its framing, and its length; 0: none is."""
    for digits in range(1, 9):
        size = chunk_bytes - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return (b"%x\r\n" % size, b"%X\r\n" % size), digits + 2
    return (), 0
