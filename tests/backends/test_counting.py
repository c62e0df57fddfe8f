"""Exact counts: as the engine counts, or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.counting import MAX_TEXTS, ExactCounter
from gateway.backends.probe import Prober
from gateway.backends.roster import Roster
from gateway.core.names import BackendName
from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from support.engine_scripts import script_dynamo, script_llama_cpp, script_vllm
from support.fake_upstream import eventually
from support.manual_clock import ManualClock
from support.scripted_engine import NO_TLS, Scripted, ScriptedEngine

A = BackendName("a")
CHAT = InferenceRequest(
    "tiny", (Prompt(20),), CapState.ABSENT, None, is_chat=True, to_count=Countable(chat={"messages": b"[]"})
)


def texts(*prompts: Prompt) -> InferenceRequest:
    written = tuple(b'"abc"' for prompt in prompts if prompt.token_ids is None)
    return InferenceRequest("tiny", prompts, CapState.ABSENT, None, is_chat=False, to_count=Countable(texts=written))


@pytest.fixture
async def roster(engine: ScriptedEngine) -> AsyncIterator[Roster]:
    roster = Roster(
        [BackendSpec(A, engine.url)], prober=Prober(tls=NO_TLS, limit_s=2.0), clock=ManualClock(), queue_timeout_s=60.0
    )
    yield roster
    await roster.stop()


async def test_vllm_counts_a_chat_in_one_question(engine: ScriptedEngine, roster: Roster) -> None:
    script_vllm(engine)
    await roster.look()
    assert await ExactCounter(roster).count(A, CHAT) == (14,)
    (question,) = engine.asked("/tokenize")
    assert json.loads(question.body) == {"model": "tiny", "messages": []}
    assert question.headers["content-type"] == "application/json"


async def test_llama_cpp_counts_chats_and_texts_by_its_own_routes(engine: ScriptedEngine, roster: Roster) -> None:
    script_llama_cpp(engine)
    await roster.look()
    counter = ExactCounter(roster)
    assert await counter.count(A, CHAT) == (32,)
    assert await counter.count(A, texts(Prompt(3))) == (2,)
    assert json.loads(engine.asked("/tokenize")[0].body) == {"content": "abc", "add_special": True}


MESSAGES = InferenceRequest(
    "tiny",
    (Prompt(20),),
    CapState.SET,
    4,
    is_chat=True,
    to_count=Countable(anthropic={"messages": b"[]", "system": b'"x"'}),
)


@pytest.mark.parametrize("script", [script_vllm, script_llama_cpp])
async def test_a_messages_body_is_counted_by_the_engines_own_route_for_it(
    script: Callable[[ScriptedEngine], None], engine: ScriptedEngine, roster: Roster
) -> None:
    script(engine)
    engine.json("/v1/messages/count_tokens", {"input_tokens": 21})
    await roster.look()
    assert await ExactCounter(roster).count(A, MESSAGES) == (21,)
    (question,) = engine.asked("/v1/messages/count_tokens")
    assert json.loads(question.body) == {"model": "tiny", "messages": [], "system": "x"}


async def test_an_engine_without_that_route_is_asked_once_and_goes_on_to_count_by_its_others(
    engine: ScriptedEngine, roster: Roster
) -> None:
    script_vllm(engine)
    await roster.look()
    counter = ExactCounter(roster)
    assert [await counter.count(A, MESSAGES) for _ in range(3)] == [None] * 3
    assert len(engine.asked("/v1/messages/count_tokens")) == 1
    assert await counter.count(A, CHAT) == (14,)


async def test_an_engine_that_knows_nothing_of_messages_is_not_asked(engine: ScriptedEngine, roster: Roster) -> None:
    script_dynamo(engine)
    await roster.look()
    assert await ExactCounter(roster).count(A, MESSAGES) is None


async def test_prompts_sent_as_ids_keep_their_place_and_are_never_asked_for(engine: ScriptedEngine, roster: Roster) -> None:
    script_vllm(engine)
    await roster.look()
    counter = ExactCounter(roster)
    assert await counter.count(A, texts(Prompt(0, token_ids=7), Prompt(0, token_ids=9))) == (7, 9)
    assert not engine.asked("/tokenize")
    assert await counter.count(A, texts(Prompt(0, token_ids=7), Prompt(3), Prompt(0, token_ids=9))) == (7, 14, 9)


@pytest.mark.parametrize(
    "request_",
    [
        texts(*(Prompt(3) for _ in range(MAX_TEXTS + 1))),
        replace(CHAT, prompts=(Prompt(20, media_parts=1),)),
        replace(CHAT, to_count=Countable(chat={"messages": b'"' + b"x" * (4 * 2**20) + b'"'})),
        replace(CHAT, to_count=Countable()),
    ],
    ids=["too many texts", "a picture", "too large", "nothing to count"],
)
async def test_what_would_cost_too_much_or_cannot_be_counted_is_not_asked(
    request_: InferenceRequest, engine: ScriptedEngine, roster: Roster
) -> None:
    script_vllm(engine)
    await roster.look()
    assert await ExactCounter(roster).count(A, request_) is None
    assert not engine.asked("/tokenize")


async def test_an_engine_that_cannot_count_is_not_asked(engine: ScriptedEngine, roster: Roster) -> None:
    script_dynamo(engine)
    await roster.look()
    assert await ExactCounter(roster).count(A, CHAT) is None


@pytest.mark.parametrize("status", [404, 405])
async def test_a_route_that_is_not_there_is_asked_once_until_another_engine_answers(
    status: int, engine: ScriptedEngine, roster: Roster
) -> None:
    script_vllm(engine)
    engine.json("/tokenize", {"detail": "Not Found"}, status=status)
    await roster.look()
    counter = ExactCounter(roster)
    assert [await counter.count(A, CHAT) for _ in range(3)] == [None] * 3
    assert len(engine.asked("/tokenize")) == 1
    script_vllm(engine, started=2e9)
    await roster.look()
    assert await counter.count(A, CHAT) == (14,)


async def test_an_unknown_model_is_no_missing_route(engine: ScriptedEngine, roster: Roster) -> None:
    script_vllm(engine)
    error = {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    engine.json("/tokenize", {"error": error}, status=404)
    await roster.look()
    counter = ExactCounter(roster)
    await counter.count(A, CHAT)
    await counter.count(A, CHAT)
    assert len(engine.asked("/tokenize")) == 2


@pytest.mark.parametrize("answer", [Scripted(500, b"oops"), Scripted(401), Scripted(body=b'{"count": -4}'), Scripted(raw=b"")])
async def test_a_failed_count_is_none_and_the_next_one_is_asked_again(
    answer: Scripted, engine: ScriptedEngine, roster: Roster
) -> None:
    script_vllm(engine)
    engine.answers["/tokenize"] = answer
    await roster.look()
    counter = ExactCounter(roster)
    assert await counter.count(A, CHAT) is None
    script_vllm(engine)
    assert await counter.count(A, CHAT) == (14,)


async def test_two_questions_at_a_time_and_a_bounded_wait_for_a_turn(engine: ScriptedEngine, roster: Roster) -> None:
    script_vllm(engine)
    await roster.look()
    gate = asyncio.Event()
    engine.answers["/tokenize"] = Scripted(body=b'{"count": 5}', gate=gate)
    engine.most_open = 0
    patient, hasty = ExactCounter(roster), ExactCounter(roster, wait_s=0.01)
    waiting = [asyncio.create_task(patient.count(A, CHAT)) for _ in range(5)]
    stuck = [asyncio.create_task(hasty.count(A, CHAT)) for _ in range(2)]
    await eventually(lambda: len(engine.asked("/tokenize")) == 4)
    assert await hasty.count(A, CHAT) is None
    gate.set()
    assert await asyncio.gather(*waiting, *stuck) == [(5,)] * 7
    assert engine.most_open == 4  # two of each counter's


async def test_a_count_that_is_cancelled_gives_its_turn_back(engine: ScriptedEngine, roster: Roster) -> None:
    script_vllm(engine)
    await roster.look()
    engine.answers["/tokenize"] = Scripted(body=b'{"count": 5}', gate=asyncio.Event())
    counter = ExactCounter(roster)
    for _ in range(4):
        task = asyncio.create_task(counter.count(A, CHAT))
        before = len(engine.asked("/tokenize"))
        await eventually(lambda before=before: len(engine.asked("/tokenize")) > before)  # type: ignore[misc]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    engine.json("/tokenize", {"count": 5})
    assert await counter.count(A, CHAT) == (5,)


async def test_an_unknown_backend_is_a_bug_of_the_caller(roster: Roster) -> None:
    with pytest.raises(KeyError):
        await ExactCounter(roster).count(BackendName("nobody"), CHAT)
