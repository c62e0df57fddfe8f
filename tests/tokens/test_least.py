"""What tells that a prompt was cut behind the gate, and what does not."""

import json

import pytest

from gateway.core.request import InferenceRequest
from gateway.dialects import DIALECTS
from gateway.tokens import least
from gateway.tokens.least import MOST_BYTES, least_tokens, may_be_truncated

WORDS = "lorem ipsum dolor " * 1000


def chat(messages: list[dict[str, object]], **members: object) -> InferenceRequest:
    return DIALECTS["/v1/chat/completions"].read_request(json.dumps({"messages": messages, **members}).encode())


def completion(prompt: object, **members: object) -> InferenceRequest:
    return DIALECTS["/v1/completions"].read_request(json.dumps({"prompt": prompt, **members}).encode())


def messages(turns: list[dict[str, object]], **members: object) -> InferenceRequest:
    return DIALECTS["/v1/messages"].read_request(json.dumps({"messages": turns, **members}).encode())


def test_words_are_counted_where_every_template_renders_them() -> None:
    turns: list[dict[str, object]] = [
        {"role": "system", "content": "one two"},
        {"role": "user", "content": [{"type": "text", "text": "three  four\nfive"}, {"type": "image_url", "image_url": "x y"}]},
        {"role": "assistant", "content": "<think> not these </think>"},
        {"role": "tool", "tool_call_id": "nor this", "content": "six"},
    ]
    assert least_tokens(chat(turns)) == least_tokens(messages(turns)) == 6
    assert least_tokens(completion(["one two", "three"])) == 3


@pytest.mark.parametrize(("reported", "cut"), [(3000, False), (2048, False), (1400, True), (256, True)])
def test_a_report_of_fewer_than_half_the_words_is_of_another_text(reported: int, cut: bool) -> None:
    assert may_be_truncated(chat([{"role": "user", "content": WORDS}]), reported) is cut
    assert may_be_truncated(messages([{"role": "user", "content": WORDS}]), reported) is cut
    assert may_be_truncated(completion(WORDS), reported) is cut


def test_a_few_words_of_a_text_are_enough_to_tell_that_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = chat([{"role": ["odd"], "content": WORDS}, {"role": "user", "content": WORDS}])
    monkeypatch.setattr(least, "least_tokens", lambda request, enough: 0)
    assert may_be_truncated(asked, 256)
    assert not may_be_truncated(asked, 1400)
    assert not may_be_truncated(chat([{"role": "assistant", "content": WORDS}]), 256)


@pytest.mark.parametrize(
    "request_",
    [
        completion("a b c d"),
        completion(" " * 100_000),
        completion("-" * 100_000),
        completion(WORDS, truncate_prompt_tokens=10),
        chat([{"role": "user", "content": WORDS}], chat_template="x"),
        chat([{"role": "assistant", "content": WORDS}, {"role": "user", "content": "and?"}]),
        completion("a " * MOST_BYTES),
    ],
    ids=["short", "blanks", "dashes", "may be cut", "own template", "an answer's", "too large to look at"],
)
def test_where_nothing_is_certain_nothing_is_claimed(request_: InferenceRequest) -> None:
    assert not may_be_truncated(request_, 2)
