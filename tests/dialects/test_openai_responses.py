"""Responses: what decides about memory is read as the engines read it, and what cannot be known is not guessed."""

import json
from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, InferenceRequest
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import ErrorFacts
from gateway.tokens.bound import prompt_bound

RESPONSES = DIALECTS["/v1/responses"]


def body(members: str) -> bytes:
    return b'{"input":"ping",' + members.encode() + b"}"


def read(**members: Any) -> InferenceRequest:
    return RESPONSES.read_request(json.dumps({"model": "tiny", "input": "ping", **members}).encode())


def refused_param(raw: bytes) -> str | None:
    with pytest.raises(InvalidRequest) as refusal:
        RESPONSES.read_request(raw)
    return refusal.value.param


@pytest.mark.parametrize(
    ("members", "state", "cap_tokens"),
    [
        ('"x":1', CapState.ABSENT, None),
        ('"max_output_tokens":null', CapState.NULL, None),
        ('"max_output_tokens":5', CapState.SET, 5),
        ('"max_output_tokens":1,"max_output_tokens":5', CapState.SET, 5),
        ('"max_output\\u005ftokens":5', CapState.SET, 5),
        ('"max_tokens":5', CapState.ABSENT, None),  # no cap to vLLM
        ('"max_output_tokens":5,"max_tokens":9', CapState.SET, 5),
        ('"max_output_tokens":5,"max_completion_tokens":9', CapState.SET, 9),  # vLLM runs 5, llama.cpp 9
        ('"max_output_tokens":5,"n_predict":9', CapState.SET, 9),
        ('"max_output_tokens":9,"n_predict":5', CapState.SET, 9),
        ('"n_predict":5', CapState.ABSENT, None),
    ],
)
def test_the_cap_is_never_below_what_an_engine_obeys(members: str, state: CapState, cap_tokens: int | None) -> None:
    request = RESPONSES.read_request(body(members))
    assert (request.cap, request.cap_tokens) == (state, cap_tokens)


@pytest.mark.parametrize("value", ["0", "-1", '"240"', "240.0", "true", "[]", "1e400", "9" * 5_000, "2147483648"])
def test_a_cap_of_odd_value_is_refused_by_name(value: str) -> None:
    assert refused_param(body(f'"max_output_tokens":{value}')) == "max_output_tokens"


def test_a_cap_that_another_member_lifts_is_refused() -> None:
    assert refused_param(body('"max_output_tokens":5,"n_predict":-1')) == "n_predict"


@pytest.mark.parametrize(
    ("members", "written"),
    [
        ('"x":1', '"x":1,"max_output_tokens":7'),
        ('"max_output_tokens" : null , "x":1', '"max_output_tokens" : 7 , "x":1'),
        ('"max_output_tokens":null,"max_output\\u005ftokens":null', '"max_output_tokens":7,"max_output\\u005ftokens":7'),
        ('"max_tokens":9', '"max_tokens":9,"max_output_tokens":7'),
        ('"n_predict":-1', '"n_predict":7,"max_output_tokens":7'),
        ('"max_output_tokens":null,"max_completion_tokens":50', '"max_output_tokens":7,"max_completion_tokens":7'),
        ('"text":{"max_output_tokens":null}', '"text":{"max_output_tokens":null},"max_output_tokens":7'),
        ('"big":' + "9" * 5_000, '"big":' + "9" * 5_000 + ',"max_output_tokens":7'),
    ],
)
def test_a_cap_is_written_where_the_engine_reads_it_and_nowhere_twice(members: str, written: str) -> None:
    assert RESPONSES.write_cap(body(members), 7) == body(written)


def test_an_answer_in_the_background_is_refused_for_nothing_could_hold_its_memory() -> None:
    assert refused_param(body('"background":true')) == "background"
    assert not read(background=False).stream


@pytest.mark.parametrize(
    "members",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": {"id": "conv_1"}},
        {"prompt": {"id": "pmpt_1"}},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]},
        {"tools": [{"type": "web_search_preview"}]},
        {"tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
        {"input": [{"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}}]},
    ],
    ids=lambda members: next(iter(members)),
)
def test_a_prompt_that_is_not_all_in_the_body_has_no_bound(members: dict[str, Any]) -> None:
    (prompt,) = read(**members).prompts
    assert prompt.media_parts
    assert prompt_bound(prompt) is None


@pytest.mark.parametrize(
    "members",
    [
        {"previous_response_id": None},
        {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]},
        {"tools": []},
        {"tools": None},
        {"store": True},
    ],
)
def test_what_is_all_in_the_body_is_bounded(members: dict[str, Any]) -> None:
    assert prompt_bound(read(**members).prompts[0]) is not None


def test_all_that_a_template_renders_raises_the_bound() -> None:
    def bound(**members: Any) -> int:
        tokens = prompt_bound(read(**members).prompts[0])
        assert tokens is not None
        return tokens

    plain = bound()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert bound(instructions="Be brief.") >= plain + 9
    assert bound(tools=[{"type": "function", "name": "f", "parameters": schema}]) >= plain + len(json.dumps(schema))
    assert bound(text={"format": {"type": "json_schema", "name": "x", "schema": schema}}) >= plain + len(json.dumps(schema))
    assert bound(reasoning={"effort": "high"}) > plain
    assert bound(previous_input_messages=[{"role": "user", "content": "x" * 100}]) >= plain + 100


def test_samples_are_those_that_llama_cpp_runs() -> None:
    assert (read().n, read(n=3).n, read(n_cmpl=2).n) == (1, 3, 2)


@pytest.mark.parametrize("tools", [7, "f", {}, [7]])
def test_tools_that_are_no_list_of_objects_are_refused(tools: Any) -> None:
    assert refused_param(json.dumps({"input": "a", "tools": tools}).encode()) == "tools"


@pytest.mark.parametrize(("truncation", "may_be_cut"), [("auto", True), (None, True), ("disabled", False)])
def test_a_prompt_that_the_engine_may_cut_is_not_counted_exactly(truncation: str | None, may_be_cut: bool) -> None:
    request = read(truncation=truncation)
    assert request.prompts[0].may_be_cut is may_be_cut
    assert (request.countable.chat is None) is may_be_cut
    assert (request.countable.responses is None) is may_be_cut


def chat(**members: Any) -> dict[str, Any] | None:
    """The chat of which vLLM counts the tokens."""
    found = read(**members).countable.chat
    return None if found is None else {name: json.loads(raw) for name, raw in found.items()}


def test_the_chat_that_vllm_counts_begins_as_the_route_does() -> None:
    assert chat(instructions="Be brief.") == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ping"}],
        "add_special_tokens": True,
    }


def test_functions_and_effort_are_counted_with_it() -> None:
    function = {"name": "f", "description": "does", "parameters": {"type": "object"}, "strict": None}
    found = chat(tools=[{"type": "function", **function}], reasoning={"effort": "low"}, chat_template_kwargs={"a": 1})
    assert found is not None
    assert found["tools"] == [{"type": "function", "function": function}]
    assert (found["reasoning_effort"], found["chat_template_kwargs"]) == ("low", {"a": 1})


def test_that_chat_is_made_when_it_is_asked_for_and_once() -> None:
    countable = read(instructions="Be brief.").countable
    assert countable.chat is not None
    assert countable.chat is countable.chat


@pytest.mark.parametrize(
    "members",
    [
        {"tool_choice": "none"},
        {"tools": [{"type": "custom", "name": "c"}]},
        {"model": "openai/gpt-oss-20b"},
        {"previous_input_messages": [{"role": "user"}]},
        {"input": []},
    ],
)
def test_where_vllm_may_render_otherwise_it_is_not_asked(members: dict[str, Any]) -> None:
    assert chat(**members) is None


def test_llama_cpp_counts_the_body_itself() -> None:
    items = [{"role": "user", "content": "a"}]
    counted = read(input=items, instructions="Be brief.", stream=True, max_output_tokens=5).countable.responses
    assert counted is not None
    assert {name: json.loads(raw) for name, raw in counted.items()} == {"input": items, "instructions": "Be brief."}


def test_calls_make_the_count_a_close_bound() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    answer = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    assert read().countable.slack_tokens == 0
    assert read(input=[call, answer, call, answer]).countable.slack_tokens == 2 * read(input=[call]).countable.slack_tokens > 0


def test_the_session_key_decides_the_place_else_instructions_and_input() -> None:
    assert read(prompt_cache_key="s1").affinity == b'"s1"'
    assert read().affinity == b'"ping"'
    assert read(instructions="Be brief.").affinity == b'Be brief."ping"'
    assert len(read(instructions="é" * 5_000).affinity) <= 1_024


def test_our_error_event_is_the_formats_own_with_the_object_that_sdks_raise_on() -> None:
    name, data = RESPONSES.error_event(ErrorFacts(504, "upstream_stall", "stalled")).rstrip().split(b"\n")
    event = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: error"
    assert (event["type"], event["code"], event["message"], event["param"]) == ("error", "upstream_stall", "stalled", None)
    assert event["error"]["code"] == "upstream_stall"
    assert type(event["sequence_number"]) is int
