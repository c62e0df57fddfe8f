"""Prompts of /v1/completions: texts, token ids, and lists of them."""

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.request import InferenceRequest
from gateway.dialects import DIALECTS

COMPLETIONS = DIALECTS["/v1/completions"]


def read(members: str) -> InferenceRequest:
    return COMPLETIONS.read_request(b"{" + members.encode() + b"}")


@pytest.mark.parametrize(
    ("prompt", "text_bytes", "token_ids"),
    [
        ('"ping"', [4], [None]),
        ('""', [0], [None]),
        ('"\\u00e9é中\\n"', [8], [None]),
        ('["a","bc",""]', [1, 2, 0], [None, None, None]),
        ("[0]", [0], [1]),
        ("[1,2,3]", [0], [3]),
        ("[[1,2],[3]]", [0, 0], [2, 1]),
    ],
)
def test_p3_every_prompt_is_counted_in_its_own_terms(prompt: str, text_bytes: list[int], token_ids: list[int | None]) -> None:
    prompts = read(f'"prompt":{prompt}').prompts
    assert [each.text_bytes for each in prompts] == text_bytes
    assert [each.token_ids for each in prompts] == token_ids
    assert all(each.messages == 0 for each in prompts)


@pytest.mark.parametrize(
    "prompt",
    [
        "[]",
        "[[]]",
        "[[1],[]]",
        "[-1]",
        "[[-1]]",
        '["a",1]',
        '[1,"a"]',
        "[1,[2]]",
        '["a",["b"]]',
        '[["a"]]',
        "[true]",
        "[1.0]",
        "[null]",
        "[[[1]]]",
        "{}",
        "7",
        "true",
        "null",
    ],
)
def test_p3_a_prompt_that_is_neither_is_refused_by_name(prompt: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(f'"prompt":{prompt}')
    assert refusal.value.param == "prompt"


def test_a_body_without_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        read('"max_tokens":5')


def test_texts_can_be_counted_exactly_and_ids_need_not_be() -> None:
    assert read('"prompt":["a","\\u00e9\\""]').countable.texts == (b'"a"', '"é\\""'.encode())
    assert read('"prompt":[1,2]').countable.texts == ()


def test_a_suffix_is_part_of_the_prompt_and_beyond_the_engines_counter() -> None:
    request = read('"prompt":"ab","suffix":"cde"')
    assert request.prompts[0].text_bytes == 5
    assert request.countable.texts == ()


def test_prompts_as_tensors_have_no_bound() -> None:
    prompts = read('"prompt":"a","prompt_embeds":["gASV","gASV"]').prompts
    assert [each.media_parts for each in prompts] == [0, 1, 1]
    assert [each.media_parts for each in read('"prompt_embeds":"gASV"').prompts] == [1]


def test_the_start_of_the_first_prompt_decides_the_place() -> None:
    assert read('"prompt":["abc","d"]').affinity == b"abc"
    assert read('"prompt":[[1,2],[3]]').affinity == b"[1,2]"
    assert len(read('"prompt":"' + "é" * 5_000 + '"').affinity) <= 2_048
