"""Whatever becomes of an engine's stream, its client gets a beginning of it and then an honest end, and nothing stays held."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from fuzz.mutation import cuts, try_all
from fuzz.test_answers import STREAMS
from fuzz.wire import BACKEND, Wire
from gateway.admission.grant import Grant
from gateway.core.decisions import Granted
from gateway.core.errors import UpstreamFailed
from gateway.core.names import PoolName, TicketId
from gateway.core.outcomes import Outcome
from gateway.core.ticket import Need, Ticket
from gateway.dialects import DIALECTS
from gateway.dialects.sse import EventSplitter, read_event
from gateway.relay.downstream import Headers
from gateway.relay.stream import Answer
from gateway.relay.timeline import Timeline
from gateway.relay.watchdog import Clocks
from support.answers import recorded, streams
from support.heard import Heard

CHAT = DIALECTS["/v1/chat/completions"]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
GRANTED = Granted(Ticket(TicketId(1), PoolName("p"), {BACKEND: Need(1)}, 0.0, 1.0), BACKEND, 1, 1)


class Client:
    """A client that takes everything at once."""

    def __init__(self) -> None:
        self.gone = False
        self.blocked_since: float | None = None
        self.status: int | None = None
        self.body = b""
        self.end = ""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        pass

    async def write_head(self, status: int, headers: Headers) -> None:
        self.status = status

    async def write_body(self, data: bytes) -> None:
        assert data
        assert not self.end
        self.body += data

    async def finish(self) -> None:
        assert not self.end
        self.end = "tidy"

    def abort(self) -> None:
        self.end = self.end or "broken"

    def give_up(self) -> None:
        self.abort()


def chunked(pieces: Sequence[bytes], *, whole: bool) -> bytes:
    return (
        HEAD + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + (b"0\r\n\r\n" if whole else b"")
    )


class Relayed:
    """One answer on its way through `Answer`, fed from a wire."""

    def __init__(self, wire: Wire, *, hide_usage: bool) -> None:
        self.wire = wire
        self.client = Client()
        self.released = 0
        self.outcome: Outcome | None = None
        self.failure: UpstreamFailed | None = None
        self._hide_usage = hide_usage
        self._answer = Answer(
            wire.exchange,
            self.client,
            CHAT,
            Grant(GRANTED, self._release),
            Heard().running(),
            is_stream=True,
            clocks=Clocks(1.0, 1.0, 1.0, 1.0),
            timeline=Timeline(arrived=0.0),
            now=lambda: 0.0,
            on_gaps=lambda gaps: None,
        )

    def _release(self, grant: Grant) -> None:
        self.released += 1

    async def run(self) -> None:
        try:
            head = await self._answer.read_head()
            watcher = self._answer.watcher(head, hide_usage=self._hide_usage)
            self.outcome = await self._answer.relay(head, watcher, [])
        except UpstreamFailed as failure:
            assert self.client.status is None
            self.failure = failure
        finally:
            self._answer.close()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


async def relay(pieces: Sequence[bytes], *, hide_usage: bool) -> Relayed:
    """Feed the pieces one by one, the relay running in between, and then close."""
    wire = Wire()
    wire.exchange._on_end = None  # the answer's to ask for
    relayed = Relayed(wire, hide_usage=hide_usage)
    running = asyncio.ensure_future(relayed.run())
    await asyncio.sleep(0)
    for piece in pieces:
        wire.feed([piece])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    wire.end()
    async with asyncio.timeout(5):
        await running
    assert relayed.released == 1
    return relayed


def check(relayed: Relayed, sent: bytes, *, is_whole: bool, hide_usage: bool) -> None:
    """sent: the events that the engine sent, whole or not; is_whole: it ended its answer by its framing."""
    client = relayed.client
    assert relayed.outcome is not None
    assert client.status == 200
    assert client.end in ("tidy", "broken")
    shown = client.body
    told = last_event(shown)
    says_so = told is not None and b'"upstream_' in told and b'"code"' in told
    relayed_part = shown[: len(shown) - len(b"data: " + told + b"\n\n")] if says_so and told is not None else shown
    if not hide_usage or b"usage" not in sent:
        assert sent.startswith(relayed_part)
        if client.end == "tidy" and not says_so:
            assert relayed_part == sent
    if client.end == "tidy" and relayed.outcome is Outcome.COMPLETED:
        assert is_whole
        assert not says_so
    if client.end == "tidy" and not is_whole:
        assert says_so, "a cut stream ends as if it were whole"
    if says_so:
        assert told is not None
        assert json.loads(told)["error"]["code"]
        assert client.end == "tidy"


def last_event(stream: bytes) -> bytes | None:
    """The data of the last event, as a client's parser finds it."""
    splitter = EventSplitter()
    events = [piece for piece, is_whole in splitter.feed(stream) if is_whole]
    return read_event(events[-1])[1] if events else None


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("name", streams())
def test_a_stream_that_breaks_at_any_byte_never_ends_quietly(
    name: str, hide_usage: bool, loop: asyncio.AbstractEventLoop
) -> None:
    stream = recorded(name)
    step = max(1, len(stream) // 150)
    for at in range(0, len(stream) + 1, step):
        sent = stream[:at]
        raw = chunked([sent[: at // 2], sent[at // 2 :]], whole=False)
        relayed = loop.run_until_complete(relay([raw], hide_usage=hide_usage))
        check(relayed, sent, is_whole=False, hide_usage=hide_usage)


def test_mutated_streams_reach_the_client_as_they_are_and_end_honestly(
    fuzz_inputs: int, loop: asyncio.AbstractEventLoop
) -> None:
    def one(data: bytes, dice: random.Random) -> None:
        hide_usage, is_whole = dice.random() < 0.5, dice.random() < 0.6
        pieces = cuts(dice, chunked(cuts(dice, data), whole=is_whole))
        relayed = loop.run_until_complete(relay(pieces, hide_usage=hide_usage))
        check(relayed, data, is_whole=is_whole, hide_usage=hide_usage)

    try_all("relayed streams", fuzz_inputs, STREAMS, one)
