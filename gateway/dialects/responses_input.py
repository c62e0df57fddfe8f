"""The `input` of a Responses body: how much text can be rendered of it, and the chat that vLLM makes of it.

An input is a text or a list of items: messages, calls of tools and their outputs, thoughts, and kinds that nobody here knows.
All that an item holds is counted as text, but for media; an item that only points to something kept elsewhere makes the
prompt one without a bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import MediaKind, MediaPart
from gateway.dialects.chat_text import (
    DECODE_LIMIT_BYTES,
    MEDIA,
    escaped_bytes,
    may_hold_media,
    member_bytes,
    text_bytes,
)
from gateway.dialects.media import media_part
from gateway.dialects.normal_forms import MOST_GROWTH
from gateway.dialects.openai_body import decode

ELSEWHERE: Final = MediaPart(MediaKind.OTHER)
"""What stands for a part of the prompt that is not in the body."""

_INPUT: Final = msgspec.json.Decoder(str | list[dict[str, Any]])
# Parts and items that are a medium as a whole, whichever of their members holds or names it.
_MEDIA_TYPES: Final = frozenset(("input_image", "input_audio", "input_video", "input_file", "computer_screenshot"))
_POINTERS: Final = frozenset(("item_reference", "compaction"))
_POINTER_MARKS: Final = (b'"item_reference"', b'"compaction"', b'"encrypted_content"', b'"computer_screenshot"')
# Members that hold parts, or a text that becomes a message.
_CONTENTS: Final = frozenset(("content", "output", "summary"))
# Marks of a call and of its answer, which become messages of their own (bytes).
_FRAME_BYTES: Final = 64


@dataclass(slots=True)
class InputText:
    """What was found: bytes that can be rendered, messages that they make, and media parts (not in the bytes).

    least_bytes: of the text, what is rendered for certain; 0 where nobody looked. items: the decoded input, None where it is
    too large to be decoded.
    """

    text_bytes: int
    messages: int
    media: tuple[MediaPart, ...] = ()
    least_bytes: int = 0
    items: str | list[dict[str, Any]] | None = None


def read_input(raw: bytes) -> InputText:
    """The `input` of a body. Raises InvalidRequest unless it is a text or a list of objects."""
    if len(raw) > DECODE_LIMIT_BYTES:
        return _by_length(raw)
    return look_at_input(decode(_INPUT, raw, param="input"))


def look_at_input(items: str | list[dict[str, Any]]) -> InputText:
    """The same of an input that is decoded."""
    if isinstance(items, str):
        return InputText(text_bytes(items), 1, items=items)
    total = 0
    media: list[MediaPart] = []
    for item in items:
        total += _FRAME_BYTES + _item_bytes(item, media)
    return InputText(total, max(1, len(items)), tuple(media), items=items)


def _item_bytes(item: Mapping[str, Any], media: list[MediaPart]) -> int:
    kind = item.get("type")
    if not isinstance(kind, str):
        kind = None  # of no kind that is known here, whatever it is
    if kind in _POINTERS or item.get("encrypted_content") is not None:
        media.append(ELSEWHERE)
    if kind in _MEDIA_TYPES:
        media.append(media_part(kind, item))
        return 0
    total = 0
    for key, value in item.items():
        if key not in _CONTENTS:
            total += member_bytes(value)
        elif isinstance(value, str):
            # Many templates put a tool's answer into JSON: every quote and every line end grows by a backslash.
            total += text_bytes(value) + (escaped_bytes(value) if key == "output" else 0)
        else:
            total += sum(_part_bytes(part, media) for part in (value if isinstance(value, list) else [value]))
    return total


def _part_bytes(part: Any, media: list[MediaPart]) -> int:
    if not isinstance(part, dict):
        return member_bytes(part)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA_TYPES:
        media.append(media_part(kind, part))
        return 0
    total = 0
    for key, value in part.items():
        if key in MEDIA:
            media.append(media_part(key, value))
        elif key != "type":
            total += member_bytes(value)
    return total


def _by_length(raw: bytes) -> InputText:
    """An input too large to decode: the JSON itself is longer than its text. Media are seen by their names."""
    growth = 1 if raw.isascii() else MOST_GROWTH
    if raw[:1] == b'"':
        # `\\u0061` is six bytes of JSON and one of text.
        return InputText(growth * len(raw), 1, least_bytes=(len(raw) - 2) // (6 if b"\\" in raw else 1))
    if raw[:1] != b"[":
        raise InvalidRequest("input must be a text or a list of items.", param="input")
    messages = max(1, raw.count(b'"role"') + raw.count(b'"type"'))
    is_known = not may_hold_media(raw) and not any(mark in raw for mark in _POINTER_MARKS)
    total = growth * len(raw) + raw.count(b",") + raw.count(b":") + _FRAME_BYTES * messages
    return InputText(total, messages, () if is_known else (ELSEWHERE,))


# What vLLM renders to the token as the chat that stands here for it (0.32, measured over generated inputs). A template that
# prints a call as one JSON object is the exception: /tokenize hands it the name behind the arguments, the route before them.
CALL_SLACK_TOKENS: Final = 32
_PLAIN_ROLES: Final = frozenset(("user", "system", "developer"))
_ITEM_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset(("type", "role", "content", "id", "status")),
    "function_call": frozenset(("type", "call_id", "name", "arguments", "id", "status")),
    "function_call_output": frozenset(("type", "call_id", "output", "id", "status")),
    "reasoning": frozenset(("type", "id", "summary", "content", "status")),
}


def chat_of(items: str | list[dict[str, Any]], instructions: str | None) -> bytes | None:
    """The `messages` of the chat that vLLM makes of an input, as JSON; None where that is not known to the token."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        messages.append({"role": "user", "content": items})
    else:
        for item in items:
            if not _add_item(messages, item):
                return None
    return msgspec.json.encode(messages) if messages else None


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any]) -> bool:
    """Add what the item becomes; False where that is not known. What an assistant says, thinks and calls in turn is one
    message."""
    kind = item.get("type", "message")
    if not isinstance(kind, str) or not item.keys() <= _ITEM_MEMBERS.get(kind, frozenset()):
        return False
    if item.get("status") not in (None, "completed"):
        return False  # a last message that is not complete is continued
    match kind:
        case "function_call":
            return _add_call(messages, item)
        case "function_call_output":
            output, call_id = item.get("output"), item.get("call_id")
            messages.append({"role": "tool", "content": output, "tool_call_id": call_id})
            return isinstance(output, str) and isinstance(call_id, str)
        case "reasoning":
            text = _only_text(item.get("content"), "reasoning_text")
            return text is not None and _add_said(messages, "reasoning", text)
        case _:
            return _add_message(messages, item)


def _add_message(messages: list[dict[str, Any]], item: dict[str, Any]) -> bool:
    role, content = item.get("role"), item.get("content")
    if role == "assistant":
        text = content if isinstance(content, str) else _only_text(content, "output_text")
        return text is not None and (isinstance(content, str) or "type" in item) and _add_said(messages, "content", text)
    if not isinstance(role, str) or role not in _PLAIN_ROLES:
        return False
    if isinstance(content, list):
        parts = [_text_of(part, "input_text") for part in content]
        if not parts or None in parts:
            return False
        messages.append({"role": role, "content": [{"type": "text", "text": text} for text in parts]})
        return True
    messages.append({"role": role, "content": content})
    return isinstance(content, str)


def _add_said(messages: list[dict[str, Any]], name: str, text: str) -> bool:
    if messages and messages[-1]["role"] == "assistant" and messages[-1].get(name) is None:
        messages[-1][name] = text
    else:
        messages.append({"role": "assistant", name: text})
    return True


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any]) -> bool:
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})
    return all(isinstance(text, str) for text in (name, arguments, call_id))


def _only_text(content: Any, kind: str) -> str | None:
    """The text of a list of one part. vLLM renders the first part only, which is not worth counting exactly."""
    return _text_of(content[0], kind) if isinstance(content, list) and len(content) == 1 else None


def _text_of(part: Any, kind: str) -> str | None:
    if not isinstance(part, dict) or part.get("type") != kind or not isinstance(part.get("text"), str):
        return None
    return str(part["text"])
