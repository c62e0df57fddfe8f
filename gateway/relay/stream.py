"""One answer on its way from the engine to the client: bytes through, usage seen, the grant ended.

It promises:
* bytes go on as they came; what the dialect's watcher cuts out is the usage event that nobody but us asked for.
* behind the first token, a read that goes on whole whatever is in it is looked at later, with others of its stream: at the
  watchdog's next look, or before anything is made of what the watcher knows. It counts for the instant at which it came.
* the grant is released in the very tick in which the engine's end is seen, also while a slow client still reads.
* a stream that breaks never ends quietly: between two events the client gets an error event of its dialect, within an
  event (or in a plain answer) the connection is broken visibly.
* every clock has its own ending, and after all of them both sides are closed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Final

from gateway.admission.grant import Grant
from gateway.admission.running_answer import RunningAnswer
from gateway.core.commitment import Ending
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.outcomes import Outcome
from gateway.dialects.dialect import Dialect, ErrorFacts, Watcher
from gateway.relay.downstream import Downstream, Headers
from gateway.relay.timeline import Timeline
from gateway.relay.upstream import UpstreamExchange, UpstreamHead
from gateway.relay.watchdog import Clocks

# Gaps that are kept before they are handed on: an answer of any length costs no more memory than this.
_GAPS_AT_ONCE: Final = 32
_WRITE_AT_ONCE_BYTES: Final = 64 * 1024
# So many reads are passed on before they are looked at, each of at most so many bytes.
_UNSEEN_READS: Final = 32
_UNSEEN_BYTES: Final = 4096
# A plain answer of at most so many bytes may be held until it is whole.
_HELD_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Broken:
    """What a broken stage is counted as before and after the answer began, its status, and its words for the caller."""

    before: Outcome
    after: Outcome
    status: int
    text: str


_ERROR_BEFORE, _ERROR_AFTER = Outcome.UPSTREAM_ERROR_BEFORE, Outcome.UPSTREAM_ERROR_AFTER

BROKEN: Final[Mapping[UpstreamStage, Broken]] = {
    UpstreamStage.CONNECT: Broken(_ERROR_BEFORE, _ERROR_AFTER, 502, "could not be reached"),
    UpstreamStage.CONNECT_TIMEOUT: Broken(_ERROR_BEFORE, _ERROR_AFTER, 504, "did not accept the connection in time"),
    UpstreamStage.HEAD: Broken(_ERROR_BEFORE, _ERROR_AFTER, 502, "broke off before it answered"),
    UpstreamStage.BODY: Broken(_ERROR_AFTER, _ERROR_AFTER, 502, "broke off in its answer"),
    UpstreamStage.FIRST_TOKEN: Broken(Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_FIRST_TOKEN, 504, "sent no token in time"),
    UpstreamStage.STALL: Broken(Outcome.TIMEOUT_STALL, Outcome.TIMEOUT_STALL, 504, "stalled in its answer"),
    UpstreamStage.TOTAL: Broken(Outcome.TIMEOUT_TOTAL, Outcome.TIMEOUT_TOTAL, 504, "took longer than a request may"),
    UpstreamStage.DRAIN: Broken(Outcome.DRAINED, Outcome.DRAINED, 503, "was cut off: this gateway is shutting down"),
}


def broken_facts(failure: UpstreamFailed) -> ErrorFacts:
    """The error that a caller sees for a failure of the engine. The detail stays in the log: it may name hosts."""
    broken = BROKEN[failure.stage]
    return ErrorFacts(broken.status, f"upstream_{failure.stage.value}", f"the inference server {broken.text}")


class Answer:
    """An exchange with the engine while its answer is relayed. Watched by the watchdog from sending to the end."""

    __slots__ = (
        "_clocks",
        "_dialect",
        "_downstream",
        "_exchange",
        "_grant",
        "_hides_usage",
        "_is_stream",
        "_looked_at",
        "_now",
        "_on_gaps",
        "_passed_at",
        "_running",
        "_timeline",
        "_told_whole",
        "_unseen",
        "_watcher",
    )

    def __init__(
        self,
        exchange: UpstreamExchange,
        downstream: Downstream,
        dialect: Dialect,
        grant: Grant,
        running: RunningAnswer,
        is_stream: bool,
        clocks: Clocks,
        timeline: Timeline,
        now: Callable[[], float],
        on_gaps: Callable[[list[float]], None],
    ) -> None:
        """is_stream: the first-token and stall clocks run. on_gaps: takes seconds between token events, some at a time."""
        self._exchange = exchange
        self._downstream = downstream
        self._dialect = dialect
        self._grant = grant
        self._running = running
        self._watcher: Watcher | None = None
        self._told_whole = False
        self._hides_usage = False
        # Passed on and not looked at yet, and when: two lists, since ten thousand pairs are ten thousand for the collector.
        self._unseen: list[bytes] = []
        self._passed_at: list[float] = []
        self._looked_at = 0.0  # what had been read last when the watchdog looked
        self._is_stream = is_stream
        self._clocks = clocks
        self._timeline = timeline
        self._now = now
        self._on_gaps = on_gaps
        exchange.on_end(self._engine_ended)

    def _engine_ended(self) -> None:
        self._timeline.upstream_ended = self._now()
        self._grant.release()

    async def read_head(self) -> UpstreamHead:
        """The engine's own status and headers. Raises UpstreamFailed: nothing was sent to the client then."""
        head = await self._exchange.head()
        self._timeline.head = self._now()
        # A stream was asked for, and this is none: no token will be seen in it.
        self._is_stream = self._is_stream and head.is_event_stream
        return head

    def watcher(self, head: UpstreamHead, *, hide_usage: bool) -> Watcher:
        """Eyes for the answer with this head. hide_usage: cut out the usage event that we asked for ourselves."""
        self._hides_usage = hide_usage
        self._watcher = self._dialect.watcher(
            is_event_stream=head.is_event_stream, hide_usage=hide_usage, content_encoding=head.content_encoding
        )
        return self._watcher

    async def relay(
        self,
        head: UpstreamHead,
        watcher: Watcher,
        own_headers: Headers | None,
        *,
        told_at_end: Callable[[], Headers] | None = None,
    ) -> Outcome:
        """Pass the answer on, from its head to its end. Every end but cancellation is an outcome.

        own_headers: added to the engine's; None: the head is out already, and a stream goes on under it. told_at_end: headers
        that only the whole answer tells; a plain answer that is not large is then read to its end, which an engine sends in
        one go, before its head goes out.
        Cancellation (the client has gone) passes through; the caller closes.
        """
        is_stream = head.is_event_stream
        if own_headers is not None and not is_stream and self._downstream.takes_at_once:
            whole = self._exchange.rest()
            if whole is not None:
                return self._relay_whole(head, watcher, whole, own_headers, told_at_end)
        held: list[bytes] | None = None
        broken: UpstreamFailed | None = None
        if own_headers is not None and told_at_end is not None and not is_stream and 0 < head.content_length <= _HELD_BYTES:
            held = []
            try:
                await self._hold(watcher, held)
            except UpstreamFailed as failure:
                broken = failure
            own_headers = [*own_headers, *told_at_end()]
        if own_headers is not None:
            headers = head.going_back(own_headers)
            goes_on = held is not None or self._exchange.has_news
            await self._downstream.write_head(head.status, headers, goes_on=goes_on)
        try:
            if held is None:
                await self._relay_body(watcher)
            for data in held or ():
                await self._write(data)
            if broken is not None:
                raise broken
            if is_stream and 200 <= head.status < 300 and not (watcher.is_complete or watcher.has_error):
                raise UpstreamFailed(self._grant.backend, UpstreamStage.BODY, "the stream ended without its end mark")
        except UpstreamFailed as failure:
            return await self._break(failure, watcher, head)
        await self._downstream.finish()
        return _outcome_of(head, watcher)

    def _relay_whole(
        self,
        head: UpstreamHead,
        watcher: Watcher,
        body: bytes,
        own_headers: Headers,
        told_at_end: Callable[[], Headers] | None,
    ) -> Outcome:
        """As `relay`, of a plain answer that is here as a whole, to a client that takes it at once: nothing is waited for.

        No token is told of: in a plain answer none is seen before its end.
        """
        is_passed_first = told_at_end is None and watcher.passes(body)  # the client need not wait for what we learn of it
        if is_passed_first:
            self._downstream.write_whole(head.status, head.lines_back(own_headers), body)
        shown = watcher.feed(body) if body else b""
        shown += watcher.finish()
        if not is_passed_first:
            if told_at_end is not None and head.content_length > 0:
                own_headers = [*own_headers, *told_at_end()]
            self._downstream.write_whole(head.status, head.lines_back(own_headers), shown)
        return _outcome_of(head, watcher)

    @property
    def is_told_whole(self) -> bool:
        """The end that the engine put to a stream was passed on: who leaves now, as clients do behind it, has all of it."""
        self._look()
        return self._told_whole

    async def _relay_body(self, watcher: Watcher) -> None:
        """From the engine to the client: at once where the client takes it, else when it does."""
        while data := await self._exchange.read(self._pass_on):
            self._look()
            seen = watcher.token_events
            await self._write(watcher.feed(data))
            self._has_passed(watcher, seen, self._now())
        self._look()
        if rest := watcher.finish():
            await self._downstream.write_body(rest)

    def _pass_on(self, data: bytes, chunk: bytes | None) -> bool:
        """Pass on what has just come, if that needs no waiting."""
        watcher, downstream = self._watcher, self._downstream
        if watcher is None:
            return False
        is_small = len(data) <= _UNSEEN_BYTES
        if is_small and self._timeline.first_token is not None and (not self._hides_usage or watcher.passes(data)):
            if not downstream.write_now(data, chunk):
                return False
            unseen = self._unseen
            unseen.append(data)
            self._passed_at.append(self._exchange.last_read_at)
            if len(unseen) >= _UNSEEN_READS:
                self._look()
            return True
        if not downstream.takes_at_once:
            return False
        self._look()
        seen = watcher.token_events
        if shown := watcher.feed(data):
            downstream.write_now(shown, chunk if shown is data else None)
        self._has_passed(watcher, seen, self._now())
        return True

    def _look(self) -> None:
        """Let the watcher see what was passed on."""
        watcher, unseen = self._watcher, self._unseen
        if watcher is None or not unseen:
            return
        passed_at = self._passed_at
        self._unseen, self._passed_at = [], []
        instants = list(compress(passed_at, watcher.feed_passed(unseen)))
        self._note_end(watcher)
        if instants:
            self._timeline.more_token_events(instants)
            self._hand_on_gaps()

    def _has_passed(self, watcher: Watcher, token_events_before: int, at: float) -> None:
        self._note_end(watcher)
        if watcher.token_events == token_events_before:
            return
        if self._timeline.first_token is None:
            self._running.first_token(at)
        self._timeline.token_event(at)
        self._hand_on_gaps()

    def _note_end(self, watcher: Watcher) -> None:
        if watcher.is_complete:
            self._told_whole = self._is_stream and not watcher.has_error

    def _hand_on_gaps(self) -> None:
        if len(self._timeline.gaps) >= _GAPS_AT_ONCE:
            self._on_gaps(self._timeline.take_gaps())

    async def _hold(self, watcher: Watcher, held: list[bytes]) -> None:
        """Read the answer to its end into `held`. Raises UpstreamFailed; what came until then is in it."""
        while data := await self._exchange.read():
            held.append(watcher.feed(data))
        held.append(watcher.finish())

    async def _write(self, data: bytes) -> None:
        for start in range(0, len(data), _WRITE_AT_ONCE_BYTES):
            # A server keeps a copy of what it cannot send at once, so it gets no more than it asks for.
            await self._downstream.write_body(data[start : start + _WRITE_AT_ONCE_BYTES])

    async def _break(self, failure: UpstreamFailed, watcher: Watcher, head: UpstreamHead) -> Outcome:
        """The head is out, so no status can change any more: say it in the stream, or break the connection."""
        outcome = BROKEN[failure.stage].after
        self._look()
        if head.is_event_stream:
            # Of an event that never ended, what the watcher holds back stays back: an error event can follow then.
            at_boundary = watcher.at_boundary
            watcher.finish()
            if at_boundary:
                await self._downstream.write_body(self._dialect.error_event(broken_facts(failure)))
                await self._downstream.finish()
                return outcome
        self._downstream.abort()
        return outcome

    def check(self, now: float) -> None:
        """The watchdog's look: see how far it is, and end what is late, each clock in its own way."""
        sent = self._timeline.sent
        if sent is None:
            return
        blocked_since = self._downstream.blocked_since
        if self._timeline.upstream_ended is None:
            last_read_at, before = self._exchange.last_read_at, self._looked_at
            # Of a stream that flows nothing is new where nothing was read.
            if last_read_at != before or blocked_since is not None or self._timeline.first_token is None:
                self._looked_at = last_read_at
                self._look()
                watcher = self._watcher
                self._running.look(
                    events=watcher.token_events if watcher is not None else 0,
                    text_bytes=watcher.text_bytes if watcher is not None else 0,
                    last_read_at=last_read_at,
                    is_blocked=blocked_since is not None,
                    now=now,
                )
        if blocked_since is not None:
            # The client is the one that is waited for: the engine is not late.
            if now - blocked_since > self._clocks.send_s:
                self._downstream.give_up()
        elif self._is_stream and self._timeline.upstream_ended is None:
            if self._timeline.first_token is None:
                if now - sent > self._clocks.first_token_s:
                    self.cut(UpstreamStage.FIRST_TOKEN)
            elif now - self._exchange.last_read_at > self._clocks.stall_s:
                self.cut(UpstreamStage.STALL)
        if now - sent > self._clocks.total_s:
            self.cut(UpstreamStage.TOTAL)

    def cut(self, stage: UpstreamStage) -> None:
        """End the exchange from our side; whoever relays it learns why."""
        self._exchange.abort(UpstreamFailed(self._grant.backend, stage, "cut by the gateway"))

    def close(self) -> None:
        """Nothing more is wanted from the engine: what is still open is closed, and the grant ends."""
        self._exchange.abort(None)
        self._grant.release()

    def ended(self, outcome: Outcome | None) -> None:
        """What is to be learned from an answer that ended so; None: its client left, or it was broken off."""
        watcher = self._watcher
        self._look()
        if watcher is None or outcome is Outcome.ENGINE_REFUSED:
            return
        ending = Ending.LEFT
        if outcome is Outcome.COMPLETED:
            ending = Ending.CAPPED if watcher.hit_cap else Ending.FINISHED
        self._running.ended(
            ending, usage=watcher.usage, events=watcher.token_events, text_bytes=watcher.text_bytes, now=self._now()
        )


def _outcome_of(head: UpstreamHead, watcher: Watcher) -> Outcome:
    """How an answer has ended that was passed on from its head to its end."""
    if 400 <= head.status < 500:
        return Outcome.ENGINE_REFUSED
    if not 200 <= head.status < 300:
        return Outcome.UPSTREAM_ERROR_BEFORE
    return Outcome.UPSTREAM_ERROR_AFTER if watcher.has_error else Outcome.COMPLETED
