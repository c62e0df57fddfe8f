"""The real `openai` package against a gateway, beyond chats: Responses and Embeddings, and what is closed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from support.bench import BUDGET_BLOCKS, MODEL, STD_CAP, TWIN_CAP, Bench, blocks_of, running_bench
from support.fake_responses import ResponsesAnswer, text_delta
from support.fake_upstream import FakeExchange, chunk, eventually, head, send_raw
from support.gates import EVENT_STREAM, held_head
from support.raw_requests import everything, request, statuses_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/responses"
BEGUN = tuple(map(chunk, ResponsesAnswer(MODEL, 7, 0, "", is_cut=False).begin()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(bench: Bench) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{bench.gateway.url}/v1", api_key="any", timeout=30) as sdk:
        yield sdk


async def test_a_response(bench: Bench, client: AsyncOpenAI) -> None:
    raw = await client.responses.with_raw_response.create(
        model=MODEL, input="ping", instructions="Be brief.", max_output_tokens=32
    )
    answer = raw.parse()
    assert (answer.output_text, answer.status) == ("tok " * 4, "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (14, 4)
    assert int(raw.headers["x-kvgate-blocks"]) > 0
    await bench.end_case()


async def test_a_stream_of_events_by_both_of_its_interfaces(bench: Bench, client: AsyncOpenAI) -> None:
    events = await client.responses.create(model=MODEL, input="ping", max_output_tokens=32, stream=True)
    kinds = [event.type async for event in events]
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 4
    assert kinds[-1] == "response.completed"
    async with client.responses.stream(model=MODEL, input="ping", max_output_tokens=3) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert texts == ["tok "] * 3
    assert final.incomplete_details is not None
    assert final.incomplete_details.reason == "max_output_tokens"
    await bench.end_case()


async def test_turns_with_calls_and_their_answers(bench: Bench, client: AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "How is the weather?"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "windy"},
        ],
        tools=[{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}],
        max_output_tokens=32,
    )
    assert answer.output_text == "tok " * 4
    await bench.end_case()


async def test_without_a_cap_it_may_run_to_the_context(bench: Bench, client: AsyncOpenAI) -> None:
    raw = await client.responses.with_raw_response.create(model=MODEL, input="ping")
    assert raw.parse().status == "completed"
    assert int(raw.headers["x-kvgate-blocks"]) == BUDGET_BLOCKS
    await bench.end_case()


async def test_the_body_is_sent_on_to_the_byte(bench: Bench) -> None:
    body = b' { "max_output_tokens" : 5,"input":[ {"role":"user","content":"caf\\u00e9"}],"top_k":1,"x":%s } ' % (b"9" * 400)
    tag = bench.tag("bytes")
    answers = await everything(bench, request(f"POST {PATH} HTTP/1.1", (b"Connection: close",), body, tag=tag))
    assert statuses_in(answers) == [200]
    (seen,) = bench.fake.tagged(tag)
    assert seen.body == body
    await bench.end_case()


async def test_what_it_holds_is_input_and_cap_by_the_engines_own_count(bench: Bench) -> None:
    """By its bytes it passes the context of 1,024; counted it is 756 + 200."""
    answer = await bench.post(PATH, {"model": MODEL, "input": "word " * 600, "max_output_tokens": 200})
    assert answer.status == 200, answer
    assert answer.head.number("x-kvgate-blocks") == blocks_of(756, 200)
    asked = json.loads([seen for seen in bench.fake.requests if seen.target == b"/tokenize"][-1].body)
    assert asked == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * 600}],
        "add_special_tokens": True,
    }
    await bench.end_case()


async def test_a_cap_that_the_gateway_writes_is_told_and_counted() -> None:
    async with running_bench(KVGATE_DEFAULT_OUTPUT="3") as bench:
        tag = bench.tag("written")
        async with AsyncOpenAI(base_url=f"{bench.gateway.url}/v1", api_key="any") as sdk:
            raw = await sdk.responses.with_raw_response.create(model=MODEL, input="ping", extra_headers={"x-tag": tag})
        assert (raw.headers["x-kvgate-output-cap"], raw.parse().status) == ("3", "incomplete")
        (seen,) = bench.fake.tagged(tag)
        assert seen.body.endswith(b',"max_output_tokens":3}')
        assert (await bench.idle()).outcomes["capped"] == 1


async def test_a_stream_that_waits_in_line_and_then_runs(bench: Bench, client: AsyncOpenAI) -> None:
    async with bench.everything_taken() as gate:

        async def talk() -> str:
            events = await client.responses.create(model=MODEL, input="ping", max_output_tokens=TWIN_CAP, stream=True)
            return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])

        talking = asyncio.create_task(talk())
        await bench.state_where(lambda state: state.queued == 1, "the stream waits")
        gate.set()
        assert await talking == "tok " * 4
    await bench.end_case()


async def test_a_refusal_that_waiting_cures_is_retried_after_the_told_wait(bench: Bench, client: AsyncOpenAI) -> None:
    gate, tag, line = asyncio.Event(), bench.tag("sdk-holder"), bench.tag("sdk-line")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    before = await bench.idle()
    async with await bench.take(BUDGET_BLOCKS, tag) as holder:
        waiting = [await bench.wait_in_line(2, line) for _ in range(8)]  # all that the line takes
        began = time.monotonic()
        asking = asyncio.create_task(client.responses.create(model=MODEL, input="ping", max_output_tokens=32))
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
    assert answer.output_text == "tok " * 4
    assert took_s >= 1.0, "the SDK's own pause is half a second: it did not wait as it was told"
    after = await bench.idle()
    assert after.outcomes[refused] - before.outcomes.get(refused, 0) == 1
    await bench.end_case()


async def test_a_refusal_that_nothing_cures_is_not_retried(bench: Bench, client: AsyncOpenAI) -> None:
    before = await bench.idle()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="ping", max_output_tokens=2_000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "max_output_tokens")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="ping", background=True)
    assert refused.value.param == "background"
    assert refused.value.response.headers["x-should-retry"] == "false"
    after = await bench.idle()
    assert after.received - before.received == 2
    await bench.end_case()


async def test_a_stream_that_breaks_raises_in_the_sdk(bench: Bench, client: AsyncOpenAI) -> None:
    for ending in ("reset", "close", "keep"):
        tag = bench.tag("sdk-cut")
        last = chunk(b"") if ending == "keep" else b""
        bench.fake.script(tag, send_raw(head(200, EVENT_STREAM), *BEGUN, chunk(text_delta("one ")), last, then=ending))
        events = await client.responses.create(
            model=MODEL, input="ping", max_output_tokens=STD_CAP, stream=True, extra_headers={"x-tag": tag}
        )
        with pytest.raises(openai.APIError, match="the inference server broke off in its answer"):
            async for _ in events:
                pass
        assert bench.arrivals(tag) == 1
    await bench.end_case()


async def test_a_stream_that_breaks_raises_in_the_sdks_own_helper(bench: Bench, client: AsyncOpenAI) -> None:
    tag = bench.tag("sdk-cut")
    bench.fake.script(tag, send_raw(head(200, EVENT_STREAM), *BEGUN, chunk(text_delta("one ")), then="close"))
    with pytest.raises(openai.APIError, match="broke off"):
        async with client.responses.stream(
            model=MODEL, input="ping", max_output_tokens=STD_CAP, extra_headers={"x-tag": tag}
        ) as stream:
            await stream.until_done()
    await bench.end_case()


async def test_an_sdk_that_closes_its_stream_gives_back_what_it_held(bench: Bench, client: AsyncOpenAI) -> None:
    gate, tag = asyncio.Event(), bench.tag("sdk-leaves")

    async def talk_and_wait(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, EVENT_STREAM), *BEGUN, chunk(text_delta("one ")))
        await gate.wait()

    bench.fake.script(tag, talk_and_wait)
    events = await client.responses.create(
        model=MODEL, input="ping", max_output_tokens=TWIN_CAP, stream=True, extra_headers={"x-tag": tag}
    )
    async for _ in events:
        break
    await events.close()
    await eventually(lambda: bench.fake.open_requests(tag) == 0)
    await bench.end_case()


async def test_embeddings_of_texts_lists_and_ids(bench: Bench, client: AsyncOpenAI) -> None:
    inputs: list[str | list[str] | list[int] | list[list[int]]] = ["ping", ["a", "b", "c"], [1, 2, 3], [[1, 2], [3]]]
    for value, vectors in zip(inputs, (1, 3, 1, 2), strict=True):
        raw = await client.embeddings.with_raw_response.create(model=MODEL, input=value, encoding_format="float")
        assert [each.embedding for each in raw.parse().data] == [[0.25, -0.5]] * vectors
        assert int(raw.headers["x-kvgate-blocks"]) == vectors
    answer = await client.embeddings.create(model=MODEL, input="ping", encoding_format="float")
    assert answer.usage.prompt_tokens == 1
    await bench.end_case()


async def test_embeddings_of_many_inputs_need_no_more_than_there_is(bench: Bench, client: AsyncOpenAI) -> None:
    raw = await client.embeddings.with_raw_response.create(model=MODEL, input=[[1] * 300] * 200, encoding_format="float")
    assert len(raw.parse().data) == 200
    assert int(raw.headers["x-kvgate-blocks"]) == BUDGET_BLOCKS
    with pytest.raises(openai.BadRequestError) as refused:
        await client.embeddings.create(model=MODEL, input=[[1] * 5, [1] * 1025])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    await bench.end_case()


CLOSED = (
    "/v1/chat/completions/batch",
    "/chat/completions",
    "/responses",
    "/v1/responses/compact",
    "/v1/responses/resp_1/cancel",
    "/embeddings",
    "/embedding",
    "/infill",
    "/invocations",
    "/inference/v1/generate",
    "/v1/systemone",
    "/generative_scoring",
    "/generate",
    "/v1/rerank",
    "/rerank",
    "/score",
    "/v1/score",
    "/pooling",
    "/classify",
    "/v1/audio/transcriptions",
    "/v2/embed",
    "/v1/completions/",
    "/V1/responses",
)


async def test_every_other_door_is_closed_and_says_how_to_open_it(bench: Bench) -> None:
    before = await bench.idle()
    for path in CLOSED:
        answer = await bench.post(path, {"model": MODEL, "prompt": "a", "input": "a", "messages": []})
        assert answer.status == 404, path
        assert "KVGATE_PASS_THROUGH" in answer.json()["error"]["message"], path
        assert path in answer.json()["error"]["message"]
    assert (await bench.gateway.state()).received == before.received
    assert not [seen for seen in bench.fake.requests if seen.target.decode().split("?")[0] in CLOSED]
    await bench.end_case()


async def test_a_stored_response_is_neither_read_nor_deleted_here(bench: Bench, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="KVGATE_PASS_THROUGH"):
        await client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="KVGATE_PASS_THROUGH"):
        await client.responses.delete("resp_1")
    await bench.end_case()


async def test_a_door_that_was_opened_passes_what_comes() -> None:
    async with running_bench(KVGATE_PASS_THROUGH="/score") as opened:
        answer = await opened.post("/score", {"model": MODEL})
        assert (answer.status, answer.json()) == (404, {"detail": "Not Found"}), "the engine's own answer"
        assert (await opened.gateway.state()).received == 0
