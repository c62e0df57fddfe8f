"""What is written down of a request: one outcome, one line, and what observing would have done otherwise."""

import json
import logging
import re
from pathlib import Path

import pytest

from gateway.core.decisions import Mode
from gateway.core.outcomes import Outcome
from gateway.dialects import DIALECTS
from gateway.logs import fields_of
from gateway.web.app import Front
from gateway.web.inference import Inference
from gateway.web.journal import GONE_IN, Journal, Phase
from gateway.web.lifecycle import Lifecycle
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.rooms import clock_of, open_rooms
from support.samples import sample
from support.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
SECRET = "a prompt that nobody may read"
ASKS = [{"role": "user", "content": SECRET}]


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
    return [dict(fields_of(record)) for record in caplog.records if record.name == "kvgate.request"]


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


# Every field that a request's line may have. The README tells them; whoever reads the log relies on them.
FIELDS = {
    *(
        "request_id",
        "trace_id",
        "parent_id",
        "dialect",
        "outcome",
        "phase",
        "reason",
        "status",
        "error",
        "would_have",
        "truncated",
    ),
    *("model", "tenant", "lane", "pool", "backend", "stream"),
    *("prompt_tokens_counted", "count", "cap_tokens", "written_cap_tokens", "sequences"),
    *("blocks", "charged_blocks", "released_blocks"),
    *("prompt_tokens", "output_tokens", "cached_tokens"),
    *("upload_ms", "count_ms", "queue_ms", "head_ms", "ttft_ms", "upstream_ms", "total_ms"),
}


async def test_a_line_has_the_ids_the_phases_the_demand_and_the_usage(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    script_vllm(engine)
    engine.json(CHAT, answer())
    caplog.set_level(logging.INFO, "kvgate.request")
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms, n=2)
    (line,) = lines(caplog)
    assert set(line) <= FIELDS
    missing = FIELDS - set(line)
    assert missing <= {
        *("trace_id", "parent_id", "reason", "error", "would_have", "truncated"),
        *("written_cap_tokens", "cached_tokens", "ttft_ms"),
    }
    assert (line["sequences"], line["phase"], line["pool"]) == (2, "streaming", "a")
    assert line["charged_blocks"] == line["released_blocks"] == line["blocks"]
    json.dumps(line, allow_nan=False)


async def test_the_readme_tells_of_every_field() -> None:
    text = (Path(__file__).parent.parent.parent / "README.md").read_text(encoding="utf-8")
    _, _, after = text.partition("<!-- log fields -->")
    told = set(re.findall(r"`([a-z_]+)`", after.partition("<!-- end -->")[0]))
    assert told >= FIELDS


async def test_a_caller_s_trace_is_in_the_line_and_goes_on_as_it_came(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    script_vllm(engine)
    engine.json(CHAT, answer())
    caplog.set_level(logging.INFO, "kvgate.request")
    traceparent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with open_rooms({"a": engine}) as rooms:
        for value in (traceparent, b"rubbish"):
            body = json.dumps({"model": "tiny", "messages": ASKS, "max_tokens": 5}).encode()
            caller = Caller(body=body, headers=[(b"traceparent", value), (b"tracestate", b"vendor=1")])
            await serve_request(rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)
    traced, untraced = lines(caplog)
    assert (traced["trace_id"], traced["parent_id"]) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    assert "trace_id" not in untraced
    assert "rubbish" not in str(untraced)
    for seen, value in zip(engine.asked(CHAT), (traceparent, b"rubbish"), strict=True):
        assert seen.headers["traceparent"] == value.decode()
        assert seen.headers["tracestate"] == "vendor=1"


async def test_a_refusal_is_remembered_with_its_numbers_and_without_its_content(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await serve(rooms, max_tokens=5000)
        (refusal,) = rooms.recent.refusals
        assert (refusal.reason.value, refusal.status, refusal.model) == ("context_length_exceeded", 400, "tiny")
        assert "5000" in refusal.message
        assert SECRET not in refusal.message
        assert len(rooms.open_requests) == 0


async def test_ten_thousand_models_and_sizes_leave_as_many_series_and_words_as_ten(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever callers put into a request: labels and words of the log are ours."""
    script_vllm(engine)
    caplog.set_level(logging.INFO, "kvgate.request")

    async def series_after(rooms: Rooms, numbers: range) -> int:
        for number in numbers:
            body = {"model": f"model-{number}", "user": f"tenant-{number}", "messages": ASKS, "max_tokens": 5000 + number}
            headers = [(b"authorization", f"Bearer sk-{number}".encode()), (b"x-tenant", b"%d" % number)]
            caller = Caller(path=f"{CHAT}?path={number}", body=json.dumps(body).encode(), headers=headers)
            await serve_request(rooms, DIALECTS[CHAT], caller.scope, caller.receive, caller.send)
        return len(rooms.metrics.exposition().splitlines())

    async with open_rooms({"a": engine}) as rooms:
        few = await series_after(rooms, range(10))
        assert await series_after(rooms, range(10, 10_010)) == few
    words = {(line["model"], line["tenant"], line["lane"], line["pool"], line["dialect"]) for line in lines(caplog)}
    assert words == {("other", "anonymous", "standard", "a", "openai_chat")}
    assert len(lines(caplog)) == 10_010


async def test_ten_thousand_paths_leave_no_series_and_no_line(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    script_vllm(engine)
    caplog.set_level(logging.INFO, "kvgate")
    async with open_rooms({"a": engine}) as rooms:
        front = Front(rooms, Lifecycle(started=1000.0), Inference(rooms))
        before = rooms.metrics.exposition()
        for number in range(10_000):
            caller = Caller(f"/v1/chat/{number}", method="POST" if number % 2 else "GET")
            await front(caller.scope, caller.receive, caller.send)
            assert caller.status == 404
        assert rooms.metrics.exposition() == before
    assert lines(caplog) == []
    assert "/v1/chat/" not in caplog.text
