"""The input of Responses: its shapes, what is counted of them, and the chat that vLLM makes of it."""

import json
from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.request import MediaKind
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES
from gateway.dialects.responses_input import InputText, chat_of, read_input


def read(value: Any) -> InputText:
    return read_input(json.dumps(value, ensure_ascii=False).encode())


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": 'it is "7"'}
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("value", [7, None, True, {}, [7], ["a"], [None], [[]]])
def test_an_input_that_is_neither_text_nor_items_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(value)
    assert refusal.value.param == "input"


def test_a_text_is_its_bytes_and_one_message() -> None:
    assert (read("Grüße").text_bytes, read("Grüße").messages) == (7, 1)
    assert read("").messages == 1
    assert read([]).messages == 1


@pytest.mark.parametrize(
    ("item", "least"),
    [
        (USER, 2),
        ({"role": "user", "content": [{"type": "input_text", "text": "x" * 50}, {"type": "input_text", "text": "y" * 9}]}, 59),
        ({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x" * 50}]}, 50),
        ({"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "x" * 50}]}, 50),
        (CALL, 9),
        (ANSWER, 11),
        ({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x" * 50}]}, 50),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x" * 50}, 50),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 50}], "content": None}, 50),
        ({"type": "what_nobody_knows", "deep": {"list": ["x" * 50]}}, 50),
    ],
)
def test_all_that_an_item_holds_is_counted(item: dict[str, Any], least: int) -> None:
    found = read([item])
    assert found.text_bytes >= least
    assert (found.messages, found.media) == (1, ())
    assert read([item, USER]).text_bytes > found.text_bytes


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, MediaKind.IMAGE),
        ({"type": "input_image", "file_id": "f"}, MediaKind.IMAGE),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, MediaKind.AUDIO),
        ({"type": "input_file", "file_data": "AAAA"}, MediaKind.DOCUMENT),
        ({"type": "image_url", "image_url": {"url": "d"}}, MediaKind.IMAGE),
    ],
)
def test_media_are_no_text_wherever_they_stand(part: dict[str, Any], kind: MediaKind) -> None:
    for item in ({"role": "user", "content": [part]}, {"type": "function_call_output", "output": [part]}):
        (found,) = read([item]).media
        assert found.kind is kind


def test_the_size_of_a_picture_in_the_body_is_told() -> None:
    png = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAgCAYAAAA="  # the header of one of 16 x 32
    (found,) = read([{"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{png}"}]}]).media
    assert (found.width, found.height) == (16, 32)


def test_what_is_too_large_to_decode_is_bounded_by_its_length() -> None:
    large = "word " * (DECODE_LIMIT_BYTES // 4)
    text = read(large)
    assert text.text_bytes >= text.least_bytes == len(large)
    items = read([{"role": "user", "content": large}, CALL, ANSWER])
    assert items.text_bytes >= len(large)
    assert items.messages >= 3
    assert (items.items, items.media) == (None, ())
    for mark in ({"type": "input_image", "file_id": "f"}, {"type": "item_reference", "id": "x"}):
        assert read([{"role": "user", "content": large}, mark]).media


def chat(items: Any, instructions: str | None = None) -> Any:
    found = chat_of(items, instructions)
    return None if found is None else json.loads(found)


SAID = {"type": "message", "role": "assistant", "content": "let me"}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [USER]),
        ([USER], [USER]),
        ([{"type": "message", **USER}], [USER]),
        ([{"role": "developer", "content": "x"}], [{"role": "developer", "content": "x"}]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
        ([SAID], [{"role": "assistant", "content": "let me"}]),
        ([SAID, SAID], [{"role": "assistant", "content": "let me"}] * 2),
        (
            [THOUGHT, SAID, CALL, ANSWER],
            [
                {"role": "assistant", "reasoning": "hm", "content": "let me", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "content": 'it is "7"', "tool_call_id": "c1"},
            ],
        ),
        ([CALL, CALL], [{"role": "assistant", "tool_calls": [TOOL_CALL, TOOL_CALL]}]),
        ([USER, CALL], [USER, {"role": "assistant", "tool_calls": [TOOL_CALL]}]),
        ([THOUGHT, THOUGHT], [{"role": "assistant", "reasoning": "hm"}] * 2),
    ],
)
def test_what_an_assistant_says_thinks_and_calls_in_turn_is_one_message(items: Any, messages: Any) -> None:
    assert chat(items) == messages
    assert chat(items, "Be brief.") == [{"role": "system", "content": "Be brief."}, *messages]
    assert chat(items, "") == messages


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}] * 2},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {**SAID, "status": "incomplete"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "d"}]},
        {"role": "user", "content": []},
        {"role": "user", "content": None},
        {"role": "critic", "content": "x"},
        {"role": {"name": "user"}, "content": "x"},
        {"role": "user", "content": "x", "name": "n"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
        {"type": "item_reference", "id": "x"},
        {"type": 7},
        {},
    ],
)
def test_an_item_of_which_the_chat_is_not_known_leaves_the_whole_uncounted(item: dict[str, Any]) -> None:
    assert chat([USER, item]) is None
