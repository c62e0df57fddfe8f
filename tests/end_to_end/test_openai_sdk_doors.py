"""The real `openai` package at the doors of Responses and embeddings, before an engine that answers what vLLM has answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from support.answers import recorded
from support.bench import MODEL, TWIN_CAP, Bench
from support.fake_upstream import Behaviour, FakeExchange, answer, chunk, head, send_raw
from support.gates import EVENT_STREAM, held_head

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = ((b"content-type", b"application/json"),)
PLAIN = answer(200, recorded("vllm_responses_plain.json"), JSON)
EMBEDDINGS = answer(200, recorded("vllm_embedder_embeddings_many.json"), JSON)
STREAM = recorded("vllm_responses_stream.txt")
CALL: dict[str, Any] = {"model": MODEL, "input": "ping", "max_output_tokens": 32}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(bench: Bench) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{bench.gateway.url}/v1", api_key="any", timeout=30) as sdk:
        yield sdk


def streamed(stream: bytes, *, then: str = "keep") -> Behaviour:
    """The stream in chunks of whole events; `keep`: with a tidy end."""
    events = [event + b"\n\n" for event in stream.removesuffix(b"\n\n").split(b"\n\n")]
    return send_raw(head(200, EVENT_STREAM), *map(chunk, events), *([chunk(b"")] if then == "keep" else []), then=then)


async def test_a_response(bench: Bench, client: AsyncOpenAI) -> None:
    bench.fake.script(tag := bench.tag("response"), PLAIN)
    answered = await client.responses.create(**CALL, extra_headers={"x-tag": tag})
    told = json.loads(recorded("vllm_responses_plain.json"))["usage"]
    assert answered.usage is not None
    assert (answered.usage.input_tokens, answered.usage.output_tokens) == (told["input_tokens"], told["output_tokens"])
    await bench.end_case()


async def test_a_stream_of_typed_events(bench: Bench, client: AsyncOpenAI) -> None:
    bench.fake.script(tag := bench.tag("response-stream"), streamed(STREAM))
    kinds = [event.type async for event in await client.responses.create(**CALL, stream=True, extra_headers={"x-tag": tag})]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert "response.output_text.delta" in kinds
    await bench.end_case()


async def test_a_response_waits_in_line_and_then_runs(bench: Bench, client: AsyncOpenAI) -> None:
    bench.fake.script(tag := bench.tag("response-queued"), PLAIN)
    async with bench.everything_taken() as gate:
        asking = asyncio.create_task(
            client.responses.create(model=MODEL, input="ping", max_output_tokens=TWIN_CAP, extra_headers={"x-tag": tag})
        )
        await bench.state_where(lambda state: state.queued == 1, "the response waits")
        gate.set()
        assert (await asking).object == "response"
    await bench.end_case()


async def test_a_response_that_never_fits_is_refused_once_and_not_retried(bench: Bench, client: AsyncOpenAI) -> None:
    before = await bench.idle()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="ping", max_output_tokens=2_000)
    assert refused.value.code == "context_length_exceeded"
    assert (await bench.idle()).received - before.received == 1
    await bench.end_case()


@pytest.mark.parametrize("ending", ["reset", "close", "tidily"])
async def test_a_stream_that_breaks_raises_in_the_sdk(bench: Bench, client: AsyncOpenAI, ending: str) -> None:
    begun, mark, _ = STREAM.partition(b"event: response.output_text.done")
    assert mark
    behaviour = streamed(begun, then="keep" if ending == "tidily" else ending)
    bench.fake.script(tag := bench.tag("response-cut"), behaviour)
    stream = await client.responses.create(**CALL, stream=True, extra_headers={"x-tag": tag})
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    await bench.end_case()


async def test_embeddings_of_texts_and_ids(bench: Bench, client: AsyncOpenAI) -> None:
    vectors = len(json.loads(recorded("vllm_embedder_embeddings_many.json"))["data"])
    asked: list[list[str] | list[list[int]]] = [["ping"] * vectors, [[1, 2, 3]] * vectors]
    for texts in asked:
        bench.fake.script(tag := bench.tag("embed"), EMBEDDINGS)
        answered = await client.embeddings.create(
            model=MODEL, input=texts, encoding_format="float", extra_headers={"x-tag": tag}
        )
        assert len(answered.data) == vectors
    await bench.end_case()


async def test_embeddings_wait_in_line_and_then_run(bench: Bench, client: AsyncOpenAI) -> None:
    bench.fake.script(tag := bench.tag("embed-queued"), EMBEDDINGS)
    async with bench.everything_taken() as gate:
        asking = asyncio.create_task(
            client.embeddings.create(model=MODEL, input=[1, 2, 3], encoding_format="float", extra_headers={"x-tag": tag})
        )
        await bench.state_where(lambda state: state.queued == 1, "the embedding waits")
        gate.set()
        assert (await asking).data
    await bench.end_case()


async def test_a_refusal_that_waiting_cures_is_retried(bench: Bench, client: AsyncOpenAI) -> None:
    gate, holders, line = asyncio.Event(), bench.tag("holder"), bench.tag("line")
    bench.fake.script(holders, held_head(gate, bench.engine.completion()))
    bench.fake.script(tag := bench.tag("response-late"), PLAIN)
    before = await bench.idle()
    async with await bench.take(64, holders) as holder:
        waiting = [await bench.wait_in_line(2, line) for _ in range(8)]  # all that the line takes
        asking = asyncio.create_task(client.responses.create(**CALL, extra_headers={"x-tag": tag}))
        refused = "refused_queue_full"
        await bench.state_where(
            lambda state: state.outcomes.get(refused, 0) > before.outcomes.get(refused, 0), "the SDK was refused"
        )
        gate.set()
        assert (await asking).object == "response"
        for in_line in (holder, *waiting):
            assert (await in_line.answer()).status == 200
            in_line.vanish()
    assert bench.arrivals(tag) == 1
    await bench.end_case()


async def test_an_sdk_that_closes_its_stream_gives_back_what_it_held(bench: Bench, client: AsyncOpenAI) -> None:
    begun, _, _ = STREAM.partition(b"event: response.output_text.done")

    async def talk_and_wait(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, EVENT_STREAM), chunk(begun))
        await asyncio.Event().wait()

    bench.fake.script(tag := bench.tag("response-leaves"), talk_and_wait)
    stream = await client.responses.create(**CALL, stream=True, extra_headers={"x-tag": tag})
    async for _ in stream:
        break
    await stream.close()
    await bench.end_case()
