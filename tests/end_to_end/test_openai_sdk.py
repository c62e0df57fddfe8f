"""The real `openai` package against a gateway: the answers it gets, and the refusals that it retries or does not."""

import asyncio
import time
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from support.bench import BUDGET_BLOCKS, MODEL, TWIN_CAP, Bench
from support.fake_upstream import chunk, eventually, head, send_raw
from support.gates import EVENT_STREAM, chat_event, held_head, held_stream

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(bench: Bench) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{bench.gateway.url}/v1", api_key="any", timeout=30) as sdk:
        yield sdk


async def test_chat(bench: Bench, client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=32)
    assert answer.choices[0].message.content == "tok " * 4
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 4)
    await bench.end_case()


async def test_a_stream_and_its_usage(bench: Bench, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "ping"}],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [part async for part in stream]
    assert "".join(part.choices[0].delta.content or "" for part in chunks if part.choices) == "tok " * 4
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 11
    await bench.end_case()


async def test_a_stream_without_usage_has_a_choice_in_every_part(bench: Bench, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=32, stream=True
    )
    # Callers index choices[0] without looking: an event that the gateway asked for itself would break them.
    assert [part.choices[0].delta.content async for part in stream] == ["tok "] * 4
    await bench.end_case()


async def test_without_max_tokens(bench: Bench, client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "ping"}])
    assert answer.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "ping"}], stream=True)
    assert [part.choices[0].delta.content async for part in stream] == ["tok "] * 4
    await bench.end_case()


async def test_two_samples(bench: Bench, client: AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=32, n=2
    )
    assert len(raw.parse().choices) == 2
    single = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=32
    )
    assert int(raw.headers["x-kvgate-blocks"]) == 2 * int(single.headers["x-kvgate-blocks"])
    assert raw.headers["x-kvgate-request-id"] != single.headers["x-kvgate-request-id"]
    await bench.end_case()


async def test_completions_of_text_lists_and_ids(bench: Bench, client: AsyncOpenAI) -> None:
    prompts: list[str | list[str] | list[int] | list[list[int]]] = ["ping", ["a", "b", "c"], [1, 2, 3], [[1, 2], [3]]]
    for prompt, choices in zip(prompts, (1, 3, 1, 2), strict=True):
        answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=8)
        assert [choice.text for choice in answer.choices] == ["tok " * 4] * choices
    stream = await client.completions.create(model=MODEL, prompt="ping", max_tokens=8, stream=True)
    assert "".join([part.choices[0].text async for part in stream]) == "tok " * 4
    await bench.end_case()


async def test_the_list_of_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_stream_that_waits_in_line_and_then_runs(bench: Bench, client: AsyncOpenAI) -> None:
    gate, tag = asyncio.Event(), bench.tag("sdk-holder")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    async with await bench.take(BUDGET_BLOCKS, tag) as holder:

        async def talk() -> list[str | None]:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=TWIN_CAP, stream=True
            )
            return [part.choices[0].delta.content async for part in stream]

        talking = asyncio.create_task(talk())
        await bench.state_where(lambda state: state.queued == 1, "the stream waits")
        gate.set()
        assert await talking == ["tok "] * 4
        assert (await holder.answer()).status == 200
    await bench.end_case()


async def test_a_refusal_that_waiting_cures_is_retried_after_the_told_wait(bench: Bench, client: AsyncOpenAI) -> None:
    gate, tag, line = asyncio.Event(), bench.tag("sdk-holder"), bench.tag("sdk-line")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    before = await bench.idle()
    async with await bench.take(BUDGET_BLOCKS, tag) as holder:
        waiting = [await bench.wait_in_line(2, line) for _ in range(8)]  # all that the line takes
        began = time.monotonic()
        asking = asyncio.create_task(
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=32)
        )
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
    assert answer.choices[0].message.content == "tok " * 4
    assert took_s >= 1.0, "the SDK's own pause is half a second: it did not wait as it was told"
    after = await bench.idle()
    assert after.outcomes[refused] - before.outcomes.get(refused, 0) == 1
    await bench.end_case()


async def test_a_refusal_that_nothing_cures_is_not_retried(bench: Bench, client: AsyncOpenAI) -> None:
    before = await bench.idle()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=300, n=4)
    assert refused.value.code == "kv_budget_exceeded"
    assert refused.value.response.headers["x-should-retry"] == "false"
    after = await bench.idle()
    assert after.received - before.received == 1
    await bench.end_case()


async def test_a_stream_that_breaks_raises_in_the_sdk(bench: Bench, client: AsyncOpenAI) -> None:
    for ending in ("reset", "close", "keep"):
        tag = bench.tag("sdk-cut")
        last = chunk(b"") if ending == "keep" else b""
        bench.fake.script(tag, send_raw(head(200, EVENT_STREAM), chunk(chat_event("one ")), last, then=ending))
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "ping"}],
            max_tokens=32,
            stream=True,
            extra_headers={"x-tag": tag},
        )
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        assert bench.arrivals(tag) == 1
    await bench.end_case()


async def test_an_sdk_that_closes_its_stream_gives_back_what_it_held(bench: Bench, client: AsyncOpenAI) -> None:
    tag = bench.tag("sdk-leaves")
    bench.fake.script(tag, held_stream(asyncio.Event()))
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "ping"}],
        max_tokens=TWIN_CAP,
        stream=True,
        extra_headers={"x-tag": tag},
    )
    async for _ in stream:
        break
    await stream.close()
    await eventually(lambda: bench.fake.open_requests(tag) == 0)
    await bench.end_case()
