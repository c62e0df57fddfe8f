"""What is learnt from answers of llama.cpp's own route, recorded ones and odd ones."""

import json
from typing import Any

import pytest

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher
from gateway.dialects.llama_cpp_watcher import watch
from gateway.dialects.openai_watcher import ANSWER_LIMIT_BYTES
from gateway.dialects.sse import EVENT_LIMIT_BYTES
from support.answers import cut, recorded, relay


def watched(*events: Any) -> Watcher:
    watcher = watch(is_event_stream=True, content_encoding=None)
    relay(watcher, [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events])
    return watcher


def plain(answer: Any) -> Watcher:
    watcher = watch(is_event_stream=False, content_encoding=None)
    relay(watcher, [json.dumps(answer).encode()])
    return watcher


def part(index: int = 0, content: str = "a", **members: Any) -> dict[str, Any]:
    return {"index": index, "content": content, "tokens": [5], "stop": False, "tokens_predicted": 1, **members}


def end(index: int = 0, stop_type: str = "eos", **members: Any) -> dict[str, Any]:
    timings = {"cache_n": 2, "prompt_n": 3, "predicted_n": 4}
    counts = {"tokens_predicted": 4, "tokens_evaluated": 5, "timings": timings}
    return {"index": index, "content": "", "stop": True, **counts, "stop_type": stop_type, **members}


@pytest.mark.parametrize(
    ("name", "usage", "token_events", "hit_cap"),
    [
        ("llama_cpp_completion_stream.txt", Usage(2, 4, 1), 4, True),
        ("llama_cpp_completion_two_prompts.txt", Usage(5, 6, 1), 6, True),
        ("llama_cpp_completion_fields.txt", Usage(1, 3, 0), 3, False),  # it was asked for content and timings only
        ("llama_cpp_alias_stream.txt", Usage(2, 4, 1), 4, True),
    ],
)
def test_a_stream_tells_usage_progress_and_end(name: str, usage: Usage, token_events: int, hit_cap: bool) -> None:
    watcher = watch(is_event_stream=True, content_encoding=None)
    relay(watcher, [recorded(name)])
    assert (watcher.usage, watcher.token_events, watcher.hit_cap) == (usage, token_events, hit_cap)
    assert (watcher.is_complete, watcher.has_error) == (True, False)


def test_it_is_whole_once_every_sequence_that_began_has_ended() -> None:
    assert not watched().is_complete
    assert not watched(part()).is_complete
    assert watched(part(), end()).is_complete
    assert not watched(part(0), part(1), end(0)).is_complete
    watcher = watched(part(0), part(1), end(0), part(1), end(1, "limit"))
    assert (watcher.is_complete, watcher.hit_cap, watcher.usage) == (True, True, Usage(10, 8, 4))


def test_half_a_character_is_progress_without_a_text() -> None:
    watcher = watched(part(content=""), part(content="é"))
    assert (watcher.token_events, watcher.text_bytes) == (2, 2)
    assert watched(part(content="", tokens=[])).token_events == 0


@pytest.mark.parametrize("event", [{"error": {"code": 500, "message": "Context size has been exceeded."}}, None, 7, []])
def test_an_error_in_a_stream_is_seen_and_nonsense_is_nothing(event: Any) -> None:
    watcher = watched(part(), event)
    assert watcher.has_error is isinstance(event, dict)
    assert not watcher.is_complete


def test_a_last_event_without_stop_is_still_the_last() -> None:
    assert watched(part(), {"content": ""}).is_complete
    assert watched(part(), {"content": ""}).usage is None


@pytest.mark.parametrize(("stop_type", "hit_cap"), [("limit", True), ("eos", False), ("word", False)])
def test_a_last_event_with_a_long_prompt_in_it_is_read_at_both_ends(stop_type: str, hit_cap: bool) -> None:
    last = end(1)
    long = {**{key: last.pop(key) for key in ("index", "content", "stop")}, "prompt": 'a "b" ' * EVENT_LIMIT_BYTES}
    events = [part(0), part(1), end(0), {**long, **last, "stop_type": stop_type}]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    for step in (len(stream), 20_000):
        watcher = watch(is_event_stream=True, content_encoding=None)
        relay(watcher, cut(stream, range(step, len(stream), step)))
        assert (watcher.is_complete, watcher.hit_cap, watcher.usage) == (True, hit_cap, Usage(10, 8, 4))
    cut_off = watch(is_event_stream=True, content_encoding=None)
    relay(cut_off, cut(stream[:-30], range(20_000, len(stream) - 30, 20_000)))
    assert not cut_off.is_complete


def test_a_plain_answer_is_one_sequence_or_a_list() -> None:
    one = {**end(stop_type="limit"), "content": "abc"}
    assert (plain(one).usage, plain(one).hit_cap, plain(one).text_bytes) == (Usage(5, 4, 2), True, 3)
    assert plain([one, one]).usage == Usage(10, 8, 4)
    assert plain({"error": {"code": 400, "message": "m"}}).has_error
    for nonsense in (None, 7, [], [7], {}, {"tokens_evaluated": "many"}):
        assert plain(nonsense).usage is None
    assert plain({"tokens_evaluated": 5, "tokens_predicted": 4, "stopped_limit": True}).hit_cap


def test_a_plain_answer_that_is_too_large_to_decode_is_read_at_its_end() -> None:
    answer = end(stop_type="limit")
    del answer["content"]
    watcher = plain({"content": "x" * ANSWER_LIMIT_BYTES, **answer})
    assert (watcher.usage, watcher.hit_cap) == (Usage(5, 4, 2), True)
