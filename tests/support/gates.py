"""Behaviours of the fake upstream that wait for the test: an answer held back until an event is set.

gate = asyncio.Event()
fake.script("slow", held_head(gate, engine.completion()))     # silent until the gate opens, then answers well
fake.script("talk", held_stream(gate))                       # one event, silence until the gate opens, then a good end
"""

import asyncio
import json

from support.fake_upstream import Behaviour, FakeExchange, Header, chunk, head

EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"transfer-encoding", b"chunked"),
)
DONE = b"data: [DONE]\n\n"


def chat_event(text: str, finish: str | None = None) -> bytes:
    """One event of a chat stream, as vLLM writes it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-model", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_event(text: str, finish: str | None = None) -> bytes:
    """One event of a completions stream."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    value = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "fake-model", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage_event(prompt_tokens: int, output_tokens: int) -> bytes:
    """The event that only those who asked for it may see."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-model", "choices": []}
    return b"data: " + json.dumps({**value, "usage": usage}).encode() + b"\n\n"


def held_head(gate: asyncio.Event, then: Behaviour) -> Behaviour:
    """Read the request, stay silent until the gate opens, then behave as `then`."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await gate.wait()
        await then(exchange)

    return behave


def held_stream(gate: asyncio.Event, *, before: int = 1, after: int = 1) -> Behaviour:
    """`before` events at once, silence until the gate opens, `after` events more and a good end."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        event = chat_event if b"chat" in exchange.request.target else text_event
        await exchange.send(head(200, EVENT_STREAM))
        for number in range(before):
            await exchange.send(chunk(event(f"before-{number} ")))
        await gate.wait()
        for number in range(after):
            await exchange.send(chunk(event(f"after-{number} ", "stop" if number == after - 1 else None)))
        await exchange.send(chunk(DONE) + chunk(b""))

    return behave


def ticking_stream(*, gap_s: float = 0.01) -> Behaviour:
    """Events for ever, until the client goes."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        event = chat_event if b"chat" in exchange.request.target else text_event
        await exchange.send(head(200, EVENT_STREAM))
        while True:
            await exchange.send(chunk(event("tick ")))
            await asyncio.sleep(gap_s)

    return behave
