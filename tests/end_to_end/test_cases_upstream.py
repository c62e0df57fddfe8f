"""Cases U: what is sent to the engine is sent once, and connections to it are neither lost nor hoarded."""

import asyncio
import json

import pytest

from support.bench import CHAT, Bench, chat_body
from support.fake_upstream import (
    Behaviour,
    answer,
    chunk,
    close_before_head,
    eventually,
    head,
    reset_before_head,
    send_raw,
)
from support.gates import EVENT_STREAM, chat_event
from support.http_client import Answer

pytestmark = pytest.mark.asyncio(loop_scope="module")


# -- U-2


async def on_fresh_connections(bench: Bench) -> None:
    """Close what is pooled, so that the next request needs a connection of its own."""
    bench.fake.drop_connections()
    await eventually(lambda: bench.fake.connections_open == 0)


DEATHS: dict[str, Behaviour] = {
    "reset after the request": reset_before_head(),
    "closed after the request": close_before_head(),
    "half a status line": send_raw(b"HTTP/1.1 2", then="reset"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", DEATHS)
async def test_u2_what_died_on_a_fresh_connection_is_not_generated_again(bench: Bench, name: str, stream: bool) -> None:
    tag = bench.tag("u2")
    bench.fake.script(tag, DEATHS[name], bench.engine.completion())
    await on_fresh_connections(bench)
    found = await bench.post(CHAT, chat_body(64, stream=stream), tag=tag)
    assert found.status == 502, found
    assert found.error["message"]
    assert bench.arrivals(tag) == 1
    await bench.end_case()


async def test_u2_a_stream_that_died_after_one_event_is_not_generated_again(bench: Bench) -> None:
    tag = bench.tag("u2")
    one_event = send_raw(head(200, EVENT_STREAM) + chunk(chat_event("one ")), then="reset")
    bench.fake.script(tag, one_event, bench.engine.completion())
    await on_fresh_connections(bench)
    found = await bench.post(CHAT, chat_body(64, stream=True), tag=tag)
    assert not found.is_tidy or "error" in json.loads(found.events[-1]), found
    assert bench.arrivals(tag) == 1
    await bench.end_case()


async def test_u2_a_reused_connection_that_died_before_any_byte_is_tried_once_more_under_the_same_hold(bench: Bench) -> None:
    before = await bench.idle()
    tag = bench.tag("u2-reused")
    await bench.std()  # leaves a warm connection behind
    bench.fake.script(tag, close_before_head(), bench.engine.completion())
    found = await bench.post(CHAT, chat_body(64), tag=tag)
    first = bench.fake.tagged(tag)[0]
    # Whether the first try met a warm connection is the pool's affair; what follows from it is not.
    assert found.status == (200 if first.turn > 1 else 502)
    assert bench.arrivals(tag) == (2 if first.turn > 1 else 1)
    assert first.turn > 1, "the pool did not reuse a warm connection"
    after = await bench.idle()
    assert after.received - before.received == 2
    await bench.end_case()


async def test_u2_a_request_that_dies_on_every_connection_is_given_up_after_one_retry(bench: Bench) -> None:
    tag = bench.tag("u2-always")
    await bench.std()
    bench.fake.script(tag, close_before_head())
    found = await bench.post(CHAT, chat_body(64), tag=tag)
    assert found.status == 502
    assert bench.arrivals(tag) <= 2
    await bench.end_case()


# -- U-3


ERROR = b'{"error": {"message": "no", "type": "BadRequestError", "param": null, "code": 400}}'
REPLIES = {
    status: answer(status, ERROR, [(b"content-type", b"application/json")], framing=framing)
    for status, framing in ((400, "length"), (422, "chunked"), (429, "length"))
}
TIMES = 300


@pytest.mark.parametrize("manner", ["in a row", "at once"])
async def test_u3_error_replies_to_streams_return_their_connections(bench: Bench, manner: str) -> None:
    before = await bench.idle()
    await bench.std()
    tags = {status: bench.tag(f"u3-{status}") for status in REPLIES}
    for status, reply in REPLIES.items():
        bench.fake.script(tags[status], reply)
    wanted = [list(REPLIES)[number % len(REPLIES)] for number in range(TIMES)]
    at_once = asyncio.Semaphore(1 if manner == "in a row" else 8)  # as many as wait and run at most on this bench

    async def one(status: int) -> Answer:
        async with at_once:
            return await bench.post(CHAT, chat_body(1, stream=True), tag=tags[status])

    seen_before = bench.fake.connections_seen
    answers = await asyncio.gather(*(one(status) for status in wanted))
    assert [(found.status, found.body, found.is_tidy) for found in answers] == [(status, ERROR, True) for status in wanted]
    after = await bench.idle()
    assert after.outcomes["engine_refused"] - before.outcomes.get("engine_refused", 0) == TIMES
    # Connections were returned and used again rather than opened for each; and no more lie idle than were open at once.
    assert bench.fake.connections_seen - seen_before < TIMES // 4
    assert bench.fake.connections_open < TIMES // 4
    assert (await bench.std()).status == 200
    await bench.end_case()
