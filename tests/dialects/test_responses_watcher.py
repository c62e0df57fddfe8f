"""What is learnt from answers to Responses, recorded ones and odd ones."""

import json
from typing import Any

import pytest

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher
from gateway.dialects.openai_watcher import ANSWER_LIMIT_BYTES
from gateway.dialects.responses_watcher import watch
from gateway.dialects.sse import EVENT_LIMIT_BYTES
from support.answers import cut, recorded, relay, seen


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def watched(*events: bytes) -> Watcher:
    watcher = watch(is_event_stream=True, content_encoding=None)
    stream = b"".join(events)
    assert relay(watcher, [stream]) == stream
    return watcher


def plain(answer: Any) -> Watcher:
    watcher = watch(is_event_stream=False, content_encoding=None)
    relay(watcher, [json.dumps(answer).encode()])
    return watcher


USAGE = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3, "total_tokens": 12}
CAPPED = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
DELTA = event("response.output_text.delta", delta="hi")


@pytest.mark.parametrize(
    ("name", "usage", "token_events", "hit_cap"),
    [
        ("vllm_responses_stream.txt", Usage(35, 4, 0), 2, True),
        ("vllm_responses_thinking.txt", Usage(25, 4, 0), 4, True),
        ("vllm_responses_tool.txt", Usage(149, 33, 96), 4, False),
        ("llama_cpp_responses_stream.txt", Usage(38, 4, 24), 4, False),  # capped, but it does not say so
    ],
)
def test_each_engines_stream_tells_usage_progress_and_end(name: str, usage: Usage, token_events: int, hit_cap: bool) -> None:
    watcher = watched(recorded(name))
    assert (watcher.usage, watcher.token_events, watcher.hit_cap) == (usage, token_events, hit_cap)
    assert (watcher.is_complete, watcher.has_error) == (True, False)


@pytest.mark.parametrize(
    "kind", ["output_text", "reasoning_text", "reasoning_summary_text", "function_call_arguments", "refusal"]
)
def test_progress_is_every_kind_of_delta_and_its_repetition_is_none(kind: str) -> None:
    done = event(f"response.{kind}.done", text="hi", arguments="hi")
    watcher = watched(event(f"response.{kind}.delta", delta="hi"), done, event(f"response.{kind}.delta", delta=""))
    assert (watcher.token_events, watcher.text_bytes) == (1, 2)
    assert not watcher.is_complete


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_a_cap_is_told_by_the_response_and_not_by_the_event(kind: str) -> None:
    assert watched(event(kind, response={"usage": USAGE, **CAPPED})).hit_cap
    filtered = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    watcher = watched(event(kind, response={"usage": USAGE, **filtered}))
    assert (watcher.hit_cap, watcher.is_complete, watcher.usage) == (False, True, Usage(9, 3, 4))


@pytest.mark.parametrize(
    "broken",
    [
        event("response.failed", response={"status": "failed", "error": {"code": "server_error", "message": "m"}}),
        event("response.failed"),
        event("error", code="server_error", message="m"),
        b'data: {"type":"error","message":"m"}\n\n',
        b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n',
        b"event: error\ndata: nonsense\n\n",
    ],
    ids=range(6),
)
def test_an_error_in_a_stream_is_seen_in_each_of_its_shapes(broken: bytes) -> None:
    assert watched(DELTA, broken, b"data: [DONE]\n\n").has_error
    assert not watched(DELTA, event("response.completed", response={"error": None, "usage": USAGE})).has_error


def test_a_stream_without_its_last_event_is_not_whole() -> None:
    stream = recorded("vllm_responses_stream.txt")
    last = stream.rindex(b"event: response.completed")
    assert not watched(stream[:last]).is_complete
    assert not watched(stream[:-40]).is_complete
    assert watched(stream.rstrip(b"\n")).is_complete


def large(kind: str, *, is_vllm: bool, **members: Any) -> bytes:
    """The last event of a long answer, its members in the order in which that engine writes them."""
    output = [{"type": "message", "content": [{"type": "output_text", "text": 'say "x" ' * 40_000}]}]
    if is_vllm:
        data: dict[str, Any] = {"response": {"id": "r", **members, "output": output, "usage": USAGE}, "type": kind}
    else:
        data = {"type": kind, "response": {"id": "r", "output": output, **members, "usage": USAGE}}
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


@pytest.mark.parametrize("is_vllm", [True, False])
@pytest.mark.parametrize(
    ("kind", "members", "facts"),
    [
        ("response.completed", {"incomplete_details": None}, (True, False, False)),
        ("response.completed", CAPPED, (True, True, False)),
        ("response.incomplete", CAPPED, (True, True, False)),
        ("response.failed", {"error": {"code": "server_error"}}, (True, False, True)),
        ("response.in_progress", {}, (False, False, False)),
    ],
)
def test_the_end_of_a_long_answer_is_read_though_its_event_is_too_large_to_be_kept(
    kind: str, members: dict[str, Any], facts: tuple[bool, bool, bool], is_vllm: bool
) -> None:
    stream = DELTA + large(kind, is_vllm=is_vllm, **members) + (DELTA if kind == "response.in_progress" else b"")
    assert len(stream) > 4 * EVENT_LIMIT_BYTES
    for step in (len(stream), EVENT_LIMIT_BYTES + 1, 16_384, 1_000):
        watcher = watch(is_event_stream=True, content_encoding=None)
        assert relay(watcher, cut(stream, range(step, len(stream), step))) == stream
        assert (watcher.is_complete, watcher.hit_cap, watcher.has_error) == facts
        assert watcher.usage == (Usage(9, 3, 4) if watcher.is_complete else None)
        assert watcher.at_boundary
        assert watcher.token_events == 1 + (kind == "response.in_progress")


def test_a_long_answer_that_is_cut_in_its_last_event_is_not_whole() -> None:
    stream = DELTA + large("response.completed", is_vllm=True)
    for end in (len(stream) - 1, len(stream) - 100, len(stream) // 2):
        watcher = watch(is_event_stream=True, content_encoding=None)
        relay(watcher, cut(stream[:end], range(10_000, end, 10_000)))
        assert not watcher.is_complete
        assert not watcher.at_boundary


ITEMS = [
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "content": [{"type": "output_text", "text": "abc"}]},
    {"type": "function_call", "name": "f", "arguments": "{}"},
]


def test_a_plain_answer_tells_usage_text_and_cap() -> None:
    watcher = plain({"output": ITEMS, "usage": USAGE, "error": None, **CAPPED})
    assert (watcher.usage, watcher.text_bytes, watcher.hit_cap, watcher.has_error) == (Usage(9, 3, 4), 8, True, False)


def test_a_list_of_answers_has_one_prompt() -> None:
    watcher = plain([{"output": ITEMS, "usage": USAGE}, {"output": ITEMS, "usage": USAGE}])
    assert (watcher.usage, watcher.text_bytes) == (Usage(9, 6, 4), 16)


def test_a_failed_answer_is_an_error() -> None:
    assert plain({"status": "failed", "error": {"message": "m"}}).has_error
    assert plain({"error": {"message": "m"}}).has_error
    assert not plain({"status": "completed"}).has_error


def test_a_plain_answer_that_is_too_large_to_decode_is_read_at_both_ends() -> None:
    text = [{"type": "message", "content": [{"type": "output_text", "text": "x" * ANSWER_LIMIT_BYTES}]}]
    for answer in ({"id": "r", **CAPPED, "output": text, "usage": USAGE}, {"output": text, **CAPPED, "usage": USAGE}):
        watcher = plain(answer)
        assert (watcher.usage, watcher.hit_cap) == (Usage(9, 3, 4), True)


@pytest.mark.parametrize("usage", [None, "many", [], {}, {"input_tokens": 1}, {"input_tokens": -1, "output_tokens": 2}])
def test_usage_that_makes_no_sense_is_none(usage: Any) -> None:
    assert plain({"usage": usage}).usage is None
    assert watched(event("response.completed", response={"usage": usage})).usage is None
    assert watched(event("response.completed", response=[])).is_complete


def test_a_stream_cut_anywhere_in_a_long_answer_tells_the_same() -> None:
    stream = DELTA + large("response.completed", is_vllm=True, **CAPPED)
    whole = watched(stream)
    for position in range(0, len(stream), 9_973):
        parted = watch(is_event_stream=True, content_encoding=None)
        relay(parted, cut(stream, [position] if position else []))
        assert seen(parted) == seen(whole)
