"""POST /v1/messages: Anthropic's Messages, as vLLM, llama.cpp and Dynamo serve them."""

from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, CapState, Countable, InferenceRequest, Prompt
from gateway.dialects import json_edit
from gateway.dialects.anthropic_error import error_body, error_event
from gateway.dialects.anthropic_text import FRAME_BYTES, MessagesText, look_at_messages, read_messages
from gateway.dialects.anthropic_watcher import watch
from gateway.dialects.body_members import decoder_of, members_of
from gateway.dialects.chat_text import count_items, schema_bytes
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.json_start import start_of
from gateway.dialects.openai_body import MEMBER_LIMIT_BYTES, CapTokens, Raw, decode, decode_at_once, raw_json

# The one cap, which the thinking counts into. vLLM and llama.cpp ignore every other name here, and `n` as well (measured).
CAP: Final = "max_tokens"

# What a template may render, beside the messages, as JSON.
_SCHEMAS: Final = attrgetter("tools", "tool_choice", "output_config", "chat_template_kwargs")
# What the engines' own count_tokens takes of a body.
_COUNTABLE: Final = ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "chat_template_kwargs")
_NUMBERS: Final = ("temperature", "top_p", "top_k", "thinking")
_ANYTHING: Final = msgspec.json.Decoder()
_SET: Final = CapState.SET  # to look up a member of an enum costs as much as a call


class _Members(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    max_tokens: CapTokens = UNSET

    tools: Raw = UNSET
    tool_choice: Raw = UNSET
    output_config: Raw = UNSET
    chat_template_kwargs: Raw = UNSET


class _MessagesBody(_Members):
    messages: list[dict[str, Any]] | msgspec.UnsetType = UNSET
    system: Any = None
    # Decoded for being numbers at all.
    thinking: Any = UNSET
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET


class _RawBody(_Members):
    messages: Raw = UNSET
    system: Raw = UNSET
    thinking: Raw = UNSET
    temperature: Raw = UNSET
    top_p: Raw = UNSET
    top_k: Raw = UNSET


_MESSAGES_BODY: Final = msgspec.json.Decoder(_MessagesBody)
_RAW_BODY: Final = msgspec.json.Decoder(_RawBody)
_COUNTABLE_MEMBERS: Final = decoder_of(_COUNTABLE)


class AnthropicMessages:
    """Anthropic's Messages. Without a cap the engine decides: vLLM refuses such a body, llama.cpp runs it (both measured)."""

    name = "anthropic_messages"
    path = "/v1/messages"

    def read_request(self, body: bytes) -> InferenceRequest:
        read = decode_at_once(_MESSAGES_BODY, body) or decode(_RAW_BODY, body)
        if read.messages is UNSET:
            raise InvalidRequest("messages is missing.", param="messages")
        cap, cap_tokens = _read_cap(read.max_tokens)
        text, start = _look_at(read) if isinstance(read, _MessagesBody) else _read_by_member(read)
        prompt = Prompt(text.text_bytes, text.messages)
        prompt.least_text_bytes = text.least_bytes
        if text.media:
            prompt.media_parts, prompt.media = len(text.media), tuple(text.media)
        for raw in _SCHEMAS(read):
            if raw is not UNSET:
                prompt.text_bytes += schema_bytes(bytes(raw))
        if read.tools is not UNSET:
            prompt.tools = count_items(bytes(read.tools))
            prompt.text_bytes += FRAME_BYTES * prompt.tools
        # By their places: to name them would cost as much as to make the request.
        return InferenceRequest(read.model, (prompt,), cap, cap_tokens, True, read.stream is True, start, (_countable, body))

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return json_edit.set_member(body, CAP, b"%d" % cap_tokens)

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return body  # there is no such member: vLLM hands none on from here, llama.cpp has none

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        return body  # it comes in every stream

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return watch(is_event_stream=is_event_stream, content_encoding=content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def waiting_event(self, words: str) -> bytes:
        """The ping that Anthropic itself sends, and the words as a comment; both are skipped by every SDK."""
        return b": " + words.encode("ascii") + b'\nevent: ping\ndata: {"type":"ping"}\n\n'

    def error_event(self, error: ErrorFacts) -> bytes:
        return error_event(error)


def _countable(body: bytes) -> Countable:
    return Countable(anthropic=members_of(body, _COUNTABLE_MEMBERS))


def _read_cap(value: object) -> tuple[CapState, int | None]:
    """Raises InvalidRequest below 1: vLLM refuses that, and llama.cpp takes a negative one for no limit (measured)."""
    if not isinstance(value, int):
        return (CapState.ABSENT if value is msgspec.UNSET else CapState.NULL), None
    if value < 1:
        raise InvalidRequest(f"{CAP} must be at least 1, got {value}.", param=CAP)
    return _SET, value


def _look_at(read: _MessagesBody) -> tuple[MessagesText, bytes]:
    """What was found in the messages and the system text, and what placement hashes."""
    assert read.messages is not UNSET
    text = look_at_messages(read.messages, read.system)
    start = b"" if read.system is None else start_of(read.system)
    return text, start if len(start) >= AFFINITY_BYTES else (start + start_of(read.messages))[:AFFINITY_BYTES]


def _read_by_member(read: _RawBody) -> tuple[MessagesText, bytes]:
    """The same of members that are not decoded yet.

    Raises InvalidRequest also where a parameter holds what is no number to every reader, or far too much.
    """
    for name in _NUMBERS:
        raw = raw_json(getattr(read, name))
        if len(raw) > MEMBER_LIMIT_BYTES:
            raise InvalidRequest(f"{name} is larger than {MEMBER_LIMIT_BYTES} bytes.", param=name)
        decode(_ANYTHING, raw, param=name)
    messages, system = raw_json(read.messages), raw_json(read.system)
    start = messages if system == b"null" else system + messages
    return read_messages(messages, system), start[:AFFINITY_BYTES]
