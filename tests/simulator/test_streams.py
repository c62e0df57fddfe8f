"""Streams on the wire, byte by byte in vLLM's order, and through the SDK that most callers use."""

import json
from typing import Any

import httpx
import openai
import pytest

from gateway.simulator.server import Simulator

HELLO: Any = [{"role": "user", "content": "hello"}]


async def stream_of(simulator: Simulator, path: str, body: dict[str, Any]) -> tuple[httpx.Headers, list[Any], str]:
    """Headers, the JSON events, and the last event."""
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False, timeout=30) as client:
        answer = await client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert answer.text.endswith("\n\n")
    events = [event.removeprefix("data: ") for event in answer.text.strip().split("\n\n")]
    return answer.headers, [json.loads(event) for event in events[:-1]], events[-1]


async def test_a_chat_stream_has_the_real_engines_order(simulator: Simulator) -> None:
    body = {"messages": HELLO, "max_tokens": 20, "ignore_eos": True, "stream_options": {"include_usage": True}}
    headers, events, last = await stream_of(simulator, "/v1/chat/completions", body)
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["transfer-encoding"] == "chunked"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    content = events[1:-1]
    assert all(event["choices"][0]["delta"]["content"] for event in content)
    assert [event["choices"][0]["finish_reason"] for event in content] == [None] * (len(content) - 1) + ["length"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {"prompt_tokens": 9, "total_tokens": 29, "completion_tokens": 20}
    assert all("usage" not in event for event in events[:-1])
    assert last == "[DONE]"
    assert len({event["id"] for event in events}) == 1


async def test_without_include_usage_there_is_no_usage_event(simulator: Simulator) -> None:
    _, events, last = await stream_of(simulator, "/v1/completions", {"prompt": "a", "max_tokens": 4, "ignore_eos": True})
    assert all(event["choices"] and "usage" not in event for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert last == "[DONE]"


async def test_usage_on_every_chunk_can_be_asked_for(simulator: Simulator) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "a", "max_tokens": 4, "ignore_eos": True, "stream_options": options}
    _, events, _ = await stream_of(simulator, "/v1/completions", body)
    assert [event["usage"]["completion_tokens"] for event in events][-2:] == [4, 4]


async def test_each_sample_and_each_prompt_streams_under_its_own_index(simulator: Simulator) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 6, "ignore_eos": True}
    _, events, _ = await stream_of(simulator, "/v1/completions", body)
    text = dict.fromkeys(range(4), "")
    for event in events:
        for choice in event["choices"]:
            text[choice["index"]] += choice["text"]
    assert {len(words.split()) for words in text.values()} == {6}
    assert len(set(text.values())) == 4


async def test_a_streamed_answer_is_the_plain_one(simulator: Simulator) -> None:
    body = {"messages": HELLO, "seed": 5, "max_tokens": 60}
    _, events, _ = await stream_of(simulator, "/v1/chat/completions", body)
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        plain = (await client.post("/v1/chat/completions", json=body)).json()
    streamed = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert streamed == plain["choices"][0]["message"]["content"]


async def test_the_openai_sdk_reads_every_kind_of_answer(simulator: Simulator) -> None:
    async with openai.AsyncOpenAI(base_url=f"{simulator.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        chat = await client.chat.completions.create(model="tiny", messages=HELLO, n=2, max_tokens=5)
        assert [choice.index for choice in chat.choices] == [0, 1]
        assert chat.usage is not None
        assert chat.usage.completion_tokens <= 10
        text = await client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5)
        assert len(text.choices) == 2
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}, seed=3
        )
        pieces = [piece async for piece in stream]
        assert pieces[-1].usage is not None
        assert pieces[-2].choices[0].finish_reason == "stop"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=HELLO)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5000)
