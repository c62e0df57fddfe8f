"""What an engine's report of its prompt tokens teaches the gateway, on the whole way of a request."""

import json
import logging
from dataclasses import replace
from typing import cast

import pytest

from gateway.backends.counting import ExactCounter
from gateway.core.names import BackendName
from gateway.core.offer import CountKind
from gateway.dialects import DIALECTS
from gateway.logs import fields_of
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.ratio import SAMPLES
from gateway.web.counting import Counting
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from gateway.web.weigh import find_pool, weigh
from support.asgi_caller import Caller
from support.engine_scripts import script_dynamo, script_vllm
from support.rooms import open_rooms
from support.scripted_engine import Scripted, ScriptedEngine

A = BackendName("a")
CHAT = "/v1/chat/completions"
WORDS = "lorem ipsum dolor " * 300  # 900 words, 5,400 bytes


def body(content: str = WORDS, **more: object) -> bytes:
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}).encode()


def answer(engine: ScriptedEngine, prompt_tokens: int, **more: object) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    engine.json(CHAT, {"choices": [choice], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 2}, **more})


async def ask(rooms: Rooms, sent: bytes) -> Caller:
    caller = Caller(body=sent)
    await serve_request(rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)
    assert caller.status == 200
    return caller


def truncated(rooms: Rooms) -> bool:
    return 'kvgate_prompts_truncated_total{model="tiny"} 1.0' in rooms.metrics.exposition().decode()


def line_of(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    (record,) = [record for record in caplog.records if record.name == "kvgate.request"]
    return dict(fields_of(record))


async def test_a_prompt_that_was_cut_behind_the_gate_is_counted_logged_and_told(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers drop what is too long for them, answer 200, and only their usage shows it."""
    caplog.set_level(logging.INFO)
    script_dynamo(engine)
    answer(engine, 256)
    async with open_rooms({"a": engine}) as rooms:
        caller = await ask(rooms, body())
        assert caller.header(b"x-kvgate-truncated") == b"256"
        assert truncated(rooms)
    assert line_of(caplog)["truncated"] is True


async def test_in_a_stream_it_is_counted_and_logged(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script_dynamo(engine)
    usage = {"choices": [], "usage": {"prompt_tokens": 256, "completion_tokens": 1}}
    finish = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    events = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in (finish, usage)) + b"data: [DONE]\n\n"
    engine.answers[CHAT] = Scripted(body=events, headers={"content-type": "text/event-stream"})
    async with open_rooms({"a": engine}) as rooms:
        caller = await ask(rooms, body(stream=True, stream_options={"include_usage": True}))
        assert caller.header(b"x-kvgate-truncated") is None
        assert truncated(rooms)
    assert line_of(caplog)["truncated"] is True


@pytest.mark.parametrize(
    ("sent", "reported"),
    [(body(), 1300), (body("a few words"), 3), (body(truncate_prompt_tokens=100), 100)],
    ids=["whole", "short", "the caller let it"],
)
async def test_a_prompt_that_was_not_cut_is_not_said_to_be(engine: ScriptedEngine, sent: bytes, reported: int) -> None:
    script_dynamo(engine)
    answer(engine, reported)
    async with open_rooms({"a": engine}) as rooms:
        caller = await ask(rooms, sent)
        assert caller.header(b"x-kvgate-truncated") is None
        assert not truncated(rooms)


async def test_an_exact_count_shows_a_cut_that_words_do_not(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json("/tokenize", {"count": 900, "max_model_len": 1024})
    answer(engine, 700)
    async with open_rooms({"a": engine}) as rooms:
        caller = await ask(rooms, body("x" * 5000))
        assert caller.header(b"x-kvgate-truncated") == b"700"


async def test_ratios_are_learned_from_whole_answers_and_used_where_nobody_can_count(engine: ScriptedEngine) -> None:
    script_dynamo(engine)
    async with open_rooms({"a": engine}) as rooms:
        pool = await find_pool(rooms, "tiny")
        sent = body("x" * 5000)
        read = DIALECTS[CHAT].read_request
        assert (await weigh(rooms, pool, read(sent))).offers[A].worst_blocks == 33  # one context: the bound is no count
        for number in range(SAMPLES):
            answer(engine, 400)
            await ask(rooms, body("x" * (4800 + number)))
        weighed = await weigh(rooms, pool, read(sent))
        assert weighed.count.kind is CountKind.BOUND_ONLY
        assert 400 < (weighed.count.largest or 0) < 450
        assert weighed.offers[A].worst_blocks < 20


@pytest.mark.parametrize("spoiled", ["error", "cut", "none"])
async def test_nothing_is_learned_from_an_answer_that_is_not_whole(engine: ScriptedEngine, spoiled: str) -> None:
    script_dynamo(engine)
    if spoiled == "error":
        answer(engine, 400, error={"message": "x"})
    elif spoiled == "cut":
        answer(engine, 100)
    else:
        engine.json(CHAT, {"choices": []})
    async with open_rooms({"a": engine}) as rooms:
        await ask(rooms, body())
        assert rooms.ratios.record()["classes"] == []


class Local:
    """A tokenizer that is wrong."""

    def __init__(self) -> None:
        self.asked = 0

    async def count(self, request: object) -> tuple[int, ...]:
        self.asked += 1
        return (300,)


async def test_a_tokenizer_that_the_usage_contradicts_is_not_asked_again(engine: ScriptedEngine) -> None:
    script_dynamo(engine)
    answer(engine, 310)
    local = Local()
    async with open_rooms({"a": engine}) as rooms:
        counter = Counting(rooms.roster, ExactCounter(rooms.roster), {A: cast(LocalTokenizer, local)})
        rooms = replace(rooms, counter=counter)
        for number in range(3):
            await ask(rooms, body("x" * (5000 + number)))
    assert local.asked == 1
