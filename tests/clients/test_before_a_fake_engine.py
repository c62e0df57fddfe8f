"""Real clients, unmodified and with their own defaults, against a gateway before an engine that does as it is told."""

import asyncio
import time

import pytest

from clients.real_client import LEAVES_RETRIES, RealClient
from support.bench import BUDGET_BLOCKS, MODEL, Bench
from support.fake_messages import messages_event, text_delta
from support.fake_upstream import Behaviour, chunk, head, send_raw
from support.gates import EVENT_STREAM, chat_event, held_head

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

ANSWER = "tok tok tok tok"
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


def arrivals(bench: Bench, client: RealClient, tag: str) -> int:
    """How often the client's request reached the engine. The gateway's own questions about its tokens carry its tag as well."""
    return sum(1 for seen in bench.fake.tagged(tag) if seen.target.decode() == client.path)


@STREAMED
async def test_an_answer(client: RealClient, bench: Bench, stream: bool) -> None:
    tag = bench.tag("real")
    told = await client.ask(bench.gateway.url, MODEL, f"ping [tag:{tag}]", stream=stream)
    assert told.error is None
    assert (told.text or "").strip() == ANSWER
    assert arrivals(bench, client, tag) == 1
    await bench.end_case()


@STREAMED
async def test_it_waits_in_line_and_then_runs(client: RealClient, bench: Bench, stream: bool) -> None:
    tag = bench.tag("real-queued")
    async with bench.everything_taken() as gate:
        asking = asyncio.create_task(client.ask(bench.gateway.url, MODEL, f"ping [tag:{tag}]", stream=stream))
        await bench.state_where(lambda state: state.queued == 1, "the client waits")
        assert arrivals(bench, client, tag) == 0
        gate.set()
        told = await asking
    assert (told.error, (told.text or "").strip()) == (None, ANSWER)
    assert arrivals(bench, client, tag) == 1
    await bench.end_case()


@STREAMED
async def test_a_refusal_that_waiting_cures_is_retried_no_earlier_than_told(
    client: RealClient, bench: Bench, stream: bool
) -> None:
    gate, tag, holders, line = asyncio.Event(), bench.tag("real-late"), bench.tag("holder"), bench.tag("line")
    bench.fake.script(holders, held_head(gate, bench.engine.completion()))
    before = await bench.idle()
    async with await bench.take(BUDGET_BLOCKS, holders) as holder:
        waiting = [await bench.wait_in_line(2, line) for _ in range(8)]  # all that the line takes
        asking = asyncio.create_task(client.ask(bench.gateway.url, MODEL, f"ping [tag:{tag}]", stream=stream))
        refused = "refused_queue_full"
        await bench.state_where(
            lambda state: state.outcomes.get(refused, 0) > before.outcomes.get(refused, 0), "the client was refused"
        )
        began = time.monotonic()
        gate.set()
        told = await asking
        took_s = time.monotonic() - began
        for in_line in (holder, *waiting):
            assert (await in_line.answer()).status == 200
            in_line.vanish()
    after = await bench.idle()
    assert after.outcomes[refused] - before.outcomes.get(refused, 0) == 1
    if client.name in LEAVES_RETRIES:
        assert (told.text, told.status, arrivals(bench, client, tag)) == (None, 429, 0)
    else:
        assert (told.error, (told.text or "").strip()) == (None, ANSWER)
        assert took_s >= 0.9, "it did not wait as it was told: no Retry-After is below a second"
        assert arrivals(bench, client, tag) == 1
    await bench.end_case()


@STREAMED
async def test_a_request_that_never_fits_is_refused_once_and_not_retried(
    client: RealClient, bench: Bench, stream: bool
) -> None:
    before = await bench.idle()
    tag = bench.tag("real-never")
    told = await client.ask(bench.gateway.url, MODEL, f"ping [tag:{tag}]", stream=stream, max_tokens=2_000)
    assert told.text is None
    assert told.status == 400
    assert "the context of the model is 1024 tokens" in (told.error or "")
    after = await bench.idle()
    assert after.received - before.received == 1
    assert arrivals(bench, client, tag) == 0
    await bench.end_case()


BEGUN = {
    "/v1/chat/completions": (chat_event("one "), chat_event("two ")),
    "/v1/messages": (
        messages_event(
            "message_start",
            message={"id": "m", "type": "message", "role": "assistant", "model": MODEL}
            | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 0}},
        ),
        messages_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        text_delta("one "),
        text_delta("two "),
    ),
}


def cut_short(path: str, how: str) -> Behaviour:
    """A stream that begins well and does not end so."""
    *events, last = BEGUN[path]
    match how:
        case "amid an event":
            return send_raw(head(200, EVENT_STREAM), *map(chunk, events), chunk(last[: len(last) // 2]), then="close")
        case "tidily":
            return send_raw(head(200, EVENT_STREAM), *map(chunk, events), chunk(b""), then="keep")
        case _:
            return send_raw(head(200, EVENT_STREAM), *map(chunk, events), then=how)


@pytest.mark.parametrize("how", ["reset", "close", "tidily", "amid an event"])
async def test_a_stream_that_is_cut_is_an_error_and_no_quiet_success(client: RealClient, bench: Bench, how: str) -> None:
    tag = bench.tag("real-cut")
    bench.fake.script(tag, cut_short(client.path, how))
    told = await client.ask(bench.gateway.url, MODEL, f"ping [tag:{tag}]", stream=True)
    assert told.text is None, f"{client.name} takes a cut answer for a whole one"
    assert told.error
    assert arrivals(bench, client, tag) == 1
    await bench.end_case()


async def test_a_plain_answer_that_is_cut_is_an_error_however_often_it_is_tried(client: RealClient, bench: Bench) -> None:
    tag = bench.tag("real-half")
    half = head(200, [(b"content-type", b"application/json"), (b"content-length", b"1000")]) + b'{"id":"x"'
    bench.fake.script(tag, send_raw(half, then="close"))
    told = await client.ask(bench.gateway.url, MODEL, f"ping [tag:{tag}]", stream=False)
    assert told.text is None
    assert told.error
    await bench.end_case()
