"""Whatever becomes of an engine's stream, its client gets a beginning of it and then an honest end, and nothing stays held."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from fuzz.mutation import cuts, try_all
from fuzz.test_answers import streams_of
from fuzz.wire import BACKEND, Wire
from gateway.admission.grant import Grant
from gateway.core.decisions import Granted
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import PoolName, TicketId
from gateway.core.outcomes import Outcome
from gateway.core.ticket import Need, Ticket
from gateway.dialects.dialect import Dialect
from gateway.relay.downstream import Headers
from gateway.relay.stream import Answer, broken_facts
from gateway.relay.timeline import Timeline
from gateway.relay.watchdog import Clocks
from support.answers import recorded, streams
from support.dialect_samples import STREAMING, dialect_of
from support.heard import Heard

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
GRANTED = Granted(Ticket(TicketId(1), PoolName("p"), {BACKEND: Need(1)}, 0.0, 1.0), BACKEND, 1, 1)


class Client:
    """A client that takes everything at once, though every third time it does not say so."""

    def __init__(self) -> None:
        self._asked = 0
        self._has_room = False
        self.gone = False
        self.blocked_since: float | None = None
        self.status: int | None = None
        self.body = b""
        self.end = ""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        pass

    @property
    def takes_at_once(self) -> bool:
        self._asked += 1
        self._has_room = not self.end and self._asked % 3 > 0
        return self._has_room

    async def write_head(self, status: int, headers: Headers, *, goes_on: bool = False) -> None:
        self.status = status

    async def write_body(self, data: bytes) -> None:
        assert data
        assert not self.end
        self.body += data

    def write_now(self, data: bytes, chunk: bytes | None) -> bool:
        assert data
        assert chunk in (None, b"%x\r\n%b\r\n" % (len(data), data))
        if not self._has_room and not self.takes_at_once:
            return False
        self._has_room = False  # which is for who has asked
        self.body += data
        return True

    def write_whole(self, status: int, lines: bytes, body: bytes) -> None:
        raise AssertionError("a stream goes on as it comes")

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

    def __init__(self, wire: Wire, dialect: Dialect, *, hide_usage: bool) -> None:
        self.wire = wire
        self.client = Client()
        self.released = 0
        self.outcome: Outcome | None = None
        self.failure: UpstreamFailed | None = None
        self._hide_usage = hide_usage
        self._answer = Answer(
            wire.exchange,
            self.client,
            dialect,
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


async def relay(pieces: Sequence[bytes], dialect: Dialect, *, hide_usage: bool) -> Relayed:
    """Feed the pieces one by one, the relay running in between, and then close."""
    wire = Wire()
    wire.exchange._on_end = None  # the answer's to ask for
    relayed = Relayed(wire, dialect, hide_usage=hide_usage)
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


def check(relayed: Relayed, dialect: Dialect, sent: bytes, *, is_whole: bool, hide_usage: bool) -> None:
    """sent: the events that the engine sent, whole or not; is_whole: it ended its answer by its framing."""
    client = relayed.client
    assert relayed.outcome is not None
    assert client.status == 200
    assert client.end in ("tidy", "broken")
    shown = client.body
    told = our_error(shown, dialect)
    relayed_part = shown.removesuffix(told)
    if not hide_usage or b"usage" not in sent:
        assert sent.startswith(relayed_part)
        if client.end == "tidy" and not told:
            assert relayed_part == sent
    if client.end == "tidy" and relayed.outcome is Outcome.COMPLETED:
        assert is_whole
        assert not told
    if client.end == "tidy" and not is_whole:
        assert told, "a cut stream ends as if it were whole"
    if told:
        assert client.end == "tidy"
        client_side = dialect.watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
        client_side.feed(shown)
        assert client_side.has_error, "our event is glued to one of the engine's"


def our_error(shown: bytes, dialect: Dialect) -> bytes:
    """The error event of ours with which a stream ends; empty if it ends with none."""
    events = (dialect.error_event(broken_facts(UpstreamFailed(BACKEND, stage, ""))) for stage in UpstreamStage)
    return next((event for event in events if shown.endswith(event)), b"")


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("name", streams())
def test_a_stream_that_breaks_at_any_byte_never_ends_quietly(
    name: str, hide_usage: bool, loop: asyncio.AbstractEventLoop
) -> None:
    stream, dialect = recorded(name), dialect_of(name)
    step = max(1, len(stream) // 150)
    for at in range(0, len(stream) + 1, step):
        sent = stream[:at]
        raw = chunked([sent[: at // 2], sent[at // 2 :]], whole=False)
        relayed = loop.run_until_complete(relay([raw], dialect, hide_usage=hide_usage))
        check(relayed, dialect, sent, is_whole=False, hide_usage=hide_usage)


@pytest.mark.parametrize("dialect", STREAMING, ids=lambda dialect: dialect.name)
def test_mutated_streams_reach_the_client_as_they_are_and_end_honestly(
    dialect: Dialect, fuzz_inputs: int, loop: asyncio.AbstractEventLoop
) -> None:
    def one(data: bytes, dice: random.Random) -> None:
        hide_usage, is_whole = dice.random() < 0.5, dice.random() < 0.6
        pieces = cuts(dice, chunked(cuts(dice, data), whole=is_whole))
        relayed = loop.run_until_complete(relay(pieces, dialect, hide_usage=hide_usage))
        check(relayed, dialect, data, is_whole=is_whole, hide_usage=hide_usage)

    try_all(f"relayed streams of {dialect.name}", fuzz_inputs, streams_of(dialect), one)
