"""Who is asked for an exact count, when not again, and what becomes of a tokenizer that an engine contradicts."""

import json
from typing import cast

import pytest

from gateway.backends.counting import ExactCounter
from gateway.core.names import BackendName
from gateway.core.offer import CountKind, PromptCount
from gateway.core.request import InferenceRequest
from gateway.dialects import DIALECTS
from gateway.tokens.local import LocalTokenizer
from gateway.web.counting import Counting
from gateway.web.rooms import Rooms
from support.engine_scripts import script_dynamo, script_vllm
from support.rooms import open_rooms
from support.scripted_engine import ScriptedEngine

A = BackendName("a")
EXACT_14 = PromptCount((14,), CountKind.EXACT)


class Local:
    """A tokenizer that counts so many tokens, whatever it is asked."""

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        self.asked = 0

    async def count(self, request: InferenceRequest) -> tuple[int, ...] | None:
        self.asked += 1
        return None if self.tokens is None else (self.tokens,)

    async def stop(self) -> None:
        pass


def counting(rooms: Rooms, local: Local | None = None) -> Counting:
    given = {A: cast(LocalTokenizer, local)} if local is not None else {}
    return Counting(rooms.roster, ExactCounter(rooms.roster), given)


def chat(content: str = "hello", **members: object) -> InferenceRequest:
    body = {"messages": [{"role": "user", "content": content}], **members}
    return DIALECTS["/v1/chat/completions"].read_request(json.dumps(body).encode())


async def test_the_engine_counts_where_no_tokenizer_is_given(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        assert await counting(rooms).count(A, chat()) == EXACT_14


async def test_the_local_tokenizer_comes_before_the_engine(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        counter = counting(rooms, Local(14))
        for number in range(20):
            counted = await counter.count(A, chat(str(number)))
            assert counted == EXACT_14
            assert counted.counted_by == A
    assert len(engine.asked("/tokenize")) == 8  # until it is proven


async def test_a_tokenizer_that_the_engine_contradicts_at_once_has_no_say(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    local = Local(5)
    async with open_rooms({"a": engine}) as rooms:
        counter = counting(rooms, local)
        assert await counter.count(A, chat()) == EXACT_14
        assert await counter.count(A, chat("other")) == EXACT_14
    assert local.asked == 1


async def test_what_the_engines_route_does_not_read_contradicts_nobody(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        counted = await counting(rooms, Local(5)).count(A, chat(reasoning_effort="low"))
    assert counted == PromptCount((5,), CountKind.EXACT)


async def test_what_the_local_tokenizer_cannot_count_is_asked_of_the_engine(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        assert await counting(rooms, Local(None)).count(A, chat()) == EXACT_14


async def test_the_same_body_is_counted_once_and_another_again(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        counter = counting(rooms)
        for _ in range(3):
            await counter.count(A, chat())
        assert len(engine.asked("/tokenize")) == 1
        await counter.count(A, chat("hello "))
        await counter.count(A, chat(tools=[{"type": "function", "function": {"name": "f"}}]))
        assert len(engine.asked("/tokenize")) == 3
        # What no template renders is not part of it.
        await counter.count(A, chat(temperature=1.0))
        assert len(engine.asked("/tokenize")) == 3


async def test_another_engine_at_the_same_address_counts_anew(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        counter = counting(rooms)
        await counter.count(A, chat())
        rooms.roster.watch(A).generation += 1
        await counter.count(A, chat())
    assert len(engine.asked("/tokenize")) == 2


async def test_what_is_kept_is_bounded(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    script_dynamo(engine)
    monkeypatch.setattr("gateway.web.counting.MOST_KEPT", 4)
    async with open_rooms({"a": engine}) as rooms:
        counter = counting(rooms, Local(5))
        for number in range(20):
            await counter.count(A, chat(str(number)))
        assert len(counter._kept) == 4


async def test_a_prompt_that_the_engine_may_cut_has_no_exact_count(engine: ScriptedEngine) -> None:
    """The text was counted whole, and refused for what the engine would have cut off."""
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        assert await counting(rooms, Local(5)).count(A, chat(truncate_prompt_tokens=100)) is None


async def test_one_contradiction_turns_a_tokenizer_off_and_forgets_its_counts(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    script_dynamo(engine)
    local = Local(5)
    async with open_rooms({"a": engine}) as rooms:
        counter = counting(rooms, local)
        await counter.count(A, chat())
        assert counter.compare(A, 5, 5, truncated=False)
        assert not counter.compare(A, 5, 6, truncated=False)
        assert not counter.compare(A, 5, 6, truncated=False)
        assert await counter.count(A, chat()) is None
    assert local.asked == 1
    assert len([record for record in caplog.records if "KVGATE_TOKENIZER" in record.getMessage()]) == 1


async def test_far_fewer_tokens_are_the_engines_doing_once_the_tokenizer_has_proved_right(engine: ScriptedEngine) -> None:
    script_dynamo(engine)
    async with open_rooms({"a": engine}) as rooms:
        fresh, proven = counting(rooms, Local(5)), counting(rooms, Local(5))
        assert not fresh.compare(A, 500, 100, truncated=True)
        for _ in range(8):
            proven.compare(A, 5, 5, truncated=False)
        assert proven.compare(A, 500, 100, truncated=True)
        kept = await proven.count(A, chat())
        assert kept is not None
        assert kept.counted_by == A
        assert not proven.compare(A, 500, 501, truncated=False)
