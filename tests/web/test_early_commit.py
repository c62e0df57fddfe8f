"""Early commit: a stream that waits is answered before its turn, and whatever happens to it then is told in the stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.core.decisions import Standing
from gateway.core.errors import UpstreamStage
from gateway.core.outcomes import Outcome
from gateway.dialects import DIALECTS
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from gateway.web.waiting_words import PERIOD_S, in_words
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.fake_upstream import eventually
from support.rooms import clock_of, held_blocks, open_rooms
from support.scripted_engine import Scripted, ScriptedEngine

CHAT = "/v1/chat/completions"
AFTER_S = 2.0
STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
EVENT_STREAM = {"content-type": "text/event-stream"}


def chat(*, stream: bool = True) -> bytes:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 900, "stream": stream}
    return json.dumps(body).encode()


class Waiting:
    """Two requests run and take everything; `caller` waits behind them."""

    def __init__(self, rooms: Rooms, engine: ScriptedEngine) -> None:
        self.rooms, self.engine = rooms, engine
        self.caller = Caller(body=chat())
        self.serving: asyncio.Task[None]
        self._gate = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    async def begin(self, *, stream: bool = True) -> None:
        self.engine.answers[CHAT] = Scripted(gate=self._gate, body=STREAM, headers=EVENT_STREAM)
        self._running = [asyncio.create_task(self._serve(Caller(body=chat()))) for _ in range(2)]
        await eventually(lambda: len(self.engine.asked(CHAT)) == 2)
        self.caller = Caller(body=chat(stream=stream))
        self.serving = asyncio.create_task(self._serve(self.caller))
        await eventually(lambda: self.rooms.tally.counts().queued == 1)

    async def commit(self) -> None:
        """Let so much time pass that the head goes out."""
        await eventually(lambda: clock_of(self.rooms).sleepers > 0)
        clock_of(self.rooms).advance(AFTER_S)
        await eventually(lambda: b"ahead" in self.caller.body)

    async def make_room(self, answer: Scripted) -> None:
        """Those that run end; who waits is granted, and gets this from the engine."""
        self.engine.answers[CHAT] = answer
        self._gate.set()
        await asyncio.gather(*self._running)

    async def _serve(self, caller: Caller) -> None:
        await serve_request(self.rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)

    def ended(self) -> dict[Outcome, int]:
        """The outcomes but those of the two that ran; nothing is left on the way."""
        counts = self.rooms.tally.counts()
        assert counts.received == 3
        assert counts.reading + counts.queued + counts.in_flight == 0
        assert held_blocks(self.rooms) == 0
        ended = {outcome: number for outcome, number in counts.outcomes.items() if number}
        ended[Outcome.COMPLETED] = ended.get(Outcome.COMPLETED, 0) - 2
        return {outcome: number for outcome, number in ended.items() if number}


@asynccontextmanager
async def waiting(engine: ScriptedEngine, *, stream: bool = True, after_s: float | None = AFTER_S) -> AsyncIterator[Waiting]:
    script_vllm(engine)
    async with open_rooms({"a": engine}, early_commit_s=after_s) as rooms:
        line = Waiting(rooms, engine)
        await line.begin(stream=stream)
        pump = asyncio.create_task(rooms.controller.pump())
        try:
            yield line
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)


def events(body: bytes) -> list[Any]:
    """The data of each event in order; comments are skipped, as every reader of event streams does."""
    lines = [line for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines]


async def test_a_stream_that_waits_is_told_where_it_stands_and_then_answered_whole(engine: ScriptedEngine) -> None:
    async with waiting(engine) as line:
        assert line.caller.messages == []
        await line.commit()
        assert line.caller.status == 200
        assert (line.caller.header(b"content-type") or b"").startswith(b"text/event-stream")
        assert line.caller.header(b"cache-control") == b"no-cache"
        assert line.caller.header(b"x-kvgate-queue-ms") == b"2000"
        assert line.caller.header(b"x-kvgate-free-blocks") == b"6"
        assert line.caller.body == b": kvgate: waiting for KV cache, 0 ahead\n\n"
        await eventually(lambda: clock_of(line.rooms).sleepers > 0)
        clock_of(line.rooms).advance(PERIOD_S)
        await eventually(lambda: line.caller.body.count(b"ahead") == 2)
        await line.make_room(Scripted(body=STREAM, headers=EVENT_STREAM))
        await line.serving
        assert line.caller.body.endswith(b"ahead\n\n" + STREAM)
        assert line.caller.is_finished
        heads = [message for message in line.caller.messages if message["type"] == "http.response.start"]
        assert len(heads) == 1
        assert line.ended() == {Outcome.COMPLETED: 1}


async def test_a_stream_that_does_not_wait_so_long_is_answered_as_ever(engine: ScriptedEngine) -> None:
    async with waiting(engine) as line:
        clock_of(line.rooms).advance(AFTER_S / 2)
        await line.make_room(Scripted(body=STREAM, headers={**EVENT_STREAM, "x-engine": "here"}))
        await line.serving
        assert line.caller.body == STREAM
        assert line.caller.header(b"x-engine") == b"here"
        assert line.ended() == {Outcome.COMPLETED: 1}


@pytest.mark.parametrize(("stream", "after_s"), [(False, AFTER_S), (True, None)])
async def test_a_plain_request_is_never_answered_early_nor_a_stream_where_it_is_off(
    engine: ScriptedEngine, stream: bool, after_s: float | None
) -> None:
    async with waiting(engine, stream=stream, after_s=after_s) as line:
        clock_of(line.rooms).advance(59.0)
        await asyncio.sleep(0)
        assert line.caller.messages == []
        clock_of(line.rooms).advance(1.0)
        await line.serving
        assert (line.caller.status, line.caller.error["code"]) == (429, "queue_timeout")
        await line.make_room(Scripted(body=STREAM, headers=EVENT_STREAM))
        assert line.ended() == {Outcome.TIMEOUT_QUEUE: 1}


async def test_a_refusal_after_the_head_is_an_error_event_that_says_when_to_come_back(engine: ScriptedEngine) -> None:
    async with waiting(engine) as line:
        await line.commit()
        clock_of(line.rooms).advance(60.0)
        await line.serving
        (event,) = events(line.caller.body)
        assert (event["error"]["code"], event["error"]["type"]) == ("queue_timeout", "rate_limit_error")
        assert event["error"]["retry_after_ms"] >= 1000
        assert line.caller.is_finished
        await line.make_room(Scripted(body=STREAM, headers=EVENT_STREAM))
        assert line.ended() == {Outcome.TIMEOUT_QUEUE: 1}


async def test_a_drain_after_the_head_is_told_in_the_stream(engine: ScriptedEngine) -> None:
    async with waiting(engine) as line:
        await line.commit()
        line.rooms.controller.drain()
        await line.serving
        (event,) = events(line.caller.body)
        assert event["error"]["code"] == "draining"
        await line.make_room(Scripted(body=STREAM, headers=EVENT_STREAM))
        assert line.ended() == {Outcome.REFUSED_DRAINING: 1}


NOT_FOUND = b'{"error":{"message":"The model `x` does not exist.","code":404}}'
REFUSED, FAILED = Outcome.ENGINE_REFUSED, Outcome.UPSTREAM_ERROR_BEFORE
NO_STREAM = "and no stream"
ENGINE_SAYS = {
    "no": (Scripted(404, NOT_FOUND), REFUSED, "invalid_request_error", "404: The model `x` does not exist."),
    "no without a wrapper": (Scripted(429, b'{"message":"busy"}'), REFUSED, "rate_limit_error", "429: busy"),
    "it failed": (Scripted(500, b"<html>"), FAILED, "server_error", f"answered 500 {NO_STREAM}"),
    "a string for an error": (Scripted(503, b'{"error": "dead"}'), FAILED, "overloaded_error", "503: dead"),
    "no stream": (Scripted(200, b'{"choices":[]}'), FAILED, "server_error", f"answered 200 {NO_STREAM}"),
    "a compressed stream": (
        Scripted(200, b"\x1f\x8b", {**EVENT_STREAM, "content-encoding": "gzip"}),
        FAILED,
        "server_error",
        f"answered 200 {NO_STREAM}",
    ),
    "nonsense": (Scripted(raw=b"nonsense"), FAILED, "server_error", "broke off before it answered"),
}


@pytest.mark.parametrize("what", ENGINE_SAYS)
async def test_what_an_engine_says_instead_of_a_stream_is_told_in_the_stream(engine: ScriptedEngine, what: str) -> None:
    answer, outcome, kind, words = ENGINE_SAYS[what]
    async with waiting(engine) as line:
        await line.commit()
        await line.make_room(answer)
        await line.serving
        (event,) = events(line.caller.body)
        assert event["error"]["type"] == kind
        assert words in event["error"]["message"]
        assert line.caller.is_finished
        assert line.ended() == {outcome: 1}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_client_that_leaves_while_it_is_told_is_seen_and_leaves_its_place(engine: ScriptedEngine, when: str) -> None:
    async with waiting(engine) as line:
        if when == "after":
            await line.commit()
        line.caller.leave()
        await line.serving
        assert line.rooms.tally.counts().queued == 0
        said = line.caller.body
        clock_of(line.rooms).advance(2 * PERIOD_S)
        await line.make_room(Scripted(body=STREAM, headers=EVENT_STREAM))
        assert line.caller.body == said, "somebody goes on speaking to who has left"
        assert line.ended() == {Outcome.CLIENT_GONE_QUEUED: 1}


async def test_a_stream_cut_at_the_end_of_a_drain_after_its_grant_is_told_in_the_stream(engine: ScriptedEngine) -> None:
    async with waiting(engine) as line:
        await line.commit()
        gate = asyncio.Event()
        await line.make_room(Scripted(gate=gate))
        await eventually(lambda: len(engine.asked(CHAT)) == 3)
        line.rooms.running.cut_all()
        await line.serving
        (event,) = events(line.caller.body)
        assert event["error"]["code"] == f"upstream_{UpstreamStage.DRAIN.value}"
        assert line.ended() == {Outcome.DRAINED: 1}


def test_the_words_are_plain() -> None:
    assert in_words(Standing(3, None)) == "kvgate: waiting for KV cache, 3 ahead"
    assert in_words(Standing(0, 12.4)) == "kvgate: waiting for KV cache, 0 ahead, about 12 s"


async def test_words_that_fail_are_a_bug_that_is_counted_once_and_leaks_nothing(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting(engine) as line:

        def fail(ticket: object) -> Standing:
            raise ZeroDivisionError

        monkeypatch.setattr(line.rooms.controller, "standing", fail)
        await eventually(lambda: clock_of(line.rooms).sleepers > 0)
        clock_of(line.rooms).advance(AFTER_S)
        await eventually(lambda: line.caller.status == 200)
        await line.make_room(Scripted(body=STREAM, headers=EVENT_STREAM))
        await line.serving
        (event,) = events(line.caller.body)
        assert event["error"]["code"] == "gateway_error"
        assert line.ended() == {Outcome.GATEWAY_ERROR: 1}
