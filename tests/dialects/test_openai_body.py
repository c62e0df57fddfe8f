"""Caps, samples and flags: what decides about memory is read strictly, and as the engines read it."""

import json

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, InferenceRequest
from gateway.dialects import DIALECTS

CHAT = DIALECTS["/v1/chat/completions"]
COMPLETIONS = DIALECTS["/v1/completions"]


def chat(members: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"ping"}],' + members.encode() + b"}"


def completions(members: str) -> bytes:
    return b'{"prompt":"ping",' + members.encode() + b"}"


def refused_param(body: bytes) -> str | None:
    dialect = CHAT if b'"messages"' in body else COMPLETIONS
    with pytest.raises(InvalidRequest) as refusal:
        dialect.read_request(body)
    return refusal.value.param


ODD = ["0", "-1", "-9999", '"240"', '"1_000"', "240.5", "240.0", "1e3", "true", "false", "[]", "{}", "1" + "0" * 30, "1e400"]


@pytest.mark.parametrize("value", [*ODD, "9" * 5_000])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n", "best_of"])
def test_p2_a_cap_or_a_number_of_samples_of_odd_value_is_refused_by_name(name: str, value: str) -> None:
    assert refused_param(chat(f'"{name}":{value}')) == name
    if name != "max_completion_tokens":
        assert refused_param(completions(f'"{name}":{value}')) == name


@pytest.mark.parametrize("value", ['"false"', '"true"', "1", "0", "[]", "1.0"])
@pytest.mark.parametrize("name", ["stream", "use_beam_search"])
def test_p2_a_flag_that_is_no_boolean_is_refused_by_name(name: str, value: str) -> None:
    assert refused_param(chat(f'"{name}":{value}')) == name
    assert refused_param(completions(f'"{name}":{value}')) == name


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("name", ["max_tokens", "temperature", "unheard_of"])
def test_p4_what_is_not_json_is_refused_wherever_it_stands(name: str, value: str) -> None:
    refused_param(chat(f'"{name}":{value}'))
    refused_param(completions(f'"{name}":[{value}]'))


@pytest.mark.parametrize("value", ["1e400", "-1e999", "9" * 5_000])
@pytest.mark.parametrize(
    "name",
    ["temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "priority"],
)
def test_p4_a_number_that_no_engine_can_hold_is_refused_by_name(name: str, value: str) -> None:
    assert refused_param(chat(f'"{name}":{value}')) == name


def test_a_sampling_value_of_another_type_is_the_engines_affair() -> None:
    assert CHAT.read_request(chat('"temperature":"0.5","seed":1.0,"top_k":null')).n == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"messages":[{"role":"user","content":"%s"}]}',
        '{"messages":[{"role":"%s","content":"a"}]}',
        '{"messages":[],"tools":[{"function":{"name":"%s"}}]}',
        '{"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"%s"}}]}',
        '{"messages":[{"role":"user","content":"a"}],"model":"%s"}',
        '{"messages":[{"role":"user","content":"a"}],"user":"%s"}',
        '{"messages":[{"role":"user","content":"a"}],"%s":1}',
        '{"prompt":"%s"}',
        '{"prompt":["%s"]}',
        '{"prompt":"a","stop":["%s"]}',
    ],
)
@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d\\ud83d", "x\\ud83dx"])
def test_p5_half_an_emoji_is_refused_wherever_it_stands(body: str, half: str) -> None:
    refused_param((body % half).encode())


@pytest.mark.parametrize(
    ("members", "state", "cap_tokens"),
    [
        ('"x":1', CapState.ABSENT, None),
        ('"max_tokens":null', CapState.NULL, None),
        ('"max_completion_tokens":null', CapState.NULL, None),
        ('"max_tokens":5', CapState.SET, 5),
        ('"max_tokens":2147483647', CapState.SET, 2147483647),
        ('"max_tokens":6,"max_completion_tokens":3', CapState.SET, 3),
        ('"max_completion_tokens":6,"max_tokens":3', CapState.SET, 6),
        ('"max_tokens":6,"max_completion_tokens":null', CapState.SET, 6),
        ('"max_tokens":null,"max_completion_tokens":3', CapState.SET, 3),
        ('"max_tokens":1,"max_tokens":5', CapState.SET, 5),
        ('"max_tokens":5,"max_tokens":null', CapState.NULL, None),
        ('"max\\u005ftokens":5', CapState.SET, 5),
        ('"max_tokens":5,"n_predict":9', CapState.SET, 9),
        ('"max_tokens":9,"n_predict":5', CapState.SET, 9),
        ('"n_predict":5', CapState.ABSENT, None),
    ],
)
def test_the_cap_of_a_chat_is_the_one_that_engines_obey(members: str, state: CapState, cap_tokens: int | None) -> None:
    request = CHAT.read_request(chat(members))
    assert (request.cap, request.cap_tokens) == (state, cap_tokens)


@pytest.mark.parametrize(
    ("members", "state", "cap_tokens"),
    [
        ('"x":1', CapState.ABSENT, None),
        ('"max_tokens":null', CapState.NULL, None),
        ('"max_tokens":3,"max_completion_tokens":6', CapState.SET, 6),  # vLLM runs 3, llama.cpp 6
        ('"max_tokens":6,"max_completion_tokens":3', CapState.SET, 6),
        ('"max_completion_tokens":3', CapState.ABSENT, None),  # no cap to vLLM
        ('"max_tokens":0,"echo":true', CapState.SET, 1),  # one token is run nevertheless
    ],
)
def test_the_cap_of_completions_is_never_below_what_an_engine_obeys(
    members: str, state: CapState, cap_tokens: int | None
) -> None:
    request = COMPLETIONS.read_request(completions(members))
    assert (request.cap, request.cap_tokens) == (state, cap_tokens)


def test_a_cap_of_zero_is_legal_only_where_the_prompt_is_echoed() -> None:
    assert refused_param(completions('"max_tokens":0')) == "max_tokens"
    assert refused_param(completions('"max_tokens":0,"echo":false')) == "max_tokens"
    assert refused_param(chat('"max_tokens":0,"echo":true')) == "max_tokens"


def test_a_cap_that_another_member_lifts_is_refused() -> None:
    assert refused_param(chat('"max_tokens":5,"n_predict":-1')) == "n_predict"


@pytest.mark.parametrize(
    ("members", "n", "best_of"),
    [
        ('"n":null', 1, 1),
        ('"n":4', 4, 1),
        ('"n":2,"best_of":5', 2, 5),
        ('"n":1,"n_cmpl":3', 3, 1),
        ('"use_beam_search":true,"n":4', 4, 1),
    ],
)
def test_samples_are_n_or_the_width_of_the_beam(members: str, n: int, best_of: int) -> None:
    for request in (CHAT.read_request(chat(members)), COMPLETIONS.read_request(completions(members))):
        assert (request.n, request.best_of) == (n, best_of)


def test_more_samples_than_vllm_takes_are_refused() -> None:
    assert CHAT.read_request(chat('"n":16384')).n == 16_384
    assert refused_param(chat('"n":16385')) == "n"


def test_a_stream_of_null_is_no_stream() -> None:
    assert not CHAT.read_request(chat('"stream":null')).stream
    assert CHAT.read_request(chat('"stream":true')).stream


@pytest.mark.parametrize(
    ("options", "wants"),
    [("null", False), ("{}", False), ('{"include_usage":false}', False), ('{"include_usage":true,"other":[1]}', True)],
)
def test_usage_is_wanted_when_the_caller_asks_for_it(options: str, wants: bool) -> None:
    assert CHAT.read_request(chat(f'"stream":true,"stream_options":{options}')).wants_usage is wants


@pytest.mark.parametrize("options", ["5", '"x"', "[]", '{"include_usage":1}', '{"include_usage":"true"}'])
def test_odd_stream_options_are_refused(options: str) -> None:
    assert refused_param(chat(f'"stream_options":{options}')) == "stream_options"


def affinity(members: str) -> bytes:
    request: InferenceRequest = CHAT.read_request(chat(members))
    return request.affinity


def test_a_session_key_decides_the_place_else_the_start_of_the_messages() -> None:
    assert affinity('"prompt_cache_key":"s1","session_id":"s2"') == b'"s1"'
    assert affinity('"prompt_cache_key":null,"session_id":"s2"') == b'"s2"'
    assert affinity('"user":"everybody"') == b"userping"
    assert len(affinity('"session_id":"' + "s" * 5_000 + '"')) == 1_024


@pytest.mark.parametrize(
    ("members", "written"),
    [
        ('"x":1', '"x":1,"max_tokens":7'),
        ('"max_tokens" : null , "x":1', '"max_tokens" : 7 , "x":1'),
        ('"max_completion_tokens":null', '"max_completion_tokens":7'),
        ('"max_tokens":9,"max_completion_tokens":null', '"max_tokens":7,"max_completion_tokens":7'),
        ('"max_tokens":null,"max\\u005ftokens":null', '"max_tokens":7,"max\\u005ftokens":7'),
        ('"n_predict":-1', '"n_predict":7,"max_tokens":7'),
        ('"n_predict":50', '"n_predict":7,"max_tokens":7'),
        ('"n_predict":5', '"n_predict":5,"max_tokens":7'),
        ('"metadata":{"max_tokens":null}', '"metadata":{"max_tokens":null},"max_tokens":7'),
        ('"big":' + "9" * 5_000, '"big":' + "9" * 5_000 + ',"max_tokens":7'),
    ],
)
def test_a_cap_is_written_where_the_engine_reads_it_and_nowhere_twice(members: str, written: str) -> None:
    assert CHAT.write_cap(chat(members), 7) == chat(written)


def test_p5_a_body_with_half_an_emoji_survives_the_edits_untouched() -> None:
    body = chat('"user":"x"').replace(b"ping", b"\\ud83d")
    with pytest.raises(InvalidRequest):
        CHAT.read_request(body)


def test_continuous_usage_is_not_switched_on_behind_the_callers_back() -> None:
    body = chat('"stream":true,"stream_options":{"continuous_usage_stats":true}')
    assert CHAT.ask_usage(body, CHAT.read_request(body)) == body


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("null", '{"include_usage":true}'),
        ("{}", '{"include_usage":true}'),
        ('{ "a" : 1 }', '{ "a" : 1 ,"include_usage":true}'),
        ('{"include_usage": false, "a":1}', '{"include_usage": true, "a":1}'),
        ('{"include_us\\u0061ge":null}', '{"include_us\\u0061ge":true}'),
    ],
)
def test_r9_other_stream_options_stay_when_usage_is_asked_for(options: str, asked: str) -> None:
    body = chat(f'"stream":true, "stream_options" : {options} , "x":"\\u00e9"')
    edited = CHAT.ask_usage(body, CHAT.read_request(body))
    assert edited == chat(f'"stream":true, "stream_options" : {asked} , "x":"\\u00e9"')
    assert json.loads(edited)["stream_options"]["include_usage"] is True
