"""The real `anthropic` package against a gateway: the answers it gets, and the refusals that it retries or does not."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from support.bench import BUDGET_BLOCKS, MODEL, STD_CAP, TWIN_CAP, Bench, blocks_of
from support.fake_messages import COUNT_PATH, messages_event, text_delta
from support.fake_upstream import FakeExchange, chunk, eventually, head, send_raw
from support.gates import EVENT_STREAM, held_head
from support.raw_requests import everything, request, statuses_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/messages"
START = messages_event("message_start", message={"id": "m", "usage": {"input_tokens": 7, "output_tokens": 0}, "content": []})
BLOCK = messages_event("content_block_start", index=0, content_block={"type": "text", "text": ""})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(bench: Bench) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=bench.gateway.url, api_key="their-key", timeout=30) as sdk:
        yield sdk


PING: list[anthropic.types.MessageParam] = [{"role": "user", "content": "ping"}]


async def test_a_message(bench: Bench, client: AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(
        model=MODEL, max_tokens=32, messages=PING, system="Be brief.", extra_headers={"x-tag": (tag := bench.tag("sdk"))}
    )
    answer = await raw.parse()
    assert [block.text for block in answer.content if block.type == "text"] == ["tok " * 4]
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 14, 4)
    assert int(raw.headers["x-kvgate-blocks"]) > 0
    (seen,) = bench.fake.tagged(tag)
    assert seen.header("authorization") == b"Bearer their-key"
    assert seen.header("anthropic-version")
    await bench.end_case()


async def test_a_stream_of_events_by_both_of_its_interfaces(bench: Bench, client: AsyncAnthropic) -> None:
    events = await client.messages.create(model=MODEL, max_tokens=32, messages=PING, stream=True)
    kinds = [event.type async for event in events]
    assert kinds[0] == "message_start"
    assert kinds.count("content_block_delta") == 4
    assert kinds[-2:] == ["message_delta", "message_stop"]
    async with client.messages.stream(model=MODEL, max_tokens=3, messages=PING) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert texts == ["tok "] * 3
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 3)
    await bench.end_case()


async def test_a_key_in_their_own_header_and_a_query_go_on_as_they_came(bench: Bench) -> None:
    tag = bench.tag("key")
    body = {"model": MODEL, "max_tokens": 4, "messages": PING}
    answer = await bench.post(f"{PATH}?beta=true", body, tag=tag, headers={"x-api-key": "their-key"})
    assert answer.status == 200
    (seen,) = bench.fake.tagged(tag)
    assert (seen.target, seen.header("x-api-key"), seen.header("authorization")) == (
        b"/v1/messages?beta=true",
        b"their-key",
        None,
    )
    await bench.end_case()


async def test_tokens_are_counted_by_the_engine_and_without_a_hold(bench: Bench, client: AsyncAnthropic) -> None:
    before = await bench.idle()
    async with bench.everything_taken():
        counted = await client.messages.count_tokens(model=MODEL, messages=PING)
    assert counted.input_tokens == 7
    after = await bench.idle()
    assert after.received - before.received == 1, "only what took everything is a request"
    await bench.end_case()


async def test_the_body_is_sent_on_to_the_byte(bench: Bench) -> None:
    body = b' { "max_tokens" : 5,"messages":[ {"role":"user","content":"caf\\u00e9"}],"top_k":1e0,"x":%s } ' % (b"9" * 400)
    tag = bench.tag("bytes")
    answers = await everything(bench, request(f"POST {PATH} HTTP/1.1", (b"Connection: close",), body, tag=tag))
    assert statuses_in(answers) == [200]
    (seen,) = bench.fake.tagged(tag)
    assert seen.body == body
    await bench.end_case()


async def test_what_it_holds_is_prompt_and_cap_by_the_engines_own_count(bench: Bench) -> None:
    """By its bytes it passes the context of 1,024; counted it is 756 + 200."""
    long = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "word " * 600}]}
    before = len([seen for seen in bench.fake.requests if seen.target == COUNT_PATH.encode()])
    answer = await bench.post(PATH, long)
    assert answer.status == 200, answer
    asked = [seen for seen in bench.fake.requests if seen.target == COUNT_PATH.encode()]
    assert len(asked) == before + 1
    assert json.loads(asked[-1].body) == {name: long[name] for name in ("model", "messages")}
    assert answer.head.number("x-kvgate-blocks") == blocks_of(756, 200)
    await bench.end_case()


async def test_without_a_cap_the_engine_decides(bench: Bench) -> None:
    answer = await bench.post(PATH, {"model": MODEL, "messages": PING})
    assert answer.status == 400
    assert b"max_tokens" in answer.body
    assert (await bench.idle()).outcomes["engine_refused"] >= 1
    await bench.end_case()


async def test_a_stream_that_waits_in_line_and_then_runs(bench: Bench, client: AsyncAnthropic) -> None:
    async with bench.everything_taken() as gate:

        async def talk() -> str:
            async with client.messages.stream(model=MODEL, max_tokens=TWIN_CAP, messages=PING) as stream:
                return "".join([text async for text in stream.text_stream])

        talking = asyncio.create_task(talk())
        await bench.state_where(lambda state: state.queued == 1, "the stream waits")
        gate.set()
        assert await talking == "tok " * 4
    await bench.end_case()


async def test_a_refusal_that_waiting_cures_is_retried_after_the_told_wait(bench: Bench, client: AsyncAnthropic) -> None:
    gate, tag, line = asyncio.Event(), bench.tag("sdk-holder"), bench.tag("sdk-line")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    before = await bench.idle()
    async with await bench.take(BUDGET_BLOCKS, tag) as holder:
        waiting = [await bench.wait_in_line(2, line) for _ in range(8)]  # all that the line takes
        began = time.monotonic()
        asking = asyncio.create_task(client.messages.create(model=MODEL, max_tokens=32, messages=PING))
        refused = "refused_queue_full"
        await bench.state_where(
            lambda state: state.outcomes.get(refused, 0) > before.outcomes.get(refused, 0), "the SDK was refused"
        )
        gate.set()
        answer = await asking
        took_s = time.monotonic() - began
        for client_in_line in (holder, *waiting):
            assert (await client_in_line.answer()).status == 200
            client_in_line.vanish()
    assert answer.usage.output_tokens == 4
    assert took_s >= 1.0, "the SDK's own pause is half a second: it did not wait as it was told"
    after = await bench.idle()
    assert after.outcomes[refused] - before.outcomes.get(refused, 0) == 1
    await bench.end_case()


async def test_a_refusal_that_nothing_cures_is_not_retried(bench: Bench, client: AsyncAnthropic) -> None:
    before = await bench.idle()
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(model=MODEL, max_tokens=2_000, messages=PING)
    assert refused.value.type == "invalid_request_error"
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["code"] == "context_length_exceeded"
    assert refused.value.response.headers["x-should-retry"] == "false"
    after = await bench.idle()
    assert after.received - before.received == 1
    await bench.end_case()


async def test_a_stream_that_breaks_raises_in_the_sdk(bench: Bench, client: AsyncAnthropic) -> None:
    for ending in ("reset", "close", "keep"):
        tag = bench.tag("sdk-cut")
        last = chunk(b"") if ending == "keep" else b""
        begun = (chunk(START), chunk(BLOCK), chunk(text_delta("one ")))
        bench.fake.script(tag, send_raw(head(200, EVENT_STREAM), *begun, last, then=ending))
        stream = await client.messages.create(
            model=MODEL, max_tokens=STD_CAP, messages=PING, stream=True, extra_headers={"x-tag": tag}
        )
        with pytest.raises(anthropic.APIStatusError, match="the inference server broke off in its answer"):
            async for _ in stream:
                pass
        assert bench.arrivals(tag) == 1
    await bench.end_case()


async def test_an_sdk_that_closes_its_stream_gives_back_what_it_held(bench: Bench, client: AsyncAnthropic) -> None:
    gate, tag = asyncio.Event(), bench.tag("sdk-leaves")

    async def talk_and_wait(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, EVENT_STREAM), chunk(START), chunk(BLOCK), chunk(text_delta("one ")))
        await gate.wait()

    bench.fake.script(tag, talk_and_wait)
    stream = await client.messages.create(
        model=MODEL, max_tokens=TWIN_CAP, messages=PING, stream=True, extra_headers={"x-tag": tag}
    )
    async for _ in stream:
        break
    await stream.close()
    await eventually(lambda: bench.fake.open_requests(tag) == 0)
    await bench.end_case()


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages/count_tokens/x"])
async def test_what_is_closed_says_so_in_the_same_shape(bench: Bench, path: str) -> None:
    answer = await bench.post(path, {})
    assert (answer.status, answer.json()["type"], answer.json()["error"]["type"]) == (404, "error", "not_found_error")
    assert "KVGATE_PASS_THROUGH" in answer.json()["error"]["message"]
