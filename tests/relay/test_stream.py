"""Relaying one answer: its bytes, its grant, its clocks, and how it ends when it breaks."""

import asyncio
import json

import pytest

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.outcomes import Outcome
from gateway.relay.stream import BROKEN, broken_facts
from support.fake_upstream import eventually
from support.gates import DONE, chat_event, usage_event
from support.relayed import CLOCKS, EVENT_STREAM, JSON, Relayed
from support.tickets import A

FINISH = chat_event("", "stop")
LENGTH = (b"content-length", b"60")


def error_of(body: bytes) -> dict[str, object]:
    """The error of the last event of a stream."""
    last = body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert isinstance(error, dict)
    return error


# Bytes


async def test_a_plain_answer_is_held_until_it_is_whole_where_only_then_its_headers_are_known() -> None:
    relayed = Relayed(is_stream=False)
    relayed.engine_answers(JSON, LENGTH)
    body = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}'
    relaying = asyncio.create_task(relayed.run(told_at_end=lambda: [(b"x-usage", b"%d" % relayed.prompt_tokens)]))
    relayed.engine_says(body[:30])
    await eventually(lambda: not relayed.exchange._waiting)
    assert relayed.client.status is None
    relayed.engine_says(body[30:])
    relayed.engine_ends()
    assert await relaying is Outcome.COMPLETED
    assert (relayed.client.headers[b"x-usage"], relayed.client.body) == (b"7", body)
    assert relayed.client.is_finished
    assert relayed.releases == 1


@pytest.mark.parametrize("takes_at_once", [True, False])
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("length", [(), (LENGTH,)])
@pytest.mark.parametrize(
    "body", [b"", b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}']
)
async def test_a_plain_answer_that_is_whole_before_it_is_relayed_is_what_it_would_have_been_in_parts(
    body: bytes, length: tuple[tuple[bytes, bytes], ...], status: int, takes_at_once: bool
) -> None:
    relayed = Relayed()
    relayed.client.takes_at_once = takes_at_once
    relayed.engine_answers(JSON, *length, status=status)
    for part in (body[:30], body[30:]):
        if part:
            relayed.engine_says(part)
    relayed.engine_ends()
    told = await relayed.run(told_at_end=lambda: [(b"x-at-end", b"1")])
    assert told is (Outcome.COMPLETED if status == 200 else Outcome.ENGINE_REFUSED)
    assert (relayed.client.status, relayed.client.body, relayed.client.is_finished) == (status, body, True)
    assert (b"x-at-end" in relayed.client.headers) is bool(length)
    assert relayed.client.headers[b"x-kvgate-request-id"] == b"1"
    assert relayed.timeline.first_token is None
    assert relayed.releases == 1
    if body:
        assert relayed.prompt_tokens == 7


async def test_a_plain_answer_that_broke_or_is_large_is_not_passed_on_as_a_whole() -> None:
    for size, breaks in ((10, True), (100_000, False)):
        relayed = Relayed(is_stream=False)
        relayed.client.takes_at_once = True
        relayed.engine_answers(JSON)
        relayed.engine_says(b"x" * size)
        relayed.engine_breaks() if breaks else relayed.engine_ends()
        outcome = await relayed.run()
        assert outcome is (Outcome.UPSTREAM_ERROR_AFTER if breaks else Outcome.COMPLETED)
        assert relayed.client.body == b"x" * size
        assert relayed.client.is_aborted is breaks
        assert len(relayed.client.parts) == -(-size // (64 * 1024))


@pytest.mark.parametrize(
    "headers", [(JSON,), (JSON, (b"content-length", b"9000000")), (EVENT_STREAM, (b"content-length", b"5"))]
)
async def test_what_is_a_stream_or_large_or_of_unknown_length_is_never_held(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    relayed = Relayed(is_stream=False)
    relayed.engine_answers(*headers)
    relaying = asyncio.create_task(relayed.run(told_at_end=lambda: [(b"x-late", b"1")]))
    await eventually(lambda: relayed.client.status == 200)
    assert b"x-late" not in relayed.client.headers
    relayed.engine_breaks()
    await relaying


async def test_an_answer_that_breaks_while_it_is_held_ends_as_broken_as_any_other() -> None:
    relayed = Relayed(is_stream=False)
    relayed.engine_answers(JSON, LENGTH)
    relayed.engine_says(b'{"choices":')
    relayed.engine_breaks()
    assert await relayed.run(told_at_end=list) is Outcome.UPSTREAM_ERROR_AFTER
    assert relayed.client.body == b'{"choices":'
    assert relayed.client.is_aborted
    assert not relayed.client.is_finished


async def test_a_stream_goes_on_as_it_came() -> None:
    relayed = Relayed()
    relayed.engine_answers(EVENT_STREAM, (b"x-engine", b"v"))
    parts = [chat_event("a"), chat_event("b")[:20], chat_event("b")[20:] + FINISH, DONE]
    relaying = asyncio.create_task(relayed.run())
    for part in parts:
        relayed.engine_says(part)
        await eventually(lambda part=part: relayed.client.parts[-1:] == [part])  # type: ignore[misc]
    relayed.engine_ends()
    assert await relaying is Outcome.COMPLETED
    assert relayed.client.parts == parts
    assert relayed.client.is_finished
    assert not relayed.client.is_aborted
    assert relayed.client.headers[b"x-engine"] == b"v"
    assert relayed.client.headers[b"x-kvgate-request-id"] == b"1"


async def test_only_the_usage_event_that_we_asked_for_is_cut_out() -> None:
    relayed = Relayed(hide_usage=True)
    relayed.engine_answers()
    relayed.engine_says(chat_event("a") + FINISH)
    relayed.engine_says(usage_event(5, 2) + DONE)
    relayed.engine_ends()
    assert await relayed.run() is Outcome.COMPLETED
    assert relayed.client.body == chat_event("a") + FINISH + DONE
    assert relayed.watcher is not None
    assert relayed.watcher.usage is not None
    assert relayed.watcher.usage.output_tokens == 2


async def test_a_server_gets_no_more_at_once_than_it_sends_at_once() -> None:
    """A client that did not read cost what was read ahead for it three times over: waiting, handed on, and copied."""
    body = bytes(range(256)) * 1_000
    relayed = Relayed(is_stream=False)
    relayed.engine_answers(JSON)
    relayed.engine_says(body)
    relayed.engine_ends()
    assert await relayed.run() is Outcome.COMPLETED
    assert relayed.client.body == body
    assert max(map(len, relayed.client.parts)) <= 64 * 1024


async def test_a_plain_answer_keeps_its_length_also_where_a_stream_was_asked_for() -> None:
    """Asking for the usage of a stream took the length from the error that came instead."""
    relayed = Relayed(hide_usage=True)
    relayed.engine_answers(JSON, (b"content-length", b"2"), status=400)
    relayed.engine_says(b"{}")
    relayed.engine_ends()
    assert await relayed.run() is Outcome.ENGINE_REFUSED
    assert relayed.client.headers[b"content-length"] == b"2"
    assert relayed.client.body == b"{}"


async def test_a_stream_of_stated_length_has_room_for_an_error_event() -> None:
    relayed = Relayed()
    relayed.engine_answers(EVENT_STREAM, (b"content-length", b"1000"))
    relayed.engine_says(chat_event("a"))
    relayed.engine_breaks()
    assert await relayed.run() is Outcome.UPSTREAM_ERROR_AFTER
    assert b"content-length" not in relayed.client.headers
    assert error_of(relayed.client.body)["code"] == "upstream_body"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.COMPLETED),
        (204, Outcome.COMPLETED),
        (302, Outcome.UPSTREAM_ERROR_BEFORE),
        (400, Outcome.ENGINE_REFUSED),
        (429, Outcome.ENGINE_REFUSED),
        (500, Outcome.UPSTREAM_ERROR_BEFORE),
        (503, Outcome.UPSTREAM_ERROR_BEFORE),
    ],
)
async def test_a_status_of_the_engines_is_passed_on_and_counted_for_what_it_is(status: int, outcome: Outcome) -> None:
    relayed = Relayed(is_stream=False)
    relayed.engine_answers(JSON, status=status)
    relayed.engine_ends()
    assert await relayed.run() is outcome
    assert relayed.client.status == status
    assert relayed.client.is_finished


@pytest.mark.parametrize("head", [EVENT_STREAM, JSON])
async def test_an_error_dressed_as_success_passes_and_is_counted_as_an_error(head: tuple[bytes, bytes]) -> None:
    relayed = Relayed()
    relayed.engine_answers(head)
    error = b'{"error":{"message":"out of cells","code":500}}'
    relayed.engine_says(error if head is JSON else b"data: " + error + b"\n\n" + DONE)
    relayed.engine_ends()
    assert await relayed.run() is Outcome.UPSTREAM_ERROR_AFTER
    assert error in relayed.client.body
    assert relayed.client.is_finished


# How it breaks


@pytest.mark.parametrize("stage", [UpstreamStage.BODY, UpstreamStage.STALL, UpstreamStage.TOTAL, UpstreamStage.DRAIN])
async def test_a_stream_that_breaks_between_two_events_ends_in_an_error_event(stage: UpstreamStage) -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relayed.engine_says(chat_event("a"))
    relayed.engine_breaks(stage)
    assert await relayed.run() is BROKEN[stage].after
    assert relayed.client.body.startswith(chat_event("a"))
    assert error_of(relayed.client.body)["code"] == f"upstream_{stage.value}"
    assert DONE not in relayed.client.body
    assert relayed.client.is_finished


async def test_a_stream_that_breaks_within_an_event_is_broken_off() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relayed.engine_says(chat_event("a")[:-9])
    relayed.engine_breaks()
    assert await relayed.run() is Outcome.UPSTREAM_ERROR_AFTER
    assert relayed.client.body == chat_event("a")[:-9]
    assert relayed.client.is_aborted
    assert not relayed.client.is_finished


async def test_what_is_held_back_of_a_broken_event_stays_back_so_that_an_error_event_can_follow() -> None:
    relayed = Relayed(hide_usage=True)
    relayed.engine_answers()
    relayed.engine_says(chat_event("a") + chat_event("b")[:-9])
    relayed.engine_breaks()
    assert await relayed.run() is Outcome.UPSTREAM_ERROR_AFTER
    assert error_of(relayed.client.body)["code"] == "upstream_body"
    assert relayed.client.body.startswith(chat_event("a") + b'data: {"error"')


async def test_a_plain_answer_that_breaks_is_broken_off() -> None:
    relayed = Relayed(is_stream=False)
    relayed.engine_answers(JSON, (b"content-length", b"100"))
    relayed.engine_says(b'{"choices"')
    relayed.engine_breaks()
    assert await relayed.run() is Outcome.UPSTREAM_ERROR_AFTER
    assert relayed.client.is_aborted
    assert not relayed.client.is_finished


async def test_a_stream_that_ends_without_its_end_mark_is_never_taken_for_whole() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relayed.engine_says(chat_event("a"))
    relayed.engine_ends()
    assert await relayed.run() is Outcome.UPSTREAM_ERROR_AFTER
    assert error_of(relayed.client.body)["code"] == "upstream_body"
    assert DONE not in relayed.client.body


async def test_before_the_head_the_failure_is_the_callers_to_answer() -> None:
    relayed = Relayed()
    relayed.engine_breaks(UpstreamStage.HEAD)
    with pytest.raises(UpstreamFailed):
        await relayed.run()
    assert relayed.client.status is None
    assert relayed.releases == 1


def test_every_stage_has_an_outcome_a_status_and_words_that_name_no_host() -> None:
    assert set(BROKEN) == set(UpstreamStage)
    for stage in UpstreamStage:
        facts = broken_facts(UpstreamFailed(A, stage, "10.0.0.1:8000 said no"))
        assert 500 <= facts.status < 600
        assert "10.0.0.1" not in facts.message


# The grant


async def test_the_grant_ends_in_the_tick_of_the_engines_end_while_the_client_still_reads() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = asyncio.create_task(relayed.run())
    relayed.engine_says(chat_event("a") + FINISH + DONE)
    relayed.engine_ends()
    assert relayed.releases == 1
    assert relayed.client.parts == []
    assert relayed.timeline.upstream_ended == relayed.clock.now()
    assert await relaying is Outcome.COMPLETED
    assert relayed.releases == 1


@pytest.mark.parametrize("stage", list(UpstreamStage))
async def test_a_cut_ends_the_grant_in_the_same_tick(stage: UpstreamStage) -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = asyncio.create_task(relayed.run())
    await eventually(lambda: relayed.client.status == 200)
    relayed.answer.cut(stage)
    assert relayed.releases == 1
    assert await relaying is BROKEN[stage].after
    relayed.answer.cut(stage)
    assert relayed.releases == 1


async def test_a_relay_that_is_cancelled_closes_the_exchange_and_ends_the_grant() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = asyncio.create_task(relayed.run())
    await eventually(lambda: relayed.client.status == 200)
    relaying.cancel()
    await asyncio.gather(relaying, return_exceptions=True)
    assert relayed.exchange.is_ended
    assert relayed.releases == 1


async def test_an_exchange_that_had_ended_before_it_was_relayed_ends_the_grant_as_well() -> None:
    relayed = Relayed()
    relayed.engine_answers(JSON)
    relayed.engine_ends()
    assert relayed.releases == 1
    assert await relayed.run() is Outcome.COMPLETED


# The clocks


async def begun(relayed: Relayed) -> asyncio.Task[Outcome]:
    """Relay in a task of its own, and return once the head is out."""
    relaying = asyncio.create_task(relayed.run())
    await eventually(lambda: relayed.client.status is not None)
    return relaying


async def say(relayed: Relayed, text: str) -> None:
    """One event from the engine, and return once it is relayed."""
    before = len(relayed.client.parts)
    relayed.engine_says(chat_event(text))
    await eventually(lambda: len(relayed.client.parts) > before)
    await asyncio.sleep(0)


def after(relayed: Relayed, seconds: float) -> None:
    relayed.clock.advance(seconds)
    relayed.answer.check(relayed.clock.now())


def is_given_up(relayed: Relayed) -> bool:
    return relayed.client.was_given_up


async def test_a_stream_without_a_token_in_time_is_cut_before_and_after_its_head() -> None:
    relayed = Relayed()
    relaying = asyncio.create_task(relayed.run())
    await asyncio.sleep(0)
    after(relayed, CLOCKS.first_token_s)
    assert not relayed.exchange.is_ended
    after(relayed, 0.1)
    with pytest.raises(UpstreamFailed) as failed:
        await relaying
    assert failed.value.stage is UpstreamStage.FIRST_TOKEN

    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    after(relayed, CLOCKS.first_token_s + 0.1)
    assert await relaying is Outcome.TIMEOUT_FIRST_TOKEN
    assert error_of(relayed.client.body)["code"] == "upstream_first_token"


async def test_a_stream_that_stalls_after_its_first_token_is_cut() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    await say(relayed, "a")
    after(relayed, CLOCKS.stall_s)
    await say(relayed, "b")
    after(relayed, CLOCKS.stall_s)
    assert not relayed.exchange.is_ended
    after(relayed, 0.1)
    assert await relaying is Outcome.TIMEOUT_STALL
    assert relayed.client.body.startswith(chat_event("a") + chat_event("b"))
    assert error_of(relayed.client.body)["code"] == "upstream_stall"


async def test_a_plain_answer_has_the_total_clock_alone() -> None:
    relayed = Relayed(is_stream=False)
    relaying = asyncio.create_task(relayed.run())
    await asyncio.sleep(0)
    after(relayed, CLOCKS.total_s)
    assert not relayed.exchange.is_ended
    after(relayed, 0.1)
    with pytest.raises(UpstreamFailed) as failed:
        await relaying
    assert failed.value.stage is UpstreamStage.TOTAL


async def test_a_stream_that_was_answered_plainly_waits_for_no_token() -> None:
    relayed = Relayed()
    relayed.engine_answers(JSON)
    relaying = await begun(relayed)
    after(relayed, CLOCKS.first_token_s + CLOCKS.stall_s)
    assert not relayed.exchange.is_ended
    relayed.engine_says(b"{}")
    relayed.engine_ends()
    assert await relaying is Outcome.COMPLETED


async def test_a_stream_that_goes_on_for_ever_is_cut_by_the_total_clock() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    for _ in range(int(CLOCKS.total_s / CLOCKS.stall_s)):
        await say(relayed, "a")
        after(relayed, CLOCKS.stall_s)
    assert not relayed.exchange.is_ended
    await say(relayed, "a")
    after(relayed, 0.1)
    assert await relaying is Outcome.TIMEOUT_TOTAL


async def test_a_client_that_takes_no_byte_is_given_up_and_the_engine_is_not_blamed() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    await say(relayed, "a")
    relayed.client.blocked_since = relayed.clock.now()
    after(relayed, CLOCKS.send_s)
    assert not is_given_up(relayed)
    assert not relayed.exchange.is_ended, "later than the stall clock, but it is the client that is waited for"
    after(relayed, 0.1)
    assert is_given_up(relayed)
    relaying.cancel()  # as its caller does when the client is gone
    await asyncio.gather(relaying, return_exceptions=True)
    assert relayed.releases == 1


async def test_an_engine_that_has_ended_is_never_late() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relayed.engine_says(chat_event("a") + FINISH + DONE)
    relayed.engine_ends()
    relaying = asyncio.create_task(relayed.run())
    after(relayed, CLOCKS.total_s - 1)
    assert await relaying is Outcome.COMPLETED


def test_what_was_not_sent_yet_is_not_late() -> None:
    async def look() -> None:
        relayed = Relayed()
        relayed.timeline.sent = None
        after(relayed, 1000.0)
        assert not relayed.exchange.is_ended

    asyncio.run(look())


# The timeline


async def test_the_first_token_and_the_gaps_are_stamped_as_they_go_out() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    relayed.engine_says(b": ping\n\n")
    relayed.clock.advance(1.0)
    for gap_s in (0.5, 0.25):
        await say(relayed, "a")
        relayed.clock.advance(gap_s)
    await say(relayed, "a")
    relayed.engine_says(FINISH + DONE)
    relayed.engine_ends()
    await relaying
    assert relayed.timeline.first_token == relayed.timeline.arrived + 1.0
    assert relayed.timeline.take_gaps() == [0.5, 0.25]


async def test_gaps_of_a_long_answer_are_handed_on_before_they_are_many() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    for _ in range(150):
        relayed.engine_says(chat_event("a"))
        await asyncio.sleep(0)
    relayed.engine_says(FINISH + DONE)
    relayed.engine_ends()
    await relaying
    assert all(len(gaps) <= 128 for gaps in relayed.gaps)
    assert len(relayed.timeline.gaps) < 128


# What is looked at later


@pytest.mark.parametrize("hide_usage", [False, True])
async def test_what_passed_is_looked_at_before_anything_is_made_of_it(hide_usage: bool) -> None:
    relayed = Relayed(hide_usage=hide_usage)
    relayed.engine_answers()
    relaying = await begun(relayed)
    relayed.client.takes_at_once = True
    await say(relayed, "first")
    assert relayed.watcher is not None
    for _ in range(5):
        relayed.clock.advance(0.5)
        relayed.engine_says(chat_event("more"))
    assert relayed.watcher.token_events == 1
    assert relayed.client.body.count(b"more") == 5
    relayed.answer.check(relayed.clock.now())
    assert relayed.watcher.token_events == 6
    assert relayed.timeline.take_gaps() == [0.5] * 5
    relayed.clock.advance(0.25)
    relayed.engine_says(chat_event("last"))
    relayed.engine_says(FINISH)
    assert relayed.answer.is_told_whole
    assert relayed.timeline.take_gaps() == [0.25]
    relayed.engine_says(DONE)
    relayed.engine_ends()
    assert await relaying is Outcome.COMPLETED


async def test_a_usage_event_of_ours_is_never_among_what_is_looked_at_later() -> None:
    relayed = Relayed(hide_usage=True)
    relayed.engine_answers()
    relaying = await begun(relayed)
    relayed.client.takes_at_once = True
    await say(relayed, "first")
    relayed.engine_says(chat_event("second"))
    relayed.engine_says(usage_event(9, 2))
    relayed.engine_says(FINISH + DONE)
    relayed.engine_ends()
    assert await relaying is Outcome.COMPLETED
    assert relayed.client.body == chat_event("first") + chat_event("second") + FINISH + DONE
    assert relayed.prompt_tokens == 9


async def test_an_error_among_what_is_looked_at_later_is_counted_as_one() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    relayed.client.takes_at_once = True
    await say(relayed, "first")
    relayed.engine_says(b'data: {"error": {"message": "no"}}\n\n')
    relayed.engine_says(DONE)
    relayed.engine_ends()
    assert await relaying is Outcome.UPSTREAM_ERROR_AFTER


async def test_reads_wait_for_a_look_only_while_they_are_few_and_small() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = await begun(relayed)
    relayed.client.takes_at_once = True
    await say(relayed, "first")
    assert relayed.watcher is not None
    for _ in range(100):
        relayed.engine_says(chat_event("a"))
    assert relayed.watcher.token_events > 64
    seen = relayed.watcher.token_events
    relayed.engine_says(chat_event("b" * 100_000))
    assert relayed.watcher.token_events == 102 > seen
    relayed.engine_says(FINISH + DONE)
    relayed.engine_ends()
    await relaying
