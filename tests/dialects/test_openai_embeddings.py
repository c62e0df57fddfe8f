"""Embeddings: prompts in all their shapes, and nothing that is written."""

import gzip
import json
from typing import Any

import pytest

from gateway.core.demand import Usage
from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, InferenceRequest
from gateway.dialects import DIALECTS
from gateway.dialects.completions_prompt import COUNT_BYTES, MAX_PROMPTS
from gateway.dialects.dialect import Watcher
from gateway.dialects.openai_watcher import ANSWER_LIMIT_BYTES
from gateway.tokens.bound import prompt_bound
from support.answers import cut, recorded, relay

EMBEDDINGS = DIALECTS["/v1/embeddings"]
CHAT = [{"role": "user", "content": "hi"}]


def read(**members: Any) -> InferenceRequest:
    return EMBEDDINGS.read_request(json.dumps(members).encode())


@pytest.mark.parametrize(
    ("value", "text_bytes", "token_ids"),
    [
        ("ping", [4], [None]),
        ("", [0], [None]),
        (["a", "é"], [1, 2], [None, None]),
        ([1, 2, 3], [0], [3]),
        ([[1, 2], [3]], [0, 0], [2, 1]),
        (CHAT, [2], [None]),
        ([CHAT, CHAT], [2, 2], [None, None]),
        ([[7] * COUNT_BYTES, [1]], [0, 0], [COUNT_BYTES, 1]),
    ],
    ids=range(8),
)
def test_every_input_is_a_prompt_of_its_own(value: Any, text_bytes: list[int], token_ids: list[int | None]) -> None:
    request = read(input=value)
    assert [prompt.text_bytes for prompt in request.prompts] == text_bytes
    assert [prompt.token_ids for prompt in request.prompts] == token_ids


@pytest.mark.parametrize("value", [[], [[]], [1, "a"], [[1], []], 7, {}, None, [None], [[CHAT]], [[1.5]], [True]])
def test_an_input_that_is_none_of_them_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(input=value)
    assert refusal.value.param in ("input", "messages")


def test_too_many_inputs_are_refused() -> None:
    for value in (["a"] * (MAX_PROMPTS + 1), [[1]] * (MAX_PROMPTS + 1), [CHAT] * (MAX_PROMPTS + 1)):
        with pytest.raises(InvalidRequest, match="at most"):
            read(input=value)


def test_a_body_without_any_input_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        read(model="tiny")


def test_vllms_chats_are_read_as_chats_and_both_are_held_where_both_stand() -> None:
    (alone,) = read(messages=CHAT).prompts
    assert (alone.text_bytes, alone.messages) == (2, 1)
    assert len(read(messages=[CHAT, CHAT]).prompts) == 2
    assert [prompt.messages for prompt in read(input="ping", messages=CHAT).prompts] == [0, 1]
    (seen,) = read(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "d"}}]}]).prompts
    assert seen.media_parts == 1


def test_nothing_is_written() -> None:
    request = read(input="ping", max_tokens=50, stream=True)
    assert request.is_prompt_only
    assert (request.cap, request.cap_tokens, request.stream) == (CapState.SET, 1, False)
    assert (request.prompt_param, read(messages=CHAT).prompt_param) == ("input", "messages")


def test_texts_can_be_counted_exactly_and_chats_are_not() -> None:
    assert read(input=["a", 'é"']).countable.texts == (b'"a"', '"é\\""'.encode())
    assert read(input=[1, 2]).countable.texts == ()
    assert read(messages=CHAT).countable.texts == ()
    assert read(input="a", messages=CHAT).countable.texts == ()


def test_a_prompt_that_the_engine_cuts_is_bounded_and_one_that_it_pads_is_not() -> None:
    (cut_ids,) = read(input=[1, 2, 3], truncate_prompt_tokens=2).prompts
    assert (cut_ids.token_ids, cut_ids.may_be_cut) == (None, True)
    assert (prompt_bound(cut_ids) or 0) >= 3
    assert read(input="a", truncate_prompt_tokens=2).countable.texts == ()
    assert prompt_bound(read(input="a", padding="max_length").prompts[0]) is None
    assert prompt_bound(read(input="a", padding="do_not_pad").prompts[0]) is not None


def watched(answer: bytes) -> Watcher:
    watcher = EMBEDDINGS.watcher(is_event_stream=False, hide_usage=False, content_encoding=None)
    assert relay(watcher, cut(answer, range(9_000, len(answer), 9_000))) == answer
    return watcher


@pytest.mark.parametrize("at_end", [True, False])
def test_usage_is_found_before_or_behind_vectors_of_any_size(at_end: bool) -> None:
    vector = ",".join(["-0.0123456789"] * (ANSWER_LIMIT_BYTES // 10))
    usage = b'"usage":{"prompt_tokens":7,"total_tokens":7}'
    data = b'"data":[{"embedding":[' + vector.encode() + b"]}]"
    answer = b"{" + b",".join((data, usage) if at_end else (usage, data)) + b"}"
    assert len(answer) > ANSWER_LIMIT_BYTES
    assert watched(answer).usage == Usage(7, 0)


def test_an_engines_refusal_is_an_error_and_nonsense_is_nothing() -> None:
    for engine in ("vllm", "llama_cpp"):
        watcher = watched(recorded(f"{engine}_embedder_embeddings_refused.json"))
        assert (watcher.has_error, watcher.usage) == (True, None)
    for answer in (b"", b"[]", b"\x00\x01", b'{"usage":7}', b'{"usage":{"prompt_tokens":-1}}'):
        assert watched(answer).usage is None


def test_a_compressed_answer_is_read_in_a_copy() -> None:
    answer = gzip.compress(recorded("vllm_embedder_embeddings_text.json"))
    watcher = EMBEDDINGS.watcher(is_event_stream=False, hide_usage=False, content_encoding="gzip")
    assert relay(watcher, [answer]) == answer
    assert watcher.usage == Usage(15, 0)
