"""What there is to count in a Messages body."""

import base64
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.request import MediaKind, Prompt
from gateway.dialects import DIALECTS
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES

MESSAGES = DIALECTS["/v1/messages"]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (64).to_bytes(4, "big") + (32).to_bytes(4, "big")).decode()


def prompt(messages: object, members: dict[str, object] | None = None, *, ascii_only: bool = False) -> Prompt:
    body = json.dumps({"messages": messages, **(members or {})}, ensure_ascii=ascii_only).encode()
    (read,) = MESSAGES.read_request(body).prompts
    return read


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("wrap", [lambda words: words, lambda words: [text(words)]], ids=["text", "block"])
def test_plain_text_is_counted_to_the_byte_however_it_is_escaped(ascii_only: bool, wrap: Any) -> None:
    words = 'a "b"\n\\é中😀'
    assert 0 <= prompt(user(wrap(words)), ascii_only=ascii_only).text_bytes - len(words.encode()) <= 1


def test_the_system_text_is_a_message_as_text_and_as_blocks() -> None:
    plain = prompt(user("a"))
    for system in ("x" * 100, [text("x" * 60), text("x" * 40) | {"cache_control": {"type": "ephemeral"}}]):
        read = prompt(user("a"), {"system": system})
        assert 100 <= read.text_bytes - plain.text_bytes <= 102
        assert read.messages == plain.messages + 1
    assert prompt(user("a"), {"system": None}) == prompt(user("a"), {"system": ""}) == plain


@pytest.mark.parametrize("member", ["tools", "tool_choice", "output_config", "chat_template_kwargs"])
def test_what_a_template_may_write_as_json_is_counted_with_room_for_its_indentation(member: str) -> None:
    value = [{"name": "get_weather", "input_schema": {"enum": list(range(50))}}]
    assert prompt(user("a"), {member: value}).text_bytes >= 2 * len(json.dumps(value, separators=(",", ":")))
    assert prompt(user("a"), {member: None}) == prompt(user("a"))


@pytest.mark.parametrize("tool", [{"name": "t", "input_schema": {}}, {"name": "t", "description": "é", "input_schema": {}}])
def test_a_tool_has_room_for_the_form_in_which_engines_hand_it_to_the_template(tool: dict[str, object]) -> None:
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": {"type": "object"}}
    rendered = json.dumps({"type": "function", "function": function}, ensure_ascii=False)
    read = prompt(user("a"), {"tools": [tool] * 3})
    assert read.tools == 3
    assert read.text_bytes - 1 >= 3 * len(rendered.encode())


def test_a_call_and_its_answer_are_messages_of_their_own_with_room_for_their_json() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"ids": [1, 2, 3], "text": 'é"'}}
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": 'line\n"quoted"\t\\ \x1b é'}
    read = prompt([{"role": "assistant", "content": [call]}, *user([answer, text("and?")])])
    assert read.messages == 4
    function = {"name": "f", "arguments": call["input"]}
    rendered = json.dumps({"id": "toolu_1", "type": "function", "function": function}) + json.dumps(answer["content"])
    assert read.text_bytes >= len(rendered)


def test_what_a_tool_answered_in_blocks_is_counted_wherever_it_stands() -> None:
    words = ['it\'s "so"\n' * 20, "é" * 10]
    blocks = [text(each) for each in words]
    answer = {"type": "tool_result", "tool_use_id": "1", "content": blocks}
    for role, printed in (("user", "\n".join(words)), ("assistant", str(blocks))):
        assert prompt([{"role": role, "content": [answer]}]).text_bytes >= len(printed.encode())


def test_thinking_is_text_and_its_signature_is_not() -> None:
    thought = {"type": "thinking", "thinking": "x" * 100, "signature": "s" * 5_000}
    assert 100 <= prompt([{"role": "assistant", "content": [thought]}]).text_bytes <= 102


@pytest.mark.parametrize(
    ("source", "kind", "size"),
    [
        ({"type": "base64", "media_type": "image/png", "data": PNG}, MediaKind.IMAGE, (64, 32)),
        ({"type": "url", "url": "https://example.com/a.png"}, MediaKind.IMAGE, (None, None)),
        ({"type": "base64", "media_type": "application/pdf", "data": "A" * 999}, MediaKind.DOCUMENT, (None, None)),
        ({"type": "text", "data": 7}, MediaKind.IMAGE, (None, None)),
        ("odd", MediaKind.OTHER, (None, None)),
        (None, MediaKind.OTHER, (None, None)),
    ],
)
def test_media_are_told_apart_from_text_also_in_a_tools_answer(source: object, kind: MediaKind, size: object) -> None:
    block = {"type": "image", "source": source}
    for content in ([block], [{"type": "tool_result", "tool_use_id": "1", "content": [block]}]):
        read = prompt(user(content))
        assert read.media_parts == 1
        (part,) = read.media
        assert (part.kind, (part.width, part.height)) == (kind, size)
        assert read.text_bytes < 200


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "x" * 500},
        {"type": "content", "content": [text("x" * 500)]},
        {"type": "content", "content": "x" * 500},
    ],
)
def test_a_document_that_is_text_is_counted_as_text(source: dict[str, object]) -> None:
    read = prompt(user([{"type": "document", "source": source, "title": "t" * 50, "context": "c" * 50}]))
    assert read.media_parts == 0
    assert 600 <= read.text_bytes <= 700


def test_a_block_of_an_unknown_kind_is_counted_as_text() -> None:
    assert prompt(user([{"type": "new", "unheard_of": {"deep": ["x" * 100, 10**40]}}])).text_bytes > 140
    assert prompt(user(["also text" * 10, 7])).text_bytes > 90


@pytest.mark.parametrize("content", [{"a": 1}, 5, True])
def test_a_content_that_is_no_text_and_no_list_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        prompt(user(content))
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("messages", [[], "x", {}, None, ["x"], [None], [[]], 7, [1] * 1_000_000, "x" * 2_000_000])
def test_messages_that_are_no_list_of_objects_are_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        prompt(messages)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("system", [7, {"a": 1}, True])
def test_a_system_text_that_is_no_text_and_no_list_is_refused(system: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        prompt(user("a"), {"system": system})
    assert refusal.value.param == "system"


def test_what_the_decoder_just_takes_is_read_or_refused_and_never_a_bug() -> None:
    for depth in range(300, 1_400, 7):
        body = b'{"messages":[{"content":[{"input":' + b"[" * depth + b"]" * depth + b"}]}]}"
        try:
            (read,) = MESSAGES.read_request(body).prompts
        except InvalidRequest:
            continue
        assert read.text_bytes >= 2 * depth


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("words", ["x", "é", "\U0001d160", "\ufdfa"])
def test_messages_too_large_to_decode_are_bounded_by_their_json(words: str, ascii_only: bool) -> None:
    long = words * DECODE_LIMIT_BYTES
    longest = max(len(unicodedata.normalize(form, long).encode()) for form in ("NFC", "NFKC"))
    read = prompt([*user(long), *user([text("b")])], ascii_only=ascii_only)
    assert read.text_bytes >= longest
    assert read.messages >= 2
    assert read.media_parts == 0
    assert 0 < read.least_text_bytes <= len(long.encode())
    assert prompt(user("a"), {"system": long}, ascii_only=ascii_only).text_bytes >= longest


def test_a_large_screenshot_is_a_medium_of_known_size_and_no_text() -> None:
    head = base64.b64decode(PNG)
    picture = base64.b64encode(head + bytes(2 * DECODE_LIMIT_BYTES)).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}
    for content in ([text("a"), block], [{"type": "tool_result", "tool_use_id": "1", "content": [block]}]):
        read = prompt([*user(content), {"role": "assistant", "content": "b"}])
        assert (read.media_parts, [(part.width, part.height) for part in read.media]) == (1, [(64, 32)])
        assert read.text_bytes < 1_000
    hidden = json.dumps({"messages": user([block])}).replace('"source"', '"s\\u006furce"')
    (read,) = MESSAGES.read_request(hidden.encode()).prompts
    assert [part.kind for part in read.media] == [MediaKind.OTHER]


LEAF = st.none() | st.integers() | st.text(max_size=8)
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "odd"])},
    optional={
        "text": st.text(max_size=20),
        "thinking": st.text(max_size=20),
        "input": st.dictionaries(st.text(max_size=5), JSON, max_size=3),
        "content": st.text(max_size=20)
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)})),
        "x": JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=30) | st.lists(BLOCK, max_size=3)},
    optional={"x": JSON},
)


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(MESSAGE, min_size=1, max_size=4), ascii_only=st.booleans())
def test_no_text_of_any_member_is_left_out(messages: list[dict[str, Any]], ascii_only: bool) -> None:
    def texts(value: object) -> int:
        if isinstance(value, str):
            return len(value.encode())
        if isinstance(value, dict):
            return sum(texts(each) for key, each in value.items() if key not in ("type", "signature", "cache_control"))
        return sum(texts(each) for each in value) if isinstance(value, list) else 0

    rendered = sum(texts(value) for message in messages for key, value in message.items() if key != "role")
    assert prompt(messages, ascii_only=ascii_only).text_bytes >= rendered
