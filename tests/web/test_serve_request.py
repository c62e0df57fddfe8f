"""The straight line in this process: every way to leave it is counted once, and leaves nothing behind."""

import asyncio
import gc
import json
from collections import Counter
from typing import Any

import pytest

from gateway.core.outcomes import Outcome
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import ErrorFacts
from gateway.dialects.openai_chat import OpenAIChat
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from support.asgi_caller import Caller
from support.engine_scripts import script_llama_cpp, script_vllm
from support.fake_upstream import eventually
from support.rooms import clock_of, held_blocks, open_rooms
from support.samples import sample
from support.scripted_engine import Scripted, ScriptedEngine

CHAT = "/v1/chat/completions"
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16},
}


def chat(cap: int | None = 100, **more: object) -> bytes:
    body: dict[str, object] = {"model": "tiny", "messages": [{"role": "user", "content": "ping"}], **more}
    return json.dumps(body if cap is None else body | {"max_tokens": cap}).encode()


async def serve(rooms: Rooms, caller: Caller) -> None:
    await serve_request(rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)


def outcomes(rooms: Rooms) -> dict[Outcome, int]:
    """What was counted; and that the sum holds, and that nothing is left on the way."""
    counts = rooms.tally.counts()
    counted = {outcome: number for outcome, number in counts.outcomes.items() if number}
    assert counts.received == sum(counted.values()) + counts.reading + counts.queued + counts.in_flight
    return counted


def assert_idle(rooms: Rooms) -> None:
    assert rooms.tally.unfinished == 0
    assert held_blocks(rooms) == 0
    assert len(rooms.running) == 0
    assert not any(rooms.controller.has_waiting_for(view.name) for view in rooms.roster.views())


async def test_a_plain_answer_goes_the_whole_way(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat())
        await serve(rooms, caller)
        assert (caller.status, json.loads(caller.body), caller.is_finished) == (200, ANSWER, True)
        assert outcomes(rooms) == {Outcome.COMPLETED: 1}
        assert_idle(rooms)
        assert sample(rooms.metrics, "kvgate_requests_total", model="tiny", outcome="completed") == 1
        assert sample(rooms.metrics, "kvgate_prompt_tokens_total", model="tiny") == 14
        assert sample(rooms.metrics, "kvgate_output_tokens_total", model="tiny") == 2


def our_objects() -> Counter[str]:
    """The objects of ours that are alive, by class."""
    kinds = [type(thing) for thing in gc.get_objects()]
    return Counter(kind.__qualname__ for kind in kinds if f"{kind.__module__}".startswith("gateway."))


async def test_what_a_request_was_is_gone_at_its_end_and_waits_for_no_collector(engine: ScriptedEngine) -> None:
    """One circle of references among them, and the collector looked through them all: a twentieth of a request."""
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms, Caller(body=chat()))
        gc.collect()
        gc.disable()
        try:
            before = our_objects()
            for _ in range(3):
                await serve(rooms, Caller(body=chat()))
            # Who watched for the clients' departure was told to stop, and does.
            await eventually(lambda: our_objects() - before == Counter())
        finally:
            gc.enable()


@pytest.mark.parametrize("model", [None, ""])
async def test_who_names_no_model_is_counted_for_the_only_one(engine: ScriptedEngine, model: str | None) -> None:
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms, Caller(body=chat(model=model)))
        assert sample(rooms.metrics, "kvgate_requests_total", model="tiny", outcome="completed") == 1


@pytest.mark.parametrize(("listed", "named"), [(("tiny", "lora"), None), (("tiny",), "stranger")])
async def test_a_model_that_is_not_told_apart_is_other(
    engine: ScriptedEngine, listed: tuple[str, ...], named: str | None
) -> None:
    script_vllm(engine, models=listed)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms, Caller(body=chat(model=named)))
        assert sample(rooms.metrics, "kvgate_requests_total", model="other", outcome="completed") == 1


async def test_what_never_fits_is_counted_for_its_model_and_its_pool(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat(1000, n=4))
        await serve(rooms, caller)
        assert (caller.status, caller.error["code"]) == (400, "kv_budget_exceeded")
        assert caller.header(b"x-should-retry") == b"false"
        assert caller.header(b"retry-after") is None
        assert outcomes(rooms) == {Outcome.REFUSED_KV_BUDGET: 1}
        labels = {"model": "tiny", "outcome": "refused_kv_budget_exceeded"}
        assert sample(rooms.metrics, "kvgate_requests_total", **labels) == 1
        rejected = {"pool": "a", "lane": "standard", "reason": "kv_budget_exceeded"}
        assert sample(rooms.metrics, "kvgate_rejections_total", **rejected) == 1
        assert_idle(rooms)


async def test_a_client_that_leaves_while_its_prompt_is_counted_has_left_the_queue(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers["/tokenize"].gate = asyncio.Event()
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat(1000))
        serving = asyncio.create_task(serve(rooms, caller))
        await eventually(lambda: bool(engine.asked("/tokenize")))
        assert rooms.tally.counts().reading == 1
        caller.leave()
        await serving
        assert outcomes(rooms) == {Outcome.CLIENT_GONE_QUEUED: 1}
        assert caller.messages == []
        assert_idle(rooms)
        assert sample(rooms.metrics, "kvgate_requests_total", model="tiny", outcome="client_gone_queued") == 1


async def test_a_client_that_leaves_during_its_upload_is_no_invalid_request(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=b'{"model', sends_whole_body=False)
        serving = asyncio.create_task(serve(rooms, caller))
        await eventually(lambda: rooms.tally.counts().reading == 1)
        caller.leave()
        await serving
        assert outcomes(rooms) == {Outcome.CLIENT_GONE_UPLOAD: 1}
        assert_idle(rooms)


async def test_a_client_that_leaves_before_the_head_gives_its_blocks_back(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers[CHAT] = Scripted(gate=asyncio.Event())
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat())
        serving = asyncio.create_task(serve(rooms, caller))
        await eventually(lambda: bool(engine.asked(CHAT)))
        assert held_blocks(rooms) > 0
        caller.leave()
        await serving
        assert outcomes(rooms) == {Outcome.CLIENT_GONE_WAITING: 1}
        assert_idle(rooms)


async def test_llama_cpp_keeps_its_hold_until_it_has_answered_a_client_that_left(engine: ScriptedEngine) -> None:
    script_llama_cpp(engine)
    gate = asyncio.Event()
    engine.json(CHAT, ANSWER)
    engine.answers[CHAT].gate = gate
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat(model="smollm2"))
        serving = asyncio.create_task(serve(rooms, caller))
        await eventually(lambda: bool(engine.asked(CHAT)))
        caller.leave()
        await eventually(lambda: not _is_watched())
        assert held_blocks(rooms) > 0
        gate.set()
        await serving
        assert caller.messages == []
        assert outcomes(rooms) == {Outcome.CLIENT_GONE_WAITING: 1}
        assert_idle(rooms)


async def test_who_has_left_is_not_counted_by_what_the_engine_did_later(engine: ScriptedEngine) -> None:
    """llama.cpp went on after its client had left, failed, and the request was counted as its error."""
    script_llama_cpp(engine)
    gate = asyncio.Event()
    engine.answers[CHAT] = Scripted(gate=gate, raw=b"nonsense")
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat(model="smollm2"))
        serving = asyncio.create_task(serve(rooms, caller))
        await eventually(lambda: bool(engine.asked(CHAT)))
        caller.leave()
        await eventually(lambda: not _is_watched())
        gate.set()
        await serving
        assert outcomes(rooms) == {Outcome.CLIENT_GONE_WAITING: 1}
        assert caller.messages == []
        assert_idle(rooms)


def _is_watched() -> bool:
    """Somebody still waits for a client to leave."""
    return any(task.get_name() == "client departure" for task in asyncio.all_tasks())


async def test_a_full_queue_is_refused_with_a_time_to_come_back(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers[CHAT] = Scripted(gate=asyncio.Event())
    async with open_rooms({"a": engine}, max_requests=0) as rooms:
        running = Caller(body=chat(900))
        serving = [asyncio.create_task(serve(rooms, Caller(body=chat(900)))) for _ in range(2)]
        await eventually(lambda: len(engine.asked(CHAT)) == 2)
        await serve(rooms, running)
        assert (running.status, running.error["code"]) == (429, "queue_full")
        assert 1 <= int(running.header(b"retry-after") or b"0") <= 120
        assert "29 KV blocks" in running.error["message"]
        assert outcomes(rooms) == {Outcome.REFUSED_QUEUE_FULL: 1}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        assert outcomes(rooms) == {Outcome.REFUSED_QUEUE_FULL: 1, Outcome.DRAINED: 2}
        assert_idle(rooms)


async def test_an_engine_that_is_gone_is_a_502_that_may_be_tried_again(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await engine.go_away()
        caller = Caller(body=chat())
        await serve(rooms, caller)
        assert (caller.status, caller.error["code"]) == (502, "upstream_connect")
        assert caller.header(b"retry-after") == b"1"
        assert outcomes(rooms) == {Outcome.UPSTREAM_ERROR_BEFORE: 1}
        assert_idle(rooms)


class Forgetful(OpenAIChat):
    """A dialect with a bug."""

    def __init__(self, *, fails_on_errors: bool) -> None:
        self._fails_on_errors = fails_on_errors

    def read_request(self, body: bytes) -> Any:
        raise ZeroDivisionError

    def error_body(self, error: ErrorFacts) -> bytes:
        if self._fails_on_errors:
            raise ZeroDivisionError
        return super().error_body(error)


async def test_a_bug_of_ours_is_a_500_and_one_outcome(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat())
        await serve_request(rooms, Forgetful(fails_on_errors=False), caller.scope, caller.receive, caller.send)
        assert (caller.status, caller.error["code"]) == (500, "gateway_error")
        assert outcomes(rooms) == {Outcome.GATEWAY_ERROR: 1}
        assert_idle(rooms)


async def test_a_bug_in_the_answer_to_an_error_is_counted_all_the_same(engine: ScriptedEngine) -> None:
    """The request was never ended: it stayed in the tally for ever, and a drain waited for it."""
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller(body=chat())
        with pytest.raises(ZeroDivisionError):
            await serve_request(rooms, Forgetful(fails_on_errors=True), caller.scope, caller.receive, caller.send)
        assert outcomes(rooms) == {Outcome.GATEWAY_ERROR: 1}
        assert_idle(rooms)


async def test_every_answer_of_ours_has_one_date_and_one_id(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        for body in (chat(), chat(5000), b"nonsense"):
            caller = Caller(body=body)
            await serve(rooms, caller)
            assert caller.header(b"date") is not None
            assert caller.header(b"x-kvgate-request-id") is not None
            assert caller.header(b"x-kvgate-queue-ms") is not None


async def test_a_wait_beyond_the_callers_patience_invites_no_retry(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers[CHAT] = Scripted(gate=asyncio.Event())
    async with open_rooms({"a": engine}) as rooms:
        serving = [asyncio.create_task(serve(rooms, Caller(body=chat(900)))) for _ in range(2)]
        await eventually(lambda: len(engine.asked(CHAT)) == 2)
        pump = asyncio.create_task(rooms.controller.pump())
        patient, impatient = Caller(body=chat(900)), Caller(body=chat(900), headers=[(b"x-stainless-timeout", b"5")])
        waiting = [asyncio.create_task(serve(rooms, caller)) for caller in (patient, impatient)]
        await eventually(lambda: rooms.tally.counts().queued == 2)
        clock_of(rooms).advance(5.0)
        await waiting[1]
        assert (impatient.status, impatient.error["code"]) == (429, "queue_timeout")
        assert impatient.header(b"x-should-retry") == b"false"
        clock_of(rooms).advance(55.0)
        await waiting[0]
        assert (patient.status, patient.error["code"]) == (429, "queue_timeout")
        assert patient.header(b"retry-after") is not None
        assert sample(rooms.metrics, "kvgate_queue_wait_seconds_count", lane="standard", outcome="timeout") == 2
        for task in (*serving, pump):
            task.cancel()
        await asyncio.gather(*serving, pump, return_exceptions=True)
        assert_idle(rooms)
