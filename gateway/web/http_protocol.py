"""HTTP/1.1 as both ports speak it: uvicorn's httptools protocol, held to the limits of a door before anything is buffered.

What it adds to uvicorn's (whose internals it uses: the minor version is pinned, and tests/web/test_http_protocol.py tells
what moved):
* limits on the head, its time, idle time, connections and pipelined requests, each with a clear answer (error_answers.py);
* a request that can be read in two ways (two hosts, two framings, an odd transfer coding) is answered 400 and nothing
  behind it is read; bytes that are no HTTP never come between the bytes of an answer that is under way;
* a client that leaves, or shuts its sending side, is noticed in every phase, also while requests wait behind one another;
* an offered upgrade (h2c) is declined by going on in HTTP/1.1, with the whole body and the whole connection;
* HTTP/1.0 gets no chunks, and sees when an answer broke off;
* our last words reach a client that is still sending;
* a head that the connection has brought before is not read again (known_head.py).

No task and no timer belongs to a connection: the door sweeps.
"""

import asyncio
from collections import deque
from typing import Any, Final, NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.relay.known_head import MOST_DIGITS, KnownHead, known_head
from gateway.web.cycle import Cycle
from gateway.web.door import Door, DoorReason
from gateway.web.error_answers import answer_at_door
from gateway.web.flow import Flow
from gateway.web.inference import Inference
from gateway.web.inference_head import InferenceHead
from gateway.web.last_words import last_words
from gateway.web.request_head import HeadFields, fault_of, framing_of
from gateway.web.wire_client import WireClient

# Read behind a request that is not answered yet, and never looked at: a client that sends more does not want an answer.
_UNREAD_LIMIT_BYTES: Final = 1 << 20
# Of a body that comes faster than it is read: as much as comes in one turn of the loop.
_UNREAD_BODY_BYTES: Final = 256 * 1024
# Bodies of requests that wait behind another (in all, beyond which they are not taken).
_WAITING_BODIES_BYTES: Final = 64 * 1024
# A client whose heads are never the same (each has a trace of its own, say) is not looked at for more.
_MOST_UNSEEN: Final = 8

# What uvicorn would keep for pipelined requests, which stand in `_queued` here.
_NOBODY: Final[deque[Any]] = deque(maxlen=0)


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client. `uvicorn.Config(http=partial(HttpProtocol, door, inference))`."""

    # A dict of all that, and a second line of uvicorn's that is never used, took a tenth of an idle stream's memory.
    __slots__ = (
        "_answering", "_door", "_field_bytes", "_framing_after_offer", "_fresh", "_has_progress", "_in_head", "_inference",
        "_is_between", "_is_deaf", "_is_replaying", "_known", "_last_word", "_limits", "_owed_bytes", "_queued", "_quiet_bytes",
        "_reading", "_reason", "_turned_away", "_unread_bytes", "_unseen", "_unsent", "address",
    )  # fmt: skip

    def __init__(
        self,
        door: Door,
        inference: Inference | None,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pipeline = _NOBODY
        self.address: str | None = None
        self._door = door
        self._inference = inference
        self._limits = door.limits
        self._turned_away: DoorReason | None = None  # told at the first byte: an answer before any request confuses clients
        self._reason: DoorReason | None = None  # why a callback of the parser stopped it
        self._reading: Cycle | WireClient | None = None  # whose body is coming
        self._answering: Cycle | WireClient | None = None
        self._queued: list[Cycle] = []
        self._last_word: DoorReason | None = None  # said when all that was taken is answered
        self._is_deaf = False  # what still comes is not looked at
        self._unsent: tuple[int, float] = (0, 0.0)  # how much a closing client had not taken, and since when it takes nothing
        self._field_bytes = self._quiet_bytes = self._unread_bytes = 0
        self._in_head = self._has_progress = self._is_replaying = False
        self._is_between = True  # for the parser the next byte is the first of a request
        self._known: KnownHead[InferenceHead] | None = None
        self._fresh: InferenceHead | None = None  # has come in this read, and may come again
        self._owed_bytes = 0  # of the body behind a known head, which the parser does not see
        self._unseen = 0  # heads that were kept, and did not come again
        self._framing_after_offer: bytes | None = None  # of the body that comes behind an offered upgrade

    # What the loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self.address = self.client[0] if self.client else None
        self._turned_away = self._door.come(self)
        if self._turned_away is None:
            self._door.heads.begin(self)
            return
        self._door.lingering.begin(self)
        if self._door.is_crowded:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        if self._answering is not None:
            self._answering.leave()
        self._queued.clear()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """A client that shuts its sending side counts as gone, as it does to the engines: what it waits for is dropped."""
        if self._answering is None:
            self.transport.close()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._unread_bytes += len(data)
            if self._answering is not None and self._unread_bytes > _UNREAD_LIMIT_BYTES:
                self.transport.abort()
            return
        if self._turned_away is not None:
            self._say(self._turned_away)
            return
        self._has_progress = False
        if self._owed_bytes:
            data = self._take_owed(data)
        elif self._known is not None and self._is_between and self._answering is None and self._take_known(self._known, data):
            return
        was_between, rest = self._is_between, data
        try:
            while rest:
                rest = self._feed(rest)
        except httptools.HttpParserError:
            self._stop(self._reason or DoorReason.MALFORMED)
            return
        if (fresh := self._fresh) is not None:
            self._fresh = None
            if was_between and self._unseen < _MOST_UNSEEN:
                self._unseen += 1
                self._known = known_head(data, b"POST " + fresh.target + b" HTTP/1.1", fresh.headers, fresh)
        if self._has_progress:
            self._quiet_bytes = 0
            return
        self._quiet_bytes += len(data)
        if self._quiet_bytes > self._limits.header_bytes:
            # A field without end, line ends before a request, trailers or chunk extensions: the parser keeps those, not we.
            self._stop(DoorReason.HEADERS_TOO_LARGE if self._in_head else DoorReason.MALFORMED)

    def _take_known(self, known: KnownHead[InferenceHead], data: bytes) -> bool:
        """Begin the request, if this is a head that is known and no more than its body."""
        body, length = known.part_of(data)
        if not length:
            return False
        self._unseen = self._quiet_bytes = 0
        self._door.idle.end(self)
        client = self._serve(known.facts, keep_alive=True)
        client.stated_bytes = length
        if len(body) == length <= _UNREAD_BODY_BYTES:
            client.take_whole(body)
            return True
        self._reading, self._owed_bytes = client, length
        self._take_owed(body)
        return True

    def _take_owed(self, data: bytes) -> bytes:
        """More of the body behind a known head. Returns what comes behind that."""
        body = data[: self._owed_bytes]  # the very same bytes, if it is all of them
        self._owed_bytes -= len(body)
        if body:
            self.on_body(body)
        if not self._owed_bytes:
            self.on_message_complete()
        return data[len(body) :]

    def _feed(self, data: bytes) -> bytes:
        """Parse. Returns what is left where the parser stopped at an offered upgrade, which nobody need accept."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade()
            return data[offer.args[0] :]
        return b""

    def _decline_upgrade(self) -> None:
        """The parser takes the end of a head that offers an upgrade for the end of its HTTP. A new one reads the body on."""
        framing, self._framing_after_offer = self._framing_after_offer, None
        if framing is None:
            return
        self.parser = httptools.HttpRequestParser(self)
        self._is_replaying = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._is_replaying = False

    def shutdown(self) -> None:
        last = self._queued[-1] if self._queued else self._answering
        if last is None:
            self.transport.close()
        else:
            last.keep_alive = False

    # What the door calls.

    def head_is_late(self) -> None:
        if self._in_head:
            self._stop(DoorReason.HEADER_TIMEOUT)
        else:
            self.transport.close()  # never said a word

    def has_idled(self) -> None:
        self._close()

    def has_lingered(self) -> None:
        """Told to go, and still here. Whoever still takes what we wrote may stay for it."""
        if self._turned_away is not None and not self._is_deaf:
            self.transport.close()
            return
        left, now = self.transport.get_write_buffer_size(), self.loop.time()
        before, since = self._unsent
        if left != before:
            self._unsent = (left, now)
        elif not left or now - since >= self._limits.idle_s:
            self.transport.abort()
            return
        self._door.lingering.begin(self)

    # What the parser calls, within data_received.

    def on_message_begin(self) -> None:
        if self._is_replaying:
            return
        self.url = b""
        self.headers = []
        self._field_bytes = 0
        self._in_head = True
        self._is_between = False
        self._has_progress = True
        if self._answering is None:
            self._door.idle.end(self)
            self._door.heads.begin(self)

    def on_url(self, url: bytes) -> None:
        if self._is_replaying:
            return
        self.url += url
        if len(self.url) > self._limits.url_bytes:
            self._refuse(DoorReason.URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: it belongs to this hop, and the request is on its way without it
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > self._limits.header_bytes:
            self._refuse(DoorReason.HEADERS_TOO_LARGE)
        headers = self.headers
        headers.append((name.lower(), value))
        if len(headers) > self._limits.headers:
            self._refuse(DoorReason.TOO_MANY_HEADERS)

    def on_headers_complete(self) -> None:
        if self._is_replaying:
            return
        self._in_head = False
        self._has_progress = True
        self._door.heads.end(self)
        version = self.parser.get_http_version()
        fields = HeadFields(self.headers)
        fault = fault_of(version, fields.hosts, fields.codings, fields.expectation)
        if fault is not None:
            self._refuse(fault)
        if self._answering is None and fields.expectation is None and version == "1.1" and self._begin_inference():
            return
        cycle = Cycle.on(self, version, fields.expectation)
        if cycle is None:
            self._refuse(DoorReason.MALFORMED)
        if self.parser.should_upgrade():
            self._framing_after_offer = framing_of(fields.codings, fields.length)
        self.cycle = self._reading = cycle
        if self._answering is None:
            self._start(cycle)
        elif len(self._queued) < self._limits.pipelined:
            self._queued.append(cycle)
        else:
            self._refuse(DoorReason.TOO_MANY_PIPELINED)

    def _begin_inference(self) -> bool:
        """Take an ordinary request to an inference route past ASGI, if this is one."""
        parser, inference = self.parser, self._inference
        if inference is None or parser.get_method() != b"POST" or parser.should_upgrade():
            return False
        if (found := inference.find(self.url)) is None:
            return False
        head = InferenceHead(*found, self.headers)
        keep_alive = parser.should_keep_alive()
        self._reading = self._serve(head, keep_alive=keep_alive)
        if keep_alive and self._field_bytes + MOST_DIGITS <= self._limits.header_bytes:
            self._fresh = head
        return True

    def _serve(self, head: InferenceHead, *, keep_alive: bool) -> WireClient:
        assert self._inference is not None
        client = WireClient(self.transport, self.flow, self.loop, keep_alive=keep_alive, on_answered=self.on_response_complete)
        self._answering = client
        client.task = self._inference.begin(head, client, self.loop, self.tasks)
        return client

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        cycle = self._reading
        if cycle is None or cycle.response_complete:
            return
        cycle.take_body(body)
        if cycle is self._answering:
            if cycle.unread_bytes > _UNREAD_BODY_BYTES:
                self.flow.pause_reading()
        elif sum(queued.unread_bytes for queued in self._queued) > _WAITING_BODIES_BYTES:
            # To stop reading here would be to see no longer whether the client is there.
            self._refuse(DoorReason.TOO_MANY_PIPELINED)

    def on_message_complete(self) -> None:
        self._has_progress = True
        if self._framing_after_offer is not None:
            return
        self._is_between = True
        if self._reading is not None:
            self._reading.end_body()
            self._reading = None

    def _refuse(self, reason: DoorReason) -> NoReturn:
        """Stop the parser: nothing behind this is read."""
        self._reason = reason
        raise ValueError(reason)

    # How a connection goes on, and how it ends.

    def _start(self, cycle: Cycle) -> None:
        self._answering = cycle
        self._start_asgi_task(cycle, self.app)

    def on_response_complete(self) -> None:
        """The answer under way has been written. What was taken meanwhile comes next; then a last word, if there is one."""
        self.server_state.total_requests += 1
        cycle, self._answering = self._answering, None
        if cycle is None or self.transport.is_closing():
            return
        if cycle.more_body:
            self._linger()
        elif cycle.is_last:
            self._close()
        elif self._queued:
            self._start(self._queued.pop(0))
        elif self._last_word is not None:
            self._say(self._last_word)
        else:
            self.flow.resume_reading()
            (self._door.heads if self._in_head else self._door.idle).begin(self)

    def _stop(self, reason: DoorReason) -> None:
        """Read nothing more, for this reason. What was taken whole is answered first."""
        self._door.refused(reason)
        self._is_deaf = True
        broken, self._reading = self._reading, None
        if broken is not None and broken is self._answering:
            broken.break_body(answer_at_door(reason, self._door.jitter).facts.message)
            return
        if broken is not None and self._queued and broken is self._queued[-1]:
            self._queued.pop()
        if self._answering is None:
            self._say(reason)
        else:
            self._last_word = reason

    def _say(self, reason: DoorReason) -> None:
        """The last words on this connection."""
        self.transport.write(last_words(reason, self._door.jitter))
        self._linger()

    def _linger(self) -> None:
        """Nothing more comes from us, and what still comes is dropped until the client has seen that, or its time is over."""
        self._is_deaf = True
        self._turned_away = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self.transport.write_eof()
        self._door.heads.end(self)
        self._door.idle.end(self)
        self._door.lingering.begin(self)

    def _close(self) -> None:
        """Close once the client has taken what was written; the door sees to it that this does not last for ever."""
        self._is_deaf = True
        self._door.lingering.begin(self)
        self.transport.close()
