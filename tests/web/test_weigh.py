"""Counting and weighing: which backends a request may run on, and what it needs there."""

from dataclasses import replace

import pytest

from gateway.backends.view import Pool
from gateway.core.decisions import Mode
from gateway.core.errors import InvalidRequest, Rejected
from gateway.core.names import BackendName, PoolName
from gateway.core.offer import CountKind, PromptCount
from gateway.core.outcomes import RejectReason
from gateway.core.request import CapState, Countable, InferenceRequest, MediaKind, MediaPart, Prompt
from gateway.tokens.bound import CHAT_TOKENS, MESSAGE_TOKENS
from gateway.tokens.media import FRAME_TOKENS, Fixed, MediaCosts
from gateway.web.rooms import Rooms
from gateway.web.weigh import find_pool, reweigh, weigh, weigh_at_once
from support.engine_scripts import script_dynamo, script_plain_server, script_vllm
from support.rooms import clock_of, open_rooms
from support.scripted_engine import ScriptedEngine

A, B = BackendName("a"), BackendName("b")


def chat(text_bytes: int = 1, cap: int | None = 100, *, media: int = 0, model: str | None = "tiny") -> InferenceRequest:
    return InferenceRequest(
        model,
        (Prompt(text_bytes, messages=1, media_parts=media),),
        CapState.ABSENT if cap is None else CapState.SET,
        cap,
        is_chat=True,
        to_count=Countable(chat={"messages": b"[]"}),
    )


async def pool_of(rooms: Rooms) -> Pool:
    return await find_pool(rooms, "tiny")


async def test_a_bound_that_fits_asks_the_engine_nothing(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), chat())
    assert weighed.count.kind is CountKind.BOUND
    assert set(weighed.offers) == {A}
    assert weighed.cap_tokens == 100
    assert engine.asked("/tokenize") == []


async def test_what_the_bound_decides_is_weighed_at_once_and_nothing_else_is(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        pool = await pool_of(rooms)
        for request in (chat(), chat(cap=None), replace(chat(), n=3), embeddings(5, 7)):
            at_once = weigh_at_once(rooms, pool, request)
            assert at_once is not None
            assert at_once == await weigh(rooms, pool, request)
        assert weigh_at_once(rooms, pool, chat(5000)) is None
        unknown = replace(pool, backends=tuple(replace(view, capacity=None) for view in pool.backends))
        assert weigh_at_once(rooms, unknown, chat()) is None
    assert engine.asked("/tokenize") == []


async def test_a_bound_that_would_refuse_is_counted_exactly_first(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), chat(5000))
    assert weighed.count == PromptCount((14,), CountKind.EXACT)
    assert weighed.offers[A].worst_blocks == 4  # 14 + 100 - 1 tokens in blocks of 32


async def test_a_count_that_may_be_off_by_a_little_is_a_close_bound(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    countable = Countable(chat={"messages": b"[]"}, responses={"input": b"[]"}, slack_tokens=32)
    async with open_rooms({"a": engine}) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), replace(chat(5000), to_count=countable))
    assert weighed.count == PromptCount((14 + 32,), CountKind.BOUND_ONLY)
    assert weighed.offers[A].worst_blocks == 5  # 46 + 100 - 1 tokens in blocks of 32


def embeddings(*token_ids: int) -> InferenceRequest:
    return InferenceRequest(
        "tiny",
        tuple(Prompt(0, token_ids=tokens) for tokens in token_ids),
        CapState.SET,
        1,
        is_chat=False,
        is_prompt_only=True,
        prompt_name="input",
    )


async def test_prompts_that_are_only_read_may_fill_the_context_and_wait_within_vllm(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        pool = await pool_of(rooms)
        whole = await weigh(rooms, pool, embeddings(1024))
        many = await weigh(rooms, pool, embeddings(*[300] * 200))
        with pytest.raises(InvalidRequest) as refused:
            await weigh(rooms, pool, embeddings(5, 1025))
    assert whole.offers[A].worst_blocks == 32  # 1,024 tokens in blocks of 32
    assert many.offers[A].worst_blocks == 64
    assert (refused.value.reason, refused.value.param) == (RejectReason.CONTEXT_LENGTH, "input")


async def test_where_no_count_can_be_had_the_engine_decides(engine: ScriptedEngine) -> None:
    script_dynamo(engine)
    async with open_rooms({"a": engine}) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), chat(5000))
    assert weighed.count.kind is CountKind.BOUND_ONLY
    assert weighed.offers[A].worst_blocks == 33  # one context of 1,024 in blocks of 32, and the spare one


async def test_a_backend_that_answers_is_asked_for_the_count_before_one_that_does_not(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    """The count was asked of the last unhealthy backend, which cannot count, and the prompt was held as a whole context."""
    for each in (engine, other):
        script_vllm(each)
    async with open_rooms({"a": engine, "b": other}) as rooms:
        await other.go_away()
        for _ in range(3):
            await rooms.roster.look()
        pool = await pool_of(rooms)
        assert [view.healthy for view in pool.backends] == [True, False]
        weighed = await weigh(rooms, pool, chat(5000))
    assert weighed.count == PromptCount((14,), CountKind.EXACT)


async def test_a_count_that_one_backend_cannot_give_is_asked_of_the_next(engine: ScriptedEngine, other: ScriptedEngine) -> None:
    script_dynamo(engine)
    script_vllm(other)
    async with open_rooms({"a": engine, "b": other}) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), chat(5000))
    assert weighed.count == PromptCount((14,), CountKind.EXACT)


async def test_what_fits_nowhere_is_refused_with_the_numbers_of_the_largest(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    script_vllm(engine, blocks=17, cache_tokens=544)
    script_vllm(other, blocks=9, cache_tokens=288)
    async with open_rooms({"a": engine, "b": other}) as rooms:
        with pytest.raises(InvalidRequest) as refused:
            await weigh(rooms, await pool_of(rooms), chat(1, 900))
    assert refused.value.reason is RejectReason.KV_BUDGET
    assert refused.value.facts["budget_blocks"] == 16
    assert refused.value.facts["largest_cap"] == 16 * 32 + 1 - 14


async def test_a_backend_on_which_it_can_never_run_is_not_among_its_needs(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    script_vllm(engine, blocks=17, cache_tokens=544)
    script_vllm(other)
    async with open_rooms({"a": engine, "b": other}) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), chat(1, 900))
    assert set(weighed.offers) == {B}


async def test_without_any_known_budget_the_refusal_says_how_many_backends_there_are(engine: ScriptedEngine) -> None:
    script_plain_server(engine)
    async with open_rooms({"a": engine}) as rooms:
        with pytest.raises(Rejected, match=r"of 1 for this model 1 answer") as refused:
            await weigh(rooms, await pool_of(rooms), chat())
    assert refused.value.reason is RejectReason.NO_BACKEND


async def test_with_one_pool_a_model_that_nobody_lists_is_the_engines_affair(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        assert (await find_pool(rooms, "stranger")).name == PoolName("a")


async def test_with_several_pools_an_unknown_model_is_refused_after_a_fresh_look(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    script_vllm(engine, models=("tiny",))
    script_vllm(other, models=("large",))
    async with open_rooms({"a": engine, "b": other}) as rooms:
        with pytest.raises(InvalidRequest) as refused:
            await find_pool(rooms, "new")
        assert refused.value.reason is RejectReason.UNKNOWN_MODEL
        script_vllm(other, models=("large", "new"))
        clock_of(rooms).advance(10.0)
        assert (await find_pool(rooms, "new")).name == PoolName("b")


async def test_a_later_exact_count_shrinks_the_need(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        request = chat(300)
        weighed = await weigh(rooms, await pool_of(rooms), request)
        assert weighed.offers[A].worst_blocks == 19
        needs = reweigh(weighed, request, PromptCount((14,), CountKind.EXACT), rooms.choices).offers
    assert needs[A].worst_blocks == 4


async def test_a_later_count_that_finds_a_prompt_too_long_leaves_the_hold_as_it_is(engine: ScriptedEngine) -> None:
    """An uncapped request is let in by one context whatever its prompt. Counted in line and found longer than the context, it
    was left without a need on the backend where it ran, and the recount ended with an error of ours."""
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        request = chat(5000, None)
        weighed = await weigh(rooms, await pool_of(rooms), request)
        assert weighed.count.kind is CountKind.BOUND
        needs = reweigh(weighed, request, PromptCount((1024,), CountKind.EXACT), rooms.choices).offers
    assert needs == weighed.offers


async def test_observing_lets_in_what_enforcing_would_refuse_and_says_why(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}, mode=Mode.OBSERVE) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), replace(chat(1, 900), n=4))
        assert weighed.would_refuse is RejectReason.KV_BUDGET
        assert weighed.offers[A].worst_blocks == 4 * 29
        assert weighed.offers[A].seats == 4
        weighed = await weigh(rooms, await pool_of(rooms), chat(1, 2000))
        assert weighed.would_refuse is RejectReason.CONTEXT_LENGTH


async def test_observing_lets_in_what_no_backend_can_be_planned_for(engine: ScriptedEngine) -> None:
    script_plain_server(engine)
    async with open_rooms({"a": engine}, mode=Mode.OBSERVE) as rooms:
        weighed = await weigh(rooms, await pool_of(rooms), chat())
        assert weighed.would_refuse is RejectReason.NO_BACKEND
        assert reweigh(weighed, chat(), PromptCount((14,), CountKind.EXACT), rooms.choices).offers == weighed.offers


async def test_an_image_whose_cost_is_known_is_bounded_and_another_is_a_whole_context(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    image = replace(
        chat(),
        prompts=(Prompt(1, messages=1, media_parts=1, media=(MediaPart(MediaKind.IMAGE),)),),
    )
    async with open_rooms({"a": engine}) as rooms:
        assert (await weigh(rooms, await pool_of(rooms), image)).offers[A].worst_blocks == 32  # 1,024 tokens in blocks of 32
        known = replace(rooms, media={A: MediaCosts("llava", Fixed(256))})
        weighed = await weigh(known, await pool_of(known), image)
    assert weighed.count.kind is CountKind.BOUND
    assert weighed.count.largest == 1 + CHAT_TOKENS + MESSAGE_TOKENS + 256 + FRAME_TOKENS
    assert weighed.offers[A].worst_blocks < 32
