"""POST /v1/messages: Anthropic's Messages, as vLLM, llama.cpp and Dynamo serve them."""

from typing import Final

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from gateway.dialects import json_edit
from gateway.dialects.anthropic_error import error_body, error_event
from gateway.dialects.anthropic_text import FRAME_BYTES, read_messages
from gateway.dialects.anthropic_watcher import watch
from gateway.dialects.chat_text import count_items, schema_bytes
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.openai_body import AFFINITY_BYTES, MEMBER_LIMIT_BYTES, CapTokens, Raw, decode, raw_json

# The one cap, which the thinking counts into. vLLM and llama.cpp ignore every other name here, and `n` as well (measured).
CAP: Final = "max_tokens"

# What a template may render, beside the messages, as JSON.
_SCHEMAS: Final = ("tools", "tool_choice", "output_config", "chat_template_kwargs")
# What the engines' own count_tokens takes of a body.
_COUNTABLE: Final = ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "chat_template_kwargs")
_NUMBERS: Final = ("temperature", "top_p", "top_k", "thinking")
_ANYTHING: Final = msgspec.json.Decoder()


class _MessagesBody(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    max_tokens: CapTokens = msgspec.UNSET

    messages: Raw = msgspec.UNSET
    system: Raw = msgspec.UNSET
    tools: Raw = msgspec.UNSET
    tool_choice: Raw = msgspec.UNSET
    thinking: Raw = msgspec.UNSET
    output_config: Raw = msgspec.UNSET
    chat_template_kwargs: Raw = msgspec.UNSET

    # Looked at for being numbers at all.
    temperature: Raw = msgspec.UNSET
    top_p: Raw = msgspec.UNSET
    top_k: Raw = msgspec.UNSET

    def raw(self, name: str) -> bytes:
        return raw_json(getattr(self, name))


_MESSAGES_BODY: Final = msgspec.json.Decoder(_MessagesBody)


class AnthropicMessages:
    """Anthropic's Messages. Without a cap the engine decides: vLLM refuses such a body, llama.cpp runs it (both measured)."""

    name = "anthropic_messages"
    path = "/v1/messages"

    def read_request(self, body: bytes) -> InferenceRequest:
        read = decode(_MESSAGES_BODY, body)
        if read.messages is msgspec.UNSET:
            raise InvalidRequest("messages is missing.", param="messages")
        cap, cap_tokens = _read_cap(read.max_tokens)
        _check_numbers(read)
        messages, system = read.raw("messages"), read.raw("system")
        text = read_messages(messages, system)
        tools = count_items(read.raw("tools"))
        prompt = Prompt(
            text_bytes=text.text_bytes + sum(schema_bytes(read.raw(name)) for name in _SCHEMAS) + FRAME_BYTES * tools,
            messages=text.messages,
            tools=tools,
            media_parts=len(text.media),
            media=tuple(text.media),
            least_text_bytes=text.least_bytes,
        )
        return InferenceRequest(
            model=read.model,
            prompts=(prompt,),
            cap=cap,
            cap_tokens=cap_tokens,
            is_chat=True,
            stream=read.stream is True,
            affinity=(messages if system == b"null" else system + messages)[:AFFINITY_BYTES],
            countable=Countable(
                anthropic={name: read.raw(name) for name in _COUNTABLE if getattr(read, name) is not msgspec.UNSET}
            ),
        )

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


def _read_cap(value: object) -> tuple[CapState, int | None]:
    """Raises InvalidRequest below 1: vLLM refuses that, and llama.cpp takes a negative one for no limit (measured)."""
    if not isinstance(value, int):
        return (CapState.ABSENT if value is msgspec.UNSET else CapState.NULL), None
    if value < 1:
        raise InvalidRequest(f"{CAP} must be at least 1, got {value}.", param=CAP)
    return CapState.SET, value


def _check_numbers(read: _MessagesBody) -> None:
    """Raises InvalidRequest where a parameter holds what is no number to every reader, or far too much."""
    for name in _NUMBERS:
        raw = read.raw(name)
        if len(raw) > MEMBER_LIMIT_BYTES:
            raise InvalidRequest(f"{name} is larger than {MEMBER_LIMIT_BYTES} bytes.", param=name)
        decode(_ANYTHING, raw, param=name)
