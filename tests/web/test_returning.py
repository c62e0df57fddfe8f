"""Who was refused and comes back when it was told to stands where its first try would stand; nobody else does."""

import asyncio

import pytest

from gateway.dialects import DIALECTS
from gateway.web.asked import asked_of
from gateway.web.returning import MOST_CREDIT_S, MOST_REMEMBERED, Returning, says_it_returns
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.fake_upstream import eventually
from support.rooms import clock_of, open_rooms
from support.scripted_engine import Scripted, ScriptedEngine

CHAT = "/v1/chat/completions"
RETRY = (b"x-stainless-retry-count", b"1")
KEY = (b"Authorization", b"Bearer a")


@pytest.mark.parametrize(
    ("count", "returns"), [(None, False), (b"0", False), (b"00", False), (b"1", True), (b"2", True), (b"x", False)]
)
def test_an_sdk_says_that_it_has_tried_before(count: bytes | None, returns: bool) -> None:
    assert says_it_returns(asked_of([] if count is None else [(b"X-Stainless-Retry-Count", count)])) is returns


def test_a_refusal_counts_from_the_told_time_on_once() -> None:
    returning = Returning()
    mark = returning.mark(b"body", [KEY])
    returning.refused(mark, arrived=100.0, told_wait_s=10.0, now=101.0)
    assert returning.arrived(mark, now=110.0) is None, "it came before it was told to"
    assert returning.arrived(mark, now=111.0) == 100.0
    assert returning.arrived(mark, now=112.0) is None, "it has been back already"


def test_who_comes_much_later_than_told_is_new() -> None:
    returning = Returning()
    mark = returning.mark(b"body", [])
    returning.refused(mark, arrived=100.0, told_wait_s=10.0, now=101.0)
    assert returning.arrived(mark, now=101.0 + 20.0 + 31.0) is None
    assert len(returning) == 0


def test_only_the_same_body_of_the_same_caller_is_known_again() -> None:
    returning = Returning()
    marks = {
        returning.mark(body, headers)
        for body in (b"body", b"bodY")
        for headers in ([], [KEY], [(b"x-api-key", b"a")], [(b"authorization", b"Bearer b")])
    }
    assert len(marks) == 8
    assert returning.mark(b"body", [KEY, (b"date", b"today")]) == returning.mark(b"body", [KEY])
    assert Returning().mark(b"body", []) not in marks, "another process has another secret"


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    returning = Returning()
    for number in range(MOST_REMEMBERED + 5):
        returning.refused(b"%d" % number, arrived=0.0, told_wait_s=1.0, now=0.0)
    assert len(returning) == MOST_REMEMBERED
    assert returning.arrived(b"4", now=2.0) is None
    assert returning.arrived(b"5", now=2.0) == 0.0


def test_nobody_gains_more_than_a_bounded_time_however_often_it_was_refused() -> None:
    returning = Returning()
    returning.refused(b"mark", arrived=0.0, told_wait_s=1.0, now=5_000.0)
    assert returning.arrived(b"mark", now=5_001.0) == 5_001.0 - MOST_CREDIT_S


def chat(text: str) -> bytes:
    return b'{"model": "tiny", "messages": [{"role": "user", "content": "%s"}], "max_tokens": 900}' % text.encode()


async def serve(rooms: Rooms, caller: Caller) -> None:
    await serve_request(rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)


@pytest.mark.parametrize("comes_as_told", [True, False])
async def test_who_comes_back_as_told_is_not_put_behind_who_came_meanwhile(engine: ScriptedEngine, comes_as_told: bool) -> None:
    """Two run and two wait, so the fifth is refused. Those that wait leave, a newcomer comes, and the refused one is back."""
    script_vllm(engine)
    engine.answers[CHAT] = Scripted(gate=asyncio.Event())
    async with open_rooms({"a": engine}, max_requests=2) as rooms:
        clock, tasks = clock_of(rooms), list[asyncio.Task[None]]()

        def begin(text: str, *headers: tuple[bytes, bytes]) -> None:
            tasks.append(asyncio.create_task(serve(rooms, Caller(body=chat(text), headers=headers))))

        for text in ("runs", "runs too", "waits", "waits too"):
            begin(text)
        await eventually(lambda: len(engine.asked(CHAT)) == 2 and rooms.tally.counts().queued == 2)
        refused = Caller(body=chat("refused"))
        await serve(rooms, refused)
        assert refused.status == 429
        told_s = int(refused.header(b"retry-after-ms") or b"") / 1000
        for task in tasks[2:]:
            task.cancel()
        await eventually(lambda: rooms.tally.counts().queued == 0)
        clock.advance(0.25)
        begin("newcomer")
        await eventually(lambda: rooms.tally.counts().queued == 1)
        clock.advance(told_s - 0.25 if comes_as_told else 0.25)
        begin("refused", RETRY)
        await eventually(lambda: rooms.tally.counts().queued == 2)
        tasks[0].cancel()
        await eventually(lambda: len(engine.asked(CHAT)) == 3)
        assert (b'"refused"' in engine.asked(CHAT)[2].body) is comes_as_told
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert rooms.tally.unfinished == 0


async def test_a_refusal_that_cannot_be_waited_out_is_not_remembered(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=b'{"model": "tiny", "messages": [], "max_tokens": 1000, "n": 4}')
        await serve(rooms, caller)
        assert caller.status == 400
        assert len(rooms.returning) == 0
