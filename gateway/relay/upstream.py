"""One request to an engine and its answer, as the relay sees it.

An exchange promises:
* its end, clean or broken, is told by `on_end` in the very tick in which it is seen, whether or not anybody reads and
  however much of the answer still waits to be read: a hold need not wait for a slow client.
* bytes come as they came, one wake-up for each read from the engine. They wait here unchanged (who looks into them does
  so when it reads them), at most `read_ahead_bytes` and one read more; beyond that the engine is held back.
* a cut answer never looks whole: `read()` returns b"" only if the engine finished it.
* it is over exactly once; `abort` is plain, closes the connection at once and may be called in any phase.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.batched import BatchedTask, batched
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.headers import answer_headers, date_header, header_lines
from gateway.relay.upstream_request import WireRequest

# More than this is not handed on in one piece, unless it came in one read.
READ_AT_ONCE_BYTES = 64 * 1024


_LinesBack = tuple[bytes, bool, bool]
"""Lines of a head that are the same whatever the length; whether a Date is among them; whether a length comes with them."""


class UpstreamHead:
    """An answer's status line and headers: names in lower case, values as they came, in order.

    content_type: in lower case, b"" if there is none. content_length: in bytes; 0 if none is stated that can be believed.
    content_encoding: in lower case; None if there is none, or the one that changes nothing. Of each, the first counts.
    has_length: one is stated, believable or not. is_chunked: by the last coding. keep_alive: what that header says.
    """

    __slots__ = (
        "_lines_back",
        "content_encoding",
        "content_length",
        "content_type",
        "has_length",
        "headers",
        "is_chunked",
        "is_event_stream",
        "keep_alive",
        "reason",
        "status",
    )

    def __init__(self, status: int, reason: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        first = dict(headers[::-1]).get
        self.content_type = kind = first(b"content-type", b"").lower()
        self.is_event_stream = kind.startswith(b"text/event-stream")
        length = first(b"content-length")
        self.has_length = length is not None
        self.content_length = int(length) if length is not None and length.isdigit() and len(length) < 16 else 0
        encoding = first(b"content-encoding")
        self.content_encoding = _encoding(encoding) if encoding is not None else None
        self.is_chunked = first(b"transfer-encoding") is not None and _is_chunked(headers)
        self.keep_alive = first(b"keep-alive", b"")
        self._lines_back: _LinesBack | None = None

    def going_back(self, own: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers as they go back to the client, and `own` behind them. An event may be cut out of a stream, or an error
        event follow it, so its length goes with the others that say nothing; a plain answer keeps its length."""
        is_stream = self.is_event_stream
        return answer_headers(self.headers, own, is_event_stream=is_stream, length_changes=is_stream)

    def lines_back(self, own: Sequence[tuple[bytes, bytes]]) -> bytes:
        """What `going_back` says, as it stands in a head. It is worked out once for heads that differ in their length only."""
        text, is_dated, has_length = self._lines_back or self._find_lines_back()
        text += header_lines(own if is_dated else (date_header(), *own))
        return text + b"content-length: %d\r\n" % self.content_length if has_length else text

    def _find_lines_back(self) -> _LinesBack:
        back = self.going_back(())
        is_dated = any(name == b"date" and (name, value) in back for name, value in self.headers)
        length = (b"content-length", b"%d" % self.content_length)
        kept = [header for header in back if header != length and (is_dated or header[0] != b"date")]
        lines = self._lines_back = header_lines(kept), is_dated, length in back
        return lines

    def of_length(self, body_bytes: int) -> "UpstreamHead":
        """The same head but for the length of its body."""
        other = object.__new__(UpstreamHead)
        length = (b"content-length", b"%d" % body_bytes)
        other.headers = [length if header[0] == b"content-length" else header for header in self.headers]
        other._lines_back = self._lines_back or self._find_lines_back()
        other.status, other.reason = self.status, self.reason
        other.content_type, other.is_event_stream = self.content_type, self.is_event_stream
        other.content_length, other.has_length = body_bytes, True
        other.content_encoding = self.content_encoding
        other.is_chunked, other.keep_alive = False, self.keep_alive
        return other


def _is_chunked(headers: list[tuple[bytes, bytes]]) -> bool:
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    return codings[-1].lower().rpartition(b",")[2].strip() == b"chunked"


def _encoding(value: bytes) -> str | None:
    encoding = value.strip().lower().decode("latin-1")
    return None if encoding in ("", "identity") else encoding


PassOn = Callable[[bytes, bytes | None], bool]
"""Offered bytes as they come and, if they came as just one chunk of the chunked coding, that chunk. Returns whether it took
them; what it does not take waits to be read, and until then it is offered no more."""


class Line(Protocol):
    """What an exchange needs of the connection that carries it."""

    def hold_back(self) -> None:
        """Read no more until `go_on`."""

    def go_on(self) -> None: ...

    def cut(self) -> None:
        """Close at once; the exchange hears nothing more."""


class UpstreamExchange:
    """Made by `UpstreamPool.send`, for one reader. The second half of its methods is for the connection alone.

    sent_at, last_read_at: monotonic seconds of the last write of the request and of the last sign of life while we
    listened (sending, bytes, or our own going on after holding the engine back): what a stall is measured from.
    """

    __slots__ = (
        "_backend",
        "_head",
        "_line",
        "_on_end",
        "_pass_on",
        "_read_ahead_bytes",
        "_waiter",
        "_waiting",
        "_waiting_bytes",
        "failure",
        "is_ended",
        "is_held_back",
        "last_read_at",
        "may_resend",
        "request",
        "reused",
        "sent_at",
    )

    def __init__(self, backend: BackendName, request: WireRequest, *, read_ahead_bytes: int) -> None:
        self._backend = backend
        self._read_ahead_bytes = read_ahead_bytes
        self._line: Line | None = None
        self._head: UpstreamHead | None = None
        self._waiting: list[bytes] = []  # few: beyond the limit the engine is held back
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | BatchedTask | None = None
        self._on_end: Callable[[], None] | None = None
        self._pass_on: PassOn | None = None
        self.request: WireRequest | None = request
        self.may_resend = True
        self.reused = False
        self.is_held_back = False
        self.is_ended = False
        self.failure: UpstreamFailed | None = None
        self.sent_at = self.last_read_at = 0.0  # until it is carried

    async def head(self) -> UpstreamHead:
        """The final answer's head (1xx are skipped). Raises UpstreamFailed if it will not come."""
        while self._head is None:
            if self.failure is not None:
                raise self.failure
            await self._news()
        return self._head

    @property
    def has_news(self) -> bool:
        """Whether `read` would wait for nothing."""
        return bool(self._waiting) or self.is_ended

    async def read(self, pass_on: PassOn | None = None) -> bytes:
        """The bytes of the body that are there, at least one; b"" once the engine has ended the answer.

        Of many, what came in as many reads as make 64 KiB: the rest waits here, so that what a client does not take is not
        kept twice. pass_on: while this waits, it is offered what comes, in the tick in which it comes; what it takes was read.
        Raises UpstreamFailed if it broke, after all bytes that came before.
        """
        if not self._waiting:
            self._pass_on = pass_on
            try:
                while not self._waiting:
                    if self.failure is not None:
                        raise self.failure
                    if self.is_ended:
                        return b""
                    await self._news()
            finally:
                self._pass_on = None
        data = self._waiting.pop(0)
        if self._waiting and len(data) < READ_AT_ONCE_BYTES:
            data = self._join(data)
        self._waiting_bytes -= len(data)
        if self.is_held_back:
            self.last_read_at = time.monotonic()
            if not self._waiting:
                self.is_held_back = False
                if self._line is not None:
                    self._line.go_on()
        return data

    def rest(self) -> bytes | None:
        """All that is left of the body, b"" if nothing is; None where more may come, where it broke, or where it is much.

        What it tells was read.
        """
        if not self.is_ended or self.failure is not None or self._waiting_bytes > READ_AT_ONCE_BYTES:
            return None
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        return waiting[0] if len(waiting) == 1 else b"".join(waiting)

    def _join(self, data: bytes) -> bytes:
        """`data` with what waits behind it, until that is enough at once."""
        parts, size = [data], len(data)
        while self._waiting and size < READ_AT_ONCE_BYTES:
            parts.append(self._waiting.pop(0))
            size += len(parts[-1])
        return b"".join(parts)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back once when the exchange is over, however it ended; at once if it is. `failure` says how. One only."""
        if self._on_end is not None:
            raise RuntimeError("the end of this exchange is somebody's already")
        self._on_end = callback
        if self.is_ended:
            callback()

    def abort(self, error: UpstreamFailed | None = None) -> None:
        """Give the answer up: what has not been read is dropped, and head() and read() raise `error` from now on.

        None stands for a failure that says so. After the end it drops what waits and does no more.
        """
        if self.failure is not None or (self.is_ended and not self._waiting):
            return
        self._waiting.clear()
        if error is None:
            stage = UpstreamStage.HEAD if self._head is None else UpstreamStage.BODY
            error = UpstreamFailed(self._backend, stage, "given up by the gateway")
        if self.is_ended:
            self.failure = error
            return
        line, self._line = self._line, None
        if line is not None:
            line.cut()
        self.end(error)

    async def _news(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("an exchange has one reader")
        task = batched()
        try:
            if task is not None:
                self._waiter = task
                await task.pause()
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if isinstance(waiter, BatchedTask):
            waiter.go_on()
        elif waiter is not None and not waiter.done():
            waiter.set_result(None)

    # What the connection tells.

    def carried_by(self, line: Line, *, reused: bool) -> None:
        """The request goes out on `line` now."""
        self._line = line
        self.reused = reused
        self.sent_at = self.last_read_at = time.monotonic()

    def begin(self, head: UpstreamHead) -> None:
        """The final head has come."""
        self._head = head
        self._wake()

    def take(self, data: bytes, chunk: bytes | None) -> None:
        """Bytes of the body have come. chunk: they and their framing, if they came as just one chunk."""
        if self._pass_on is not None:
            if self._pass_on(data, chunk):
                return
            self._pass_on = None
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > self._read_ahead_bytes and not self.is_held_back and self._line is not None:
            self.is_held_back = True
            self._line.hold_back()
        self._wake()

    def end(self, failure: UpstreamFailed | None) -> None:
        """It is over. The callback comes last, so that nothing it does can leave the reader asleep."""
        if self.is_ended:
            return
        self.is_ended = True
        self.is_held_back = False
        self.failure = failure
        self.request = None
        self._line = None
        self._wake()
        callback, self._on_end = self._on_end, None  # kept, it would make a circle of all that the request was
        if callback is not None:
            callback()

    def __repr__(self) -> str:
        if self.is_ended:
            state = "ended" if self.failure is None else f"failed ({self.failure.detail})"
        else:
            state = "waiting for its head" if self._head is None else "under way"
        return f"<exchange with {self._backend}: {state}, {self._waiting_bytes} bytes unread>"
