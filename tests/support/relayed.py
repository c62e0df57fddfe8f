"""One answer under relay, both of its sides in the test's hands: a client that records, and a real exchange fed by hand.

relayed = Relayed()
relayed.engine_says(chat_event("a"))
relayed.engine_ends()
outcome = await relayed.run()
"""

from collections.abc import Callable, Sequence

from gateway.admission.grant import Grant
from gateway.core.decisions import Granted
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.outcomes import Outcome
from gateway.dialects.dialect import Watcher
from gateway.dialects.openai_chat import OpenAIChat
from gateway.relay.downstream import Headers
from gateway.relay.stream import Answer
from gateway.relay.timeline import Timeline
from gateway.relay.upstream import UpstreamExchange, UpstreamHead
from gateway.relay.upstream_request import WireRequest
from gateway.relay.watchdog import Clocks
from support.heard import Heard
from support.manual_clock import ManualClock
from support.tickets import A, ticket

CLOCKS = Clocks(first_token_s=10.0, stall_s=5.0, total_s=100.0, send_s=7.0)
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")


class Client:
    """A downstream that keeps what it is told."""

    def __init__(self) -> None:
        self.gone = False
        self.blocked_since: float | None = None
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.is_finished = False
        self.is_aborted = False
        self.was_given_up = False
        self.takes_at_once = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        raise AssertionError("the relay leaves departures to its caller")

    async def write_head(self, status: int, headers: Sequence[tuple[bytes, bytes]], *, goes_on: bool = False) -> None:
        self.status = status
        self.headers = dict(headers)

    async def write_body(self, data: bytes) -> None:
        assert data, "an empty write would end nothing and cost a call"
        self.parts.append(data)

    def write_now(self, data: bytes, chunk: bytes | None) -> bool:
        assert data
        if self.takes_at_once:
            self.parts.append(data)
        return self.takes_at_once

    def write_whole(self, status: int, lines: bytes, body: bytes) -> None:
        assert self.takes_at_once
        self.status, self.parts, self.is_finished = status, [body], True
        for line in lines.split(b"\r\n")[:-1]:
            name, _, self.headers[name] = line.partition(b": ")

    async def finish(self) -> None:
        self.is_finished = True

    def abort(self) -> None:
        self.is_aborted = True

    def give_up(self) -> None:
        self.was_given_up = True
        self.abort()


class Relayed:
    def __init__(self, *, is_stream: bool = True, hide_usage: bool = False) -> None:
        self.clock = ManualClock()
        self.client = Client()
        self.releases = 0
        self.gaps: list[list[float]] = []
        self.heard = Heard()
        self.exchange = UpstreamExchange(A, WireRequest((b"",), is_head=False), read_ahead_bytes=1 << 18)
        self.grant = Grant(Granted(ticket(1), A, 1, 1), self._released)
        self.timeline = Timeline(arrived=self.clock.now(), sent=self.clock.now())
        self.watcher: Watcher | None = None
        self._hide_usage = hide_usage
        self.answer = Answer(
            self.exchange,
            self.client,
            OpenAIChat(),
            self.grant,
            self.heard.running(is_stream=is_stream, now=self.clock.now()),
            is_stream=is_stream,
            clocks=CLOCKS,
            timeline=self.timeline,
            now=self.clock.now,
            on_gaps=self.gaps.append,
        )

    def _released(self, _: Grant) -> None:
        self.releases += 1

    # The engine's side

    def engine_answers(self, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        self.exchange.begin(UpstreamHead(status, b"", list(headers or (EVENT_STREAM,))))

    def engine_says(self, data: bytes) -> None:
        self.exchange.last_read_at = self.clock.now()  # the real one reads the machine's clock
        self.exchange.take(data, None)

    def engine_ends(self) -> None:
        self.exchange.end(None)

    def engine_breaks(self, stage: UpstreamStage = UpstreamStage.BODY) -> None:
        self.exchange.end(UpstreamFailed(A, stage, "broken"))

    # The gateway's

    @property
    def prompt_tokens(self) -> int:
        assert self.watcher is not None
        assert self.watcher.usage is not None
        return self.watcher.usage.prompt_tokens

    async def run(self, *, told_at_end: Callable[[], Headers] | None = None) -> Outcome:
        """Relay from the head to the end, and close."""
        try:
            head = await self.answer.read_head()
            self.watcher = self.answer.watcher(head, hide_usage=self._hide_usage)
            return await self.answer.relay(head, self.watcher, [(b"x-kvgate-request-id", b"1")], told_at_end=told_at_end)
        finally:
            self.answer.close()
