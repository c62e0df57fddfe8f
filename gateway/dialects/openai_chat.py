"""POST /v1/chat/completions."""

from typing import Any

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import Countable, InferenceRequest, Prompt
from gateway.dialects import openai_body
from gateway.dialects.body_members import BodyMembers, decoder_of
from gateway.dialects.chat_text import (
    DECODE_LIMIT_BYTES,
    ChatText,
    count_items,
    look_at_messages,
    read_messages,
    schema_bytes,
    start_of,
)
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.openai_body import OpenAIBody, Raw
from gateway.dialects.openai_error import error_body, error_event
from gateway.dialects.openai_watcher import watch
from gateway.dialects.sse import comment

# vLLM and llama.cpp: the newer name wins where both are set (measured).
_OBEYED = ("max_completion_tokens", "max_tokens")
_ALSO_OBEYED = ("n_predict",)

# What a template may render, beside the messages, as JSON.
_SCHEMAS = ("tools", "functions", "documents", "response_format", "tool_choice", "chat_template_kwargs", "reasoning_effort")
# What vLLM's /tokenize takes of a chat body; it ignores what it does not know.
_COUNTABLE = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "reasoning_effort",
    "mm_processor_kwargs",
)


class _ChatMembers(OpenAIBody):
    tools: Raw = msgspec.UNSET
    functions: Raw = msgspec.UNSET
    documents: Raw = msgspec.UNSET
    response_format: Raw = msgspec.UNSET
    tool_choice: Raw = msgspec.UNSET
    chat_template: Raw = msgspec.UNSET
    chat_template_kwargs: Raw = msgspec.UNSET
    reasoning_effort: Raw = msgspec.UNSET
    mm_processor_kwargs: Raw = msgspec.UNSET

    def has(self, name: str) -> bool:
        return openai_body.raw_json(getattr(self, name)) != b"null"


class _ChatBody(_ChatMembers):
    messages: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class _LargeChatBody(_ChatMembers):
    messages: Raw = msgspec.UNSET


_CHAT_BODY = msgspec.json.Decoder(_ChatBody)
_LARGE_CHAT_BODY = msgspec.json.Decoder(_LargeChatBody)
_COUNTABLE_MEMBERS = decoder_of(_COUNTABLE)


class OpenAIChat:
    """OpenAI's chat completions, as vLLM, Dynamo, llama.cpp and SGLang serve them."""

    name = "openai_chat"
    path = "/v1/chat/completions"

    def read_request(self, body: bytes) -> InferenceRequest:
        chat, text, start = _read(body)
        cap, cap_tokens = openai_body.read_cap(chat, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)
        schemas = [bytes(raw) for name in _SCHEMAS if (raw := getattr(chat, name)) is not msgspec.UNSET]
        may_be_cut = chat.may_truncate
        prompt = Prompt(
            text_bytes=text.text_bytes + sum(map(schema_bytes, schemas)),
            messages=text.messages,
            tools=_count_tools(chat) if schemas else 0,
            media_parts=text.media_parts,
            # Such arguments change what an image becomes.
            media=() if chat.has("mm_processor_kwargs") else text.media,
            may_be_cut=may_be_cut,
            has_own_template=chat.has("chat_template"),
            least_text_bytes=0 if may_be_cut else text.least_bytes,
            said=text.said,
        )
        return InferenceRequest(
            model=chat.model,
            prompts=(prompt,),
            cap=cap,
            cap_tokens=cap_tokens,
            is_chat=True,
            stream=chat.stream is True,
            n=chat.samples,
            best_of=chat.best_of or 1,
            wants_usage=chat.wants_usage,
            affinity=openai_body.affinity(chat, start),
            priority=chat.engine_priority,
            countable=Countable(chat=BodyMembers(body, _COUNTABLE_MEMBERS)),
        )

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return openai_body.write_cap(body, cap_tokens, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return openai_body.limit_priority(body, most_urgent)

    def ask_usage(self, body: bytes) -> bytes:
        return openai_body.ask_usage(body)

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return watch(is_event_stream=is_event_stream, hide_usage=hide_usage, content_encoding=content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def waiting_event(self, words: str) -> bytes:
        return comment(words)

    def error_event(self, error: ErrorFacts) -> bytes:
        return error_event(error)


def _read(body: bytes) -> tuple[_ChatMembers, ChatText, bytes]:
    """The members, what was found in the messages, and their start. A body that is not large is decoded in one go."""
    if len(body) <= DECODE_LIMIT_BYTES:
        chat = openai_body.decode_body(_CHAT_BODY, body)
        if chat.messages is not msgspec.UNSET:
            return chat, look_at_messages(chat.messages, len(body)), start_of(chat.messages)
    else:
        large = openai_body.decode_body(_LARGE_CHAT_BODY, body)
        if large.messages is not msgspec.UNSET:
            raw = bytes(large.messages)
            return large, read_messages(raw), raw[: openai_body.AFFINITY_BYTES]
    raise InvalidRequest("messages is missing.", param="messages")


def _count_tools(chat: _ChatMembers) -> int:
    return count_items(openai_body.raw_json(chat.tools)) + count_items(openai_body.raw_json(chat.functions))
