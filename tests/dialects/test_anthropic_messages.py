"""What decides about memory in a Messages body, read strictly and as the engines read it; and the one edit."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, InferenceRequest
from gateway.dialects import DIALECTS

MESSAGES = DIALECTS["/v1/messages"]


def body(members: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"ping"}],' + members.encode() + b"}"


def read(members: str) -> InferenceRequest:
    return MESSAGES.read_request(body(members))


def refused_param(members: str) -> str | None:
    with pytest.raises(InvalidRequest) as refusal:
        read(members)
    return refusal.value.param


ODD = ["0", "-1", '"240"', "240.5", "240.0", "1e3", "true", "false", "[]", "{}", "1" + "0" * 30, "9" * 5_000, "1e400"]


@pytest.mark.parametrize("value", ODD)
def test_a_cap_of_odd_value_is_refused_by_name(value: str) -> None:
    assert refused_param(f'"max_tokens":{value}') == "max_tokens"


@pytest.mark.parametrize("value", ['"false"', "1", "0", "[]"])
def test_a_flag_that_is_no_boolean_is_refused_by_name(value: str) -> None:
    assert refused_param(f'"stream":{value}') == "stream"


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "thinking"])
@pytest.mark.parametrize("value", ["1e400", "9" * 5_000, '"' + "x" * 2_000_000 + '"'], ids=["inf", "digits", "megabytes"])
def test_a_number_that_no_engine_can_hold_is_refused_by_name(name: str, value: str) -> None:
    assert refused_param(f'"{name}":{value}') == name


@pytest.mark.parametrize(
    "members",
    ['"x":"%s"', '"%s":1', '"system":"%s"', '"tools":[{"name":"%s"}]', '"messages":[{"role":"user","content":"%s"}]'],
)
@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "x\\ud83dx"])
def test_p5_half_an_emoji_is_refused_wherever_it_stands(members: str, half: str) -> None:
    refused_param(members % half)


@pytest.mark.parametrize(
    ("members", "state", "cap_tokens"),
    [
        ('"x":1', CapState.ABSENT, None),
        ('"max_tokens":null', CapState.NULL, None),
        ('"max_tokens":5', CapState.SET, 5),
        ('"max_tokens":2147483647', CapState.SET, 2147483647),
        ('"max_tokens":1,"max_tokens":5', CapState.SET, 5),
        ('"max\\u005ftokens":5', CapState.SET, 5),
        # Neither vLLM nor llama.cpp looks at these here (measured).
        ('"max_tokens":5,"n":3,"max_completion_tokens":9,"n_predict":-1', CapState.SET, 5),
        # What is thought counts into the cap: vLLM refuses a budget that does not fit, llama.cpp ends at the cap (measured).
        ('"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1500}', CapState.SET, 2000),
        ('"max_tokens":6,"thinking":{"type":"enabled","budget_tokens":1024}', CapState.SET, 6),
    ],
)
def test_the_cap_is_the_one_member_that_engines_obey(members: str, state: CapState, cap_tokens: int | None) -> None:
    request = read(members)
    assert (request.cap, request.cap_tokens) == (state, cap_tokens)
    assert (request.n, request.best_of) == (1, 1)


def test_usage_is_not_asked_for_since_every_stream_brings_it() -> None:
    streamed = body('"stream":true,"max_tokens":4')
    assert MESSAGES.read_request(streamed).stream
    assert MESSAGES.ask_usage(streamed, MESSAGES.read_request(streamed)) is streamed
    assert not read('"stream":null').stream


@pytest.mark.parametrize(
    ("members", "written"),
    [
        ('"x":1', '"x":1,"max_tokens":7'),
        ('"max_tokens" : null , "x":1', '"max_tokens" : 7 , "x":1'),
        ('"max_tokens":null,"max\\u005ftokens":null', '"max_tokens":7,"max\\u005ftokens":7'),
        ('"n_predict":-1', '"n_predict":-1,"max_tokens":7'),
        ('"metadata":{"max_tokens":null}', '"metadata":{"max_tokens":null},"max_tokens":7'),
        ('"big":' + "9" * 5_000, '"big":' + "9" * 5_000 + ',"max_tokens":7'),
    ],
)
def test_a_cap_is_written_where_the_engine_reads_it_and_nowhere_twice(members: str, written: str) -> None:
    assert MESSAGES.write_cap(body(members), 7) == body(written)


TEXT = st.text(alphabet=st.sampled_from('ab"\\{}[],: \n\té中😀'), max_size=6)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
# Of members with the same key json, msgspec and every engine take the last; escaped keys are the same keys.
KEY = st.sampled_from(['"max_tokens"', '"max\\u005ftokens"', '"max_token\\u0073"', '"x"', '"\\u0078"', '"\\\\"', '"metadata"'])


@settings(max_examples=400, deadline=None)
@given(
    members=st.lists(st.tuples(KEY, VALUE | st.just(None)), max_size=6),
    ascii_only=st.booleans(),
    gap=st.sampled_from(["", " "]),
)
def test_what_an_engine_reads_of_an_edited_body_differs_in_its_cap_only(
    members: list[tuple[str, Any]], ascii_only: bool, gap: str
) -> None:
    pairs = [f"{key}{gap}:{gap}{json.dumps(value, ensure_ascii=ascii_only)}" for key, value in members]
    written = ("{" + ",".join([*pairs, '"messages":[{"content":"\\u00e9"}]']) + gap + "}").encode()
    edited = MESSAGES.write_cap(written, 7)
    asked = json.loads(written)
    assert json.loads(edited) == asked | {"max_tokens": 7}
    keys: list[str] = []
    json.loads(edited, object_pairs_hook=lambda found: keys.extend(key for key, _ in found))
    were: list[str] = []
    json.loads(written, object_pairs_hook=lambda found: were.extend(key for key, _ in found))
    assert keys.count("max_tokens") == max(1, were.count("max_tokens")), "no key comes to stand twice"


def test_the_start_of_the_conversation_decides_the_place() -> None:
    assert read('"x":1').affinity == b'[{"role":"user","content":"ping"}]'
    assert read('"system":"be brief"').affinity == b'"be brief"[{"role":"user","content":"ping"}]'
    assert len(read('"system":"' + "s" * 5_000 + '"').affinity) == 1_024


def test_what_the_engines_counter_needs_stays_raw() -> None:
    request = read(
        '"system": "x" ,"tools":[ {"name":"t"}],"thinking":{"type":"disabled"},"max_tokens":4,"stream":true,"top_k":3'
    )
    assert request.countable.anthropic == {
        "messages": b'[{"role":"user","content":"ping"}]',
        "system": b'"x"',
        "tools": b'[ {"name":"t"}]',
        "thinking": b'{"type":"disabled"}',
    }
