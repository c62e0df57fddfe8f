"""What is written down of a request: one outcome, one line, and what observing would have done otherwise."""

import json
import logging

import pytest

from gateway.core.decisions import Mode
from gateway.core.outcomes import Outcome
from gateway.dialects import DIALECTS
from gateway.web.journal import GONE_IN, Journal, Phase
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.rooms import clock_of, open_rooms
from support.samples import sample
from support.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
SECRET = "a prompt that nobody may read"


def answer(prompt_tokens: object = 14) -> dict[str, object]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 2}}


async def serve(rooms: Rooms, **body: object) -> Caller:
    whole = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 100, **body}
    caller = Caller(body=json.dumps(whole).encode(), headers=[(b"authorization", b"Bearer sk-secret")])
    await serve_request(rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)
    return caller


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """The fields of each request's line."""
    return [vars(record)["fields"] for record in caplog.records if record.name == "kvgate.request"]


def test_a_departure_has_an_outcome_in_every_phase() -> None:
    assert set(GONE_IN) == set(Phase)
    assert len(set(GONE_IN.values())) == len(Phase)


async def test_each_request_leaves_one_line_without_its_content(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    script_vllm(engine)
    engine.json(CHAT, answer())
    caplog.set_level(logging.INFO, "kvgate.request")
    async with open_rooms({"a": engine}) as rooms:
        caller = await serve(rooms)
        await serve(rooms, max_tokens=5000)
        assert caller.header(b"x-kvgate-request-id") == str(lines(caplog)[0]["request_id"]).encode()
    good, bad = lines(caplog)
    assert (good["outcome"], good["backend"], good["model"], good["status"]) == ("completed", "a", "tiny", 200)
    assert (good["prompt_tokens"], good["output_tokens"], good["cap_tokens"]) == (14, 2, 100)
    assert (bad["outcome"], bad["status"]) == ("refused_context_length_exceeded", 400)
    assert "5000" in str(bad["error"])
    for text in (SECRET, "sk-secret", "hi"):
        assert text not in [str(value) for line in (good, bad) for value in line.values()]
    assert SECRET not in caplog.text


async def test_the_estimate_is_compared_with_what_the_engine_counted(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, answer(100))
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms)
        bound = sample(rooms.metrics, "kvgate_prompt_estimate_ratio_sum", model="tiny")
        assert bound is not None
        assert bound > 1


async def test_a_prompt_that_was_not_estimated_is_not_compared(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, answer(100))
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms, messages=picture)
        assert sample(rooms.metrics, "kvgate_prompt_estimate_ratio_count", model="tiny") is None
        assert sample(rooms.metrics, "kvgate_prompt_tokens_total", model="tiny") == 100


async def test_an_answer_without_sensible_usage_is_counted_as_such(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, answer("many"))
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms)
        assert sample(rooms.metrics, "kvgate_usage_missing_total", model="tiny") == 1
        assert sample(rooms.metrics, "kvgate_prompt_tokens_total", model="tiny") is None


async def test_observing_counts_what_enforcing_would_have_refused(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """What would have been refused before the line was let in and told nowhere."""
    script_vllm(engine)
    engine.json(CHAT, answer())
    caplog.set_level(logging.INFO, "kvgate.request")
    async with open_rooms({"a": engine}, mode=Mode.OBSERVE) as rooms:
        for body in ({"max_tokens": 5000}, {"n": 17}, {}):
            assert (await serve(rooms, **body)).status == 200
        for verdict in ("refused_context_length_exceeded", "refused_kv_budget_exceeded"):
            assert sample(rooms.metrics, "kvgate_would_have_total", pool="a", verdict=verdict) == 1
        assert rooms.tally.counts().outcomes[Outcome.COMPLETED] == 3
    would_have = [line.get("would_have") for line in lines(caplog)]
    assert would_have == ["refused_context_length_exceeded", "refused_kv_budget_exceeded", None]


async def test_two_requests_never_have_the_same_id(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        journals = [
            Journal("x", tally=rooms.tally, metrics=rooms.metrics, recent=rooms.recent, now=clock_of(rooms).now())
            for _ in range(100)
        ]
        assert len({journal.request_id for journal in journals}) == len({journal.ticket_id for journal in journals}) == 100
        for journal in journals:
            journal.end(Outcome.DRAINED, clock_of(rooms).now())
        assert rooms.tally.unfinished == 0
