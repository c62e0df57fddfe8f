"""What is learnt from answers, recorded ones and odd ones. How they are cut is in tests/properties/test_streams.py."""

import gzip
import json
import sys
import zlib

import pytest

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher
from gateway.dialects.openai_watcher import ANSWER_LIMIT_BYTES, watch
from support.answers import recorded, relay


def stream_of(*events: str) -> bytes:
    return b"".join(b"data: " + event.encode() + b"\n\n" for event in events)


def watched(stream: bytes, *, hide_usage: bool = False) -> Watcher:
    watcher = watch(is_event_stream=True, hide_usage=hide_usage, content_encoding=None)
    relay(watcher, [stream])
    return watcher


def plain(body: bytes, encoding: str | None = None) -> Watcher:
    watcher = watch(is_event_stream=False, hide_usage=False, content_encoding=encoding)
    assert relay(watcher, [body]) == body
    return watcher


@pytest.mark.parametrize(
    ("name", "usage", "token_events", "has_error", "is_complete", "hit_cap"),
    [
        ("vllm_chat_usage.txt", Usage(14, 4, 0), 4, False, True, True),
        ("vllm_chat_two_choices.txt", None, 7, False, True, True),
        ("vllm_chat_continuous_usage.txt", Usage(14, 3, 0), 2, False, True, True),
        ("vllm_completions_usage.txt", Usage(4, 4, 0), 4, False, True, True),
        ("vllm_chat_tool_call.txt", Usage(180, 20), 3, False, True, False),
        ("vllm_chat_engine_died.txt", None, 1, True, True, False),
        ("llama_cpp_chat_usage.txt", Usage(32, 4, 31), 4, False, True, True),
        ("llama_cpp_completions_usage.txt", Usage(1, 3, 0), 3, False, True, True),
        ("dynamo_chat_usage.txt", Usage(14, 4, 0), 4, False, True, True),
        ("dynamo_completions_usage.txt", Usage(3, 4, 0), 4, False, True, True),
        ("dynamo_chat_worker_died.txt", None, 1, True, True, False),
        ("transformers_chat.txt", Usage(12, 2), 2, False, True, False),
        ("chat_crlf_with_pings.txt", Usage(9, 2), 2, False, True, False),
        ("chat_cr_only.txt", Usage(3, 2), 2, False, True, True),
    ],
)
def test_each_engines_stream_tells_usage_progress_and_end(
    name: str, usage: Usage | None, token_events: int, has_error: bool, is_complete: bool, hit_cap: bool
) -> None:
    watcher = watched(recorded(name))
    assert watcher.usage == usage
    assert watcher.usage_missing is (usage is None)
    assert watcher.token_events == token_events
    assert (watcher.has_error, watcher.is_complete, watcher.hit_cap) == (has_error, is_complete, hit_cap)


@pytest.mark.parametrize(
    ("name", "usage", "text_bytes"),
    [
        ("vllm_chat_two_choices.json", Usage(14, 8, 0), 46),
        ("vllm_completions_two_prompts.json", Usage(6, 8, 0), 27),
        ("llama_cpp_chat.json", Usage(32, 3, 31), 12),
    ],
)
def test_each_engines_plain_answer_tells_usage_and_end(name: str, usage: Usage, text_bytes: int) -> None:
    watcher = plain(recorded(name))
    assert (watcher.usage, watcher.hit_cap, watcher.has_error, watcher.is_complete) == (usage, True, False, True)
    assert (watcher.text_bytes, watcher.token_events) == (text_bytes, 0)


ODD_USAGE = [
    "null",
    '"many"',
    "[]",
    "7",
    "{}",
    '{"prompt_tokens":null,"completion_tokens":4}',
    '{"prompt_tokens":"14","completion_tokens":4}',
    '{"prompt_tokens":-1,"completion_tokens":4}',
    '{"prompt_tokens":true,"completion_tokens":4}',
    '{"prompt_tokens":14.5,"completion_tokens":4}',
    '{"prompt_tokens":14}',
    '{"prompt_tokens":1e30,"completion_tokens":4}',
    '{"prompt_tokens":' + "9" * 30 + ',"completion_tokens":4}',
]


@pytest.mark.parametrize("usage", ODD_USAGE)
def test_r10_usage_that_makes_no_sense_is_missing_and_passes_unchanged(usage: str) -> None:
    answer = f'{{"choices":[],"usage":{usage}}}'
    assert watched(stream_of(answer)).usage_missing
    assert plain(answer.encode()).usage_missing


TIMINGS = '{"cache_n":31,"prompt_n":1,"prompt_ms":69.4,"predicted_n":4,"predicted_ms":120.0}'


def test_llama_cpp_tells_the_usage_in_its_timings_where_none_was_asked_for() -> None:
    finish = f'{{"choices":[{{"finish_reason":"stop","index":0,"delta":{{}}}}],"timings":{TIMINGS}}}'
    assert watched(stream_of(finish, "[DONE]")).usage == Usage(32, 4, 31)
    assert plain(f'{{"choices":[],"timings":{TIMINGS}}}'.encode()).usage == Usage(32, 4, 31)


def test_usage_counts_before_timings() -> None:
    both = f'{{"choices":[],"usage":{{"prompt_tokens":7,"completion_tokens":8}},"timings":{TIMINGS}}}'
    assert watched(stream_of(both)).usage == Usage(7, 8)
    assert plain(both.encode()).usage == Usage(7, 8)


def test_an_event_that_carries_timings_is_never_hidden() -> None:
    event = f'data: {{"choices":[],"timings":{TIMINGS}}}\n\n'.encode()
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert relay(watcher, [event]) == event


@pytest.mark.parametrize(
    "timings", ["null", "7", "[]", "{}", '{"prompt_n":1,"predicted_n":4}', '{"prompt_n":1,"cache_n":-1,"predicted_n":4}']
)
def test_timings_that_do_not_tell_the_whole_prompt_are_no_usage(timings: str) -> None:
    assert watched(stream_of(f'{{"choices":[],"timings":{timings}}}')).usage_missing
    assert plain(f'{{"choices":[],"timings":{timings}}}'.encode()).usage_missing


def test_r10_odd_details_do_not_spoil_the_counts() -> None:
    for details in ("null", "7", '{"cached_tokens":null}', '{"cached_tokens":"x"}', '{"cached_tokens":-1}'):
        usage = f'{{"usage":{{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":{details}}}}}'
        assert watched(stream_of(usage)).usage == Usage(1, 2)


def test_the_last_usage_that_made_sense_counts() -> None:
    good, bad = (
        '{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}',
        '{"choices":[],"usage":{"prompt_tokens":-1}}',
    )
    assert watched(stream_of(good, bad)).usage == Usage(1, 2)


@pytest.mark.parametrize(
    "event",
    [
        "not json",
        "{",
        "7",
        "null",
        "[]",
        '"x"',
        "{}",
        '{"choices":null}',
        '{"choices":7}',
        '{"choices":[]}',
        '{"choices":[7,null,"x"]}',
        '{"choices":[{"delta":7}]}',
        '{"choices":[{"delta":{"content":7,"tool_calls":7,"reasoning":[]}}]}',
        '{"choices":[{"delta":{"tool_calls":[7,{"function":7},{"function":{"arguments":7}}]}}]}',
        '{"choices":[{"index":"x","finish_reason":7}]}',
        "[" * 10_000,
        "\\",
        "",
    ],
)
@pytest.mark.parametrize("hide_usage", [False, True])
def test_r10_odd_events_pass_unchanged_and_tell_nothing(event: str, hide_usage: bool) -> None:
    stream = stream_of(event)
    watcher = watch(is_event_stream=True, hide_usage=hide_usage, content_encoding=None)
    assert watcher.feed(stream) is stream
    assert watcher.finish() == b""
    assert (watcher.token_events, watcher.has_error, watcher.is_complete) == (0, False, False)


@pytest.mark.parametrize(
    "delta",
    [
        '"content":"x"',
        '"reasoning":"x"',
        '"reasoning_content":"x"',
        '"refusal":"x"',
        '"function_call":{"arguments":"x"}',
        '"tool_calls":[{"function":{"name":"x"}}]',
    ],
)
def test_a_delta_with_text_reasoning_or_a_call_is_progress(delta: str) -> None:
    watcher = watched(stream_of(f'{{"choices":[{{"delta":{{{delta}}}}}]}}'))
    assert (watcher.token_events, watcher.text_bytes) == (1, 1)


@pytest.mark.parametrize(
    "delta", ['"role":"assistant","content":""', '"content":null', '"tool_calls":[]', '"role":"assistant"']
)
def test_a_delta_without_any_is_no_first_token(delta: str) -> None:
    assert watched(stream_of(f'{{"choices":[{{"delta":{{{delta}}}}}]}}')).token_events == 0


@pytest.mark.parametrize(
    "error",
    ['{"error":{"message":"x"}}', '{"error":"x"}', '{"object":"error","message":"x"}', '{"choices":[],"error":{"code":500}}'],
)
def test_r8_an_error_in_the_stream_is_seen_and_no_end_mark_undoes_it(error: str) -> None:
    assert watched(stream_of(error, "[DONE]")).has_error
    assert plain(error.encode()).has_error


def test_r8_an_event_named_error_is_an_error_whatever_it_holds() -> None:
    assert watched(b"event: error\ndata: oops\n\n").has_error
    assert not watched(stream_of('{"error":null,"choices":[]}')).has_error


def test_r7_a_stream_is_complete_when_every_choice_that_began_has_ended() -> None:
    first, second = '{"choices":[{"index":0,"delta":{"content":"a"}}]}', '{"choices":[{"index":1,"delta":{"content":"b"}}]}'
    ends = [f'{{"choices":[{{"index":{index},"delta":{{}},"finish_reason":"stop"}}]}}' for index in (0, 1)]
    assert not watched(stream_of(first)).is_complete
    assert not watched(stream_of(first, second, ends[0])).is_complete
    assert watched(stream_of(first, second, *ends)).is_complete
    assert watched(stream_of(first, "[DONE]")).is_complete
    assert not watched(b"").is_complete


def test_r7_an_end_mark_without_its_empty_line_still_counts() -> None:
    assert watched(b"data: [DONE]").is_complete
    assert watched(b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}').usage == Usage(1, 2)


@pytest.mark.parametrize(
    "event",
    [
        '{"choices":[],"prompt_filter_results":[]}',
        '{"choices":[],"usage":null}',
        '{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
        '{"usage":{"prompt_tokens":1,"completion_tokens":1}}',
        '{"error":{"message":"x"},"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
    ],
)
def test_r9_only_an_event_that_carries_nothing_but_usage_is_hidden(event: str) -> None:
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert relay(watcher, [stream_of(event)]) == stream_of(event)


def test_r9_a_usage_event_that_ends_the_stream_without_an_empty_line_is_hidden_too() -> None:
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert relay(watcher, [b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}']) == b""


def test_where_usage_is_hidden_what_passes_unseen_leaves_nothing_held_back() -> None:
    event = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert watcher.passes(event)
    assert not watcher.passes(event + b"\n")  # the third line end would be kept, and be sent once more
    assert not watcher.passes(event[:-1])
    no_usage, usage = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n', b'data: {"choices":[],"usage":{}}\n\n'
    assert watcher.passes(no_usage)
    assert watcher.feed(no_usage) is no_usage
    assert not watcher.passes(usage)
    assert not watcher.passes(no_usage + usage)


def test_an_event_held_back_keeps_the_boundary_for_an_error_of_ours() -> None:
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert watcher.feed(b'data: {"choi') == b""
    assert watcher.at_boundary


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        (" GZIP ", gzip.compress),
        ("identity", bytes),
        ("", bytes),
    ],
)
def test_r11_usage_is_found_in_an_answer_that_we_can_decompress(encoding: str, pack: object) -> None:
    assert callable(pack)
    assert plain(pack(recorded("vllm_chat_two_choices.json")), encoding).usage == Usage(14, 8, 0)


def test_r11_a_gzip_answer_in_several_members_is_read_through() -> None:
    first, second = recorded("vllm_chat_two_choices.json")[:200], recorded("vllm_chat_two_choices.json")[200:]
    assert plain(gzip.compress(first) + gzip.compress(second), "gzip").usage == Usage(14, 8, 0)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "nonsense"])
def test_r11_an_answer_that_we_cannot_read_is_not_doubted(encoding: str) -> None:
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=encoding)
    assert relay(watcher, [b"\x00\x01"]) == b"\x00\x01"
    assert (watcher.usage_missing, watcher.is_complete, watcher.has_error, watcher.at_boundary) == (True, True, False, False)


@pytest.mark.parametrize("body", [b"plain text, not gzip", gzip.compress(b"x")[:-4] + b"junk", gzip.compress(b"{}") + b"junk"])
def test_r11_nonsense_in_a_compressed_answer_passes_and_is_not_doubted(body: bytes) -> None:
    watcher = watch(is_event_stream=True, hide_usage=False, content_encoding="gzip")
    assert relay(watcher, [body, body]) == body + body
    assert watcher.is_complete


def test_a_decompression_bomb_is_not_read() -> None:
    bomb = gzip.compress(b"data: " + b"\0" * (64 << 20), compresslevel=9)
    watcher = watch(is_event_stream=True, hide_usage=False, content_encoding="gzip")
    assert watcher.feed(bomb) is bomb
    assert watcher.is_complete  # unseen from here on


def test_a_plain_answer_beyond_the_limit_still_tells_its_usage() -> None:
    text = json.dumps('"usage":{"prompt_tokens":9,"completion_tokens":9}' * (ANSWER_LIMIT_BYTES // 20))
    usage = '{"prompt_tokens":1,"completion_tokens":2,"details":{"a":1}}'
    answer = f'{{"choices":[{{"message":{{"content":{text}}}}}],"usage":{usage}}}'
    assert plain(answer.encode()).usage == Usage(1, 2)
    assert plain(b"x" * (ANSWER_LIMIT_BYTES + 1)).usage_missing


def test_a_watcher_between_events_is_small() -> None:
    watcher = watch(is_event_stream=True, hide_usage=False, content_encoding=None)
    for event in recorded("vllm_chat_usage.txt").split(b"\n\n")[:3]:
        watcher.feed(event + b"\n\n")
    held = [watcher, *(getattr(watcher, name) for name in type(watcher).__slots__)]  # type: ignore[attr-defined]
    assert sum(sys.getsizeof(part) for part in held) < 2_000


TOKEN = '{"choices":[{"index":0,"delta":{"content":"ab"}}]}'
END = '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize(
    "events",
    [
        (TOKEN, TOKEN, END, USAGE, "[DONE]"),
        (TOKEN, f"{TOKEN},{TOKEN}", END),
        (TOKEN, '{"choices":[{"index":0', "delta]}", END),
        (TOKEN, '{"choices":{}}', '{"choices":["x",{"delta":{"content":"é"}}]}', '{"choices":[{"delta":5}]}', TOKEN),
        (TOKEN, "", "[DONE", "null", "5", '{"error":{}}', '{"error":{"message":"x"}}', END),
        ("[DONE]", TOKEN),
        ("[DONE]", "[DONE]"),
    ],
    ids=["ordinary", "two in one", "halves", "odd choices", "no events", "goes on behind its end", "ends twice"],
)
def test_many_events_in_one_read_tell_what_they_tell_one_by_one(events: tuple[str, ...], hide_usage: bool) -> None:
    at_once, one_by_one = (watch(is_event_stream=True, hide_usage=hide_usage, content_encoding=None) for _ in range(2))
    assert relay(at_once, [stream_of(*events)]) == relay(one_by_one, [stream_of(event) for event in events])
    assert facts(at_once) == facts(one_by_one)


def facts(watcher: Watcher) -> tuple[object, ...]:
    return (
        watcher.usage,
        watcher.token_events,
        watcher.text_bytes,
        watcher.has_error,
        watcher.is_complete,
        watcher.hit_cap,
        watcher.at_boundary,
    )
