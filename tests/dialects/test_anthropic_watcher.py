"""What is seen in an answer to Messages, streamed and plain, well or badly written."""

import json
from typing import Any

import pytest

from gateway.core.demand import Usage
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Watcher
from support.answers import recorded, relay

MESSAGES = DIALECTS["/v1/messages"]


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def streamed(*events: bytes) -> Watcher:
    watcher = MESSAGES.watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
    assert relay(watcher, events) == b"".join(events)
    return watcher


def plain(answer: object) -> Watcher:
    watcher = MESSAGES.watcher(is_event_stream=False, hide_usage=False, content_encoding=None)
    relay(watcher, [json.dumps(answer).encode()])
    return watcher


def start(**usage: Any) -> bytes:
    return event("message_start", message={"usage": usage})


def delta(**members: Any) -> bytes:
    return event("content_block_delta", index=0, delta=members)


def end(reason: str | None = "end_turn", **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        # vLLM: nothing of its cache at the start, all of it at the end.
        (
            {"input_tokens": 125, "output_tokens": 0},
            {"input_tokens": 29, "output_tokens": 40, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 96},
            Usage(125, 40, 96),
        ),
        # llama.cpp: the prompt at the start, the output at the end.
        ({"cache_read_input_tokens": 3, "input_tokens": 22, "output_tokens": 0}, {"output_tokens": 4}, Usage(25, 4, 3)),
        # Dynamo: a guess at the start.
        ({"input_tokens": 3, "output_tokens": 0}, {"input_tokens": 14, "output_tokens": 4}, Usage(14, 4, None)),
        ({"input_tokens": 3, "cache_creation_input_tokens": 5, "output_tokens": 1}, {"output_tokens": 4}, Usage(8, 4, None)),
        ({}, {"input_tokens": "14", "output_tokens": 4}, None),
        ({"input_tokens": True}, {"output_tokens": 4}, None),
        ({"input_tokens": 3}, {"output_tokens": -4}, None),
        ({"input_tokens": 3, "output_tokens": 7}, {}, None),
    ],
)
def test_usage_is_put_together_from_the_start_and_the_end(first: Any, last: Any, usage: Usage | None) -> None:
    watcher = streamed(start(**first), delta(type="text_delta", text="a"), end(**last), event("message_stop"))
    assert watcher.usage == usage
    assert watcher.usage_missing is (usage is None)


def test_no_usage_is_known_before_the_output_was_told() -> None:
    assert streamed(start(input_tokens=3, output_tokens=1), delta(type="text_delta", text="a")).usage_missing


def test_text_thinking_and_calls_are_tokens_and_all_else_is_not() -> None:
    watcher = streamed(
        start(input_tokens=1, output_tokens=0),
        event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        event("ping"),
        b": comment\n\n",
        delta(type="thinking_delta", thinking="hmm"),
        delta(type="signature_delta", signature="s" * 100),
        event("content_block_stop", index=0),
        event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
        delta(type="text_delta", text="é"),
        delta(type="text_delta", text=""),
        event("content_block_start", index=2, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        delta(type="input_json_delta", partial_json='{"a"'),
        end(),
    )
    assert (watcher.token_events, watcher.text_bytes) == (4, 3 + 2 + 1 + 4)


@pytest.mark.parametrize(
    ("reason", "is_complete", "hit_cap"),
    [
        ("end_turn", True, False),
        ("tool_use", True, False),
        ("stop_sequence", True, False),
        ("max_tokens", True, True),
        ("model_context_window_exceeded", True, True),
        (None, False, False),
    ],
)
def test_a_stream_is_whole_once_it_says_why_it_stopped(reason: str | None, is_complete: bool, hit_cap: bool) -> None:
    watcher = streamed(start(input_tokens=1), end(reason, output_tokens=1))
    assert (watcher.is_complete, watcher.hit_cap, watcher.has_error) == (is_complete, hit_cap, False)
    answer = plain({"type": "message", "content": [], "stop_reason": reason, "usage": {"input_tokens": 1, "output_tokens": 1}})
    assert (answer.hit_cap, answer.usage) == (hit_cap, Usage(1, 1))


def test_or_ends_its_message() -> None:
    assert streamed(event("message_stop")).is_complete
    assert not streamed(delta(type="text_delta", text="a")).is_complete


@pytest.mark.parametrize(
    "broken",
    [
        event("error", error={"type": "overloaded_error", "message": "x"}),
        b'event: error\ndata: {"code":500,"message":"Context size has been exceeded."}\n\n',  # llama.cpp
        b"event: error\ndata: nonsense\n\n",
        b'data: {"error":{"message":"x","code":500}}\n\n',
    ],
)
def test_an_error_is_seen_in_every_shape_in_which_engines_write_it(broken: bytes) -> None:
    watcher = streamed(start(input_tokens=1), broken, b"data: [DONE]\n\n")
    assert (watcher.has_error, watcher.is_complete) == (True, False)


def test_the_engine_that_died_is_no_success() -> None:
    watcher = streamed(recorded("vllm_messages_engine_died.txt"))
    assert (watcher.has_error, watcher.is_complete, watcher.usage) == (True, False, None)


def test_a_plain_answer_tells_its_usage_and_its_text() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "é"},
        {"type": "tool_use", "name": "f", "input": {"a": 1}},
    ]
    answer = plain({"content": [*blocks, 7], "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}})
    assert answer.usage == Usage(7, 3, 2)
    assert answer.text_bytes == 2 + 2 + 1 + len('{"a":1}')
    assert plain({"type": "error", "error": {"type": "x"}}).has_error
    assert plain({"error": {"message": "x"}}).has_error
    assert plain([1]).usage is None


def test_of_a_plain_answer_of_megabytes_the_end_is_enough() -> None:
    answer = {"content": [{"type": "text", "text": "x" * 3_000_000}], "usage": {"input_tokens": 5, "output_tokens": 9}}
    assert plain(answer).usage == Usage(5, 9)


@pytest.mark.parametrize("odd", [None, 7, "x", [], [1], {"type": 7}, {"type": []}])
def test_odd_values_are_passed_over(odd: Any) -> None:
    for kind in ("message_start", "content_block_start", "content_block_delta", "message_delta", "ping"):
        value = {"type": kind, "message": odd, "content_block": odd, "delta": odd, "usage": odd}
        watcher = streamed(f"data: {json.dumps(value)}\n\n".encode(), f"data: {json.dumps(odd)}\n\n".encode())
        assert (watcher.usage, watcher.token_events, watcher.has_error) == (None, 0, False)
    answer = plain({"content": odd, "usage": odd, "stop_reason": odd})
    assert (answer.usage, answer.text_bytes, answer.hit_cap) == (None, 0, False)
