"""llama.cpp's own completion: its caps, its prompts, its errors."""

import json
from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, InferenceRequest
from gateway.dialects import DIALECTS
from gateway.dialects.completions_prompt import COUNT_BYTES, MAX_PROMPTS
from gateway.dialects.dialect import ErrorFacts
from gateway.dialects.llama_cpp_prompt import MAX_MIXED
from gateway.tokens.bound import prompt_bound

NATIVE = DIALECTS["/completion"]
ALIAS = DIALECTS["/completions"]


def body(members: str) -> bytes:
    return b'{"prompt":"ping",' + members.encode() + b"}"


def read(prompt: Any, **members: Any) -> InferenceRequest:
    return NATIVE.read_request(json.dumps({"prompt": prompt, **members}).encode())


@pytest.mark.parametrize(
    ("members", "state", "cap_tokens"),
    [
        ('"x":1', CapState.ABSENT, None),
        ('"n_predict":-1', CapState.NULL, None),
        ('"n_predict":-2', CapState.NULL, None),
        ('"n_predict":null', CapState.NULL, None),
        ('"n_predict":5', CapState.SET, 5),
        ('"n_predict":0', CapState.SET, 1),  # one token is run nevertheless
        ('"n_predict":3,"n_predict":4', CapState.SET, 4),
        ('"max_tokens":5', CapState.SET, 5),
        ('"n_predict":3,"max_tokens":5', CapState.SET, 3),
        ('"max_tokens":5,"max_completion_tokens":7', CapState.SET, 7),
        ('"n_predict":null,"max_tokens":5', CapState.SET, 5),
        ('"n_predict":-1,"max_tokens":5', CapState.NULL, None),
        ('"max_tokens":-1,"n_predict":4', CapState.SET, 4),
        ('"n_predict":2147483647', CapState.SET, 2147483647),
    ],
)
def test_the_cap_is_the_one_that_the_engine_obeys(members: str, state: CapState, cap_tokens: int | None) -> None:
    for dialect in (NATIVE, ALIAS):
        request = dialect.read_request(body(members))
        assert (request.cap, request.cap_tokens) == (state, cap_tokens)


@pytest.mark.parametrize("value", ['"4"', "4.0", "4.7", "true", "[]", "4294967299", "1e400", "9" * 5_000])
def test_a_cap_that_the_engine_would_read_as_another_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        NATIVE.read_request(body(f'"n_predict":{value}'))
    assert refusal.value.param == "n_predict"


@pytest.mark.parametrize(
    ("members", "written"),
    [
        ('"x":1', '"x":1,"n_predict":7'),
        ('"n_predict" : -1 , "x":1', '"n_predict" : 7 , "x":1'),
        ('"n_predict":-1,"n_pr\\u0065dict":-1', '"n_predict":7,"n_pr\\u0065dict":7'),
        ('"max_tokens":-1', '"max_tokens":7'),
        ('"n_predict":-1,"max_tokens":500', '"n_predict":7,"max_tokens":7'),
    ],
)
def test_a_cap_is_written_where_the_engine_reads_it(members: str, written: str) -> None:
    assert NATIVE.write_cap(body(members), 7) == body(written)


@pytest.mark.parametrize(
    ("prompt", "bounds", "texts"),
    [
        ("ping", [6], 1),
        ("", [2], 1),
        (["a", "bc"], [3, 4], 2),
        ([1, 2, 3], [3], 0),
        ([[1, 2], [3]], [2, 1], 0),
        ([1, "abc", 2], [7], 0),
        (["a", [1, 2]], [3, 2], 0),
        ([[1, "é"], "x"], [5, 3], 0),
        ({"prompt_string": "abc"}, [5], 0),
        ([{"prompt_string": "abc"}, "x"], [5, 3], 0),
        ({"prompt_string": "a", "multimodal_data": ["AA"]}, [None], 0),
        ({"prompt_string": "a", "multimodal_data": []}, [3], 0),
        ([[]], [2], 0),
        ([7] * COUNT_BYTES, [COUNT_BYTES], 0),
        (["word " * COUNT_BYTES, "x"], [5 * COUNT_BYTES + 2, 3], 2),
        ([5, "word " * COUNT_BYTES], [5 * COUNT_BYTES + 3], 0),
    ],
    ids=range(16),
)
def test_a_list_with_an_id_in_it_is_one_prompt_and_any_other_is_many(prompt: Any, bounds: list[Any], texts: int) -> None:
    request = read(prompt)
    assert [prompt_bound(each) for each in request.prompts] == bounds
    assert len(request.countable.texts) == texts


@pytest.mark.parametrize(
    "prompt", [None, 7, True, [], [-1], [1.5], [None], [[None]], [[1, [2]]], {}, {"prompt_string": 7}, [1, {}], [[True]]]
)
def test_a_prompt_that_the_engine_does_not_take_is_refused_by_name(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(prompt)
    assert refusal.value.param == "prompt"


def test_too_much_is_refused_before_it_is_read_into_objects() -> None:
    for prompt in (["a"] * (MAX_PROMPTS + 1), [[1]] * (MAX_PROMPTS + 1), [1, "a"] * MAX_MIXED, [["a"]] * (MAX_PROMPTS + 1)):
        with pytest.raises(InvalidRequest, match=r"at most|more than"):
            read(prompt)


def test_a_body_without_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        NATIVE.read_request(b'{"n_predict":5}')


def test_samples_are_run_of_every_prompt() -> None:
    request = read(["a", "b"], n=2)
    assert (len(request.prompts), request.n) == (2, 2)
    assert read("a", n_cmpl=3).n == 3
    assert not request.is_chat


def test_both_names_of_the_route_are_one_format() -> None:
    assert (NATIVE.path, ALIAS.path) == ("/completion", "/completions")
    assert NATIVE.read_request(body('"n_predict":5')) == ALIAS.read_request(body('"n_predict":5'))


def test_an_error_is_written_as_llama_cpp_writes_its_own() -> None:
    error = json.loads(NATIVE.error_body(ErrorFacts(429, "queue_full", "full", None, {"need_blocks": 9})))["error"]
    assert error == {
        "need_blocks": 9,
        "code": 429,
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "reason": "queue_full",
    }
    event = NATIVE.error_event(ErrorFacts(504, "upstream_stall", "stalled"))
    assert event.startswith(b'data: {"error":{"code":504,')
    assert event.endswith(b"\n\n")
