"""What there is to count in a chat."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.request import Prompt
from gateway.dialects import DIALECTS
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES

CHAT = DIALECTS["/v1/chat/completions"]


def prompt(messages: object, members: dict[str, object] | None = None, *, ascii_only: bool = False) -> Prompt:
    body = json.dumps({"messages": messages, **(members or {})}, ensure_ascii=ascii_only).encode()
    (read,) = CHAT.read_request(body).prompts
    return read


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_plain_text_is_counted_to_the_byte_however_it_is_escaped(ascii_only: bool) -> None:
    assert prompt(user('a "b"\n\\é中😀'), ascii_only=ascii_only).text_bytes == len('a "b"\n\\é中😀'.encode())


def test_messages_and_tools_are_counted() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    read = prompt(
        [*user("a"), {"role": "assistant", "content": None}, *user("b")], {"tools": [tool, tool], "functions": [tool]}
    )
    assert (read.messages, read.tools) == (3, 3)


@pytest.mark.parametrize(
    "member", ["tools", "functions", "documents", "response_format", "tool_choice", "chat_template_kwargs"]
)
def test_what_a_template_may_write_as_json_is_counted_with_room_for_its_indentation(member: str) -> None:
    value = [{"name": "get_weather", "schema": {"enum": list(range(50))}}]
    assert prompt(user("a"), {member: value}).text_bytes >= 2 * len(json.dumps(value, separators=(",", ":")))
    assert prompt(user("a"), {member: None}) == prompt(user("a"))


def test_every_member_of_a_message_counts_those_that_nobody_knows_too() -> None:
    plain = prompt(user("a")).text_bytes
    for member in ("name", "reasoning_content", "reasoning", "tool_call_id", "refusal", "unheard_of"):
        assert prompt([{"role": "user", "content": "a", member: "x" * 100}]).text_bytes == plain + 100
    assert prompt([{"role": "user", "content": "a", "unheard_of": {"deep": ["x" * 100, 10**40]}}]).text_bytes > plain + 140
    assert prompt([{"role": "x" * 100, "content": "a"}]).text_bytes == plain + 100


def test_the_arguments_of_a_tool_call_have_room_to_be_written_anew() -> None:
    arguments = json.dumps({"ids": [1, 2, 3], "text": "é"}, separators=(",", ":"), ensure_ascii=False)
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    read = prompt([{"role": "assistant", "content": None, "tool_calls": [call]}])
    rewritten = json.dumps({**call, "function": {"name": "f", "arguments": json.loads(arguments)}}, ensure_ascii=False)
    assert read.text_bytes >= len(rewritten.encode())


def test_a_tools_answer_has_room_to_be_put_into_json() -> None:
    answer = 'line\n"quoted"\t\\ \x1b é'
    assert prompt([{"role": "tool", "content": answer}]).text_bytes >= len(json.dumps(answer, ensure_ascii=False).encode()) - 2


@pytest.mark.parametrize("content", [{"a": 1}, 5, True])
def test_a_content_that_is_no_text_and_no_list_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        prompt(user(content))
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("messages", [[], "x", {}, None, ["x"], [None], [[]], 7])
def test_messages_that_are_no_list_of_objects_are_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        prompt(messages)
    assert refusal.value.param == "messages"


def test_media_are_told_apart_from_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 10_000, "format": "wav"}}
    read = prompt(user([{"type": "text", "text": "what?"}, picture, sound, "also text"]))
    assert (read.text_bytes, read.media_parts) == (14, 2)


def test_a_part_of_an_unknown_kind_is_counted_as_text() -> None:
    assert prompt(user([{"type": "thinking", "thinking": "x" * 100}])).text_bytes == 100


def test_a_template_of_the_callers_own_is_told() -> None:
    assert prompt(user("a"), {"chat_template": "{{ messages }}"}).has_own_template
    assert not prompt(user("a"), {"chat_template": None}).has_own_template


@pytest.mark.parametrize("content", ["\u0958" * 50, "\U0001d160" * 50, "\ufb2c\u0344", "e\u0301" * 20])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_text_that_grows_when_it_is_normalised_is_counted_as_grown(content: str, ascii_only: bool) -> None:
    grown = len(unicodedata.normalize("NFC", content).encode())
    assert prompt(user(content), ascii_only=ascii_only).text_bytes == max(grown, len(content.encode()))


def start_of(*contents: object) -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": content} for content in contents], "seed": len(contents)})
    return DIALECTS["/v1/chat/completions"].read_request(body.encode()).affinity


def test_turns_of_one_session_have_one_start_whatever_follows() -> None:
    for first in ("x" * 2000, "é" * 2000, [{"type": "text", "text": "x" * 2000}], "short"):
        assert start_of(first, "x" * 2000) == start_of(first, "x" * 2000, "more") != start_of("other", "x" * 2000)
        assert len(start_of(first, "x" * 2000)) == 1024
    assert start_of([[[[["too deep"]]]]]) == b"user"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_of_long_texts_that_are_latin_the_json_is_the_bound(ascii_only: bool) -> None:
    long = "naïve façade " * 1000
    sent = json.dumps({"messages": [*user(long), *user("é")]}, ensure_ascii=ascii_only)
    read = prompt([*user(long), *user("é")], ascii_only=ascii_only)
    assert len(long.encode()) + 2 <= read.text_bytes <= min(len(sent.encode()), 2 * len(long)) + 2
    assert prompt(user(long + "½" * 10), ascii_only=ascii_only).text_bytes == len(long.encode()) + 10 * len("1⁄2".encode())


@pytest.mark.parametrize("content", ["x", "é", "\U0001d160"])
def test_messages_too_large_to_decode_are_bounded_by_their_json(content: str) -> None:
    long = content * DECODE_LIMIT_BYTES
    read = prompt([*user(long), *user("b")])
    assert read.text_bytes >= len(unicodedata.normalize("NFC", long).encode())
    assert read.messages == 2
    assert read.media_parts == 0
    assert prompt(user([{"type": "text", "text": long}, {"type": "image_url", "image_url": "x"}])).media_parts == 1


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "odd"]), "content": st.none() | st.text(max_size=30)},
    optional={"tool_calls": JSON, "reasoning": st.text(max_size=10), "x": JSON},
)


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(MESSAGE, min_size=1, max_size=4), ascii_only=st.booleans())
def test_no_text_of_any_member_is_left_out(messages: list[dict[str, Any]], ascii_only: bool) -> None:
    def texts(value: object) -> int:
        if isinstance(value, str):
            return len(value.encode())
        if isinstance(value, dict):
            return sum(texts(each) for each in value.values())
        return sum(texts(each) for each in value) if isinstance(value, list) else 0

    rendered = sum(texts(value) for message in messages for key, value in message.items() if key != "role")
    assert prompt(messages, ascii_only=ascii_only).text_bytes >= rendered


def test_what_the_engines_counter_needs_stays_raw() -> None:
    body = b'{"messages": [ {"role":"user","content":"\\u00e9"} ],"tools":[1 ],"add_generation_prompt":false,"top_p":1}'
    assert CHAT.read_request(body).countable.chat == {
        "messages": b'[ {"role":"user","content":"\\u00e9"} ]',
        "tools": b"[1 ]",
        "add_generation_prompt": b"false",
    }
