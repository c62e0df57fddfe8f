"""POST /v1/chat/completions."""

from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET

from gateway.core.errors import InvalidRequest
from gateway.core.request import Countable, InferenceRequest, Prompt
from gateway.dialects import openai_body
from gateway.dialects.body_members import BodyMembers, decoder_of
from gateway.dialects.chat_text import (
    DECODE_LIMIT_BYTES,
    count_items,
    look_at_messages,
    read_messages,
    schema_bytes,
)
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.openai_body import OpenAIBody, Raw, affinity, raw_json
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
    tools: Raw = UNSET
    functions: Raw = UNSET
    documents: Raw = UNSET
    response_format: Raw = UNSET
    tool_choice: Raw = UNSET
    chat_template: Raw = UNSET
    chat_template_kwargs: Raw = UNSET
    reasoning_effort: Raw = UNSET
    mm_processor_kwargs: Raw = UNSET


# All that may stand beside the messages and change what is rendered; most bodies have nothing of it.
_BESIDE: Final = attrgetter(*_SCHEMAS, "chat_template", "mm_processor_kwargs", "truncate_prompt_tokens")
_NOTHING: Final = _BESIDE(_ChatMembers())


class _ChatBody(_ChatMembers):
    messages: list[dict[str, Any]] | msgspec.UnsetType = UNSET


class _LargeChatBody(_ChatMembers):
    messages: Raw = UNSET


_CHAT_BODY = msgspec.json.Decoder(_ChatBody)
_LARGE_CHAT_BODY = msgspec.json.Decoder(_LargeChatBody)
_COUNTABLE_MEMBERS = decoder_of(_COUNTABLE)


class OpenAIChat:
    """OpenAI's chat completions, as vLLM, Dynamo, llama.cpp and SGLang serve them."""

    name = "openai_chat"
    path = "/v1/chat/completions"

    def read_request(self, body: bytes) -> InferenceRequest:
        chat, prompt, start = _read(body)
        if _BESIDE(chat) != _NOTHING:
            _add_beside(prompt, chat)
        cap, cap_tokens = openai_body.read_cap(chat, _OBEYED, _ALSO_OBEYED)
        request = InferenceRequest(
            chat.model,
            (prompt,),
            cap,
            cap_tokens,
            is_chat=True,
            stream=chat.stream is True,
            affinity=start,
            countable=Countable(BodyMembers(body, _COUNTABLE_MEMBERS)),
        )
        openai_body.add_choices(request, chat)
        return request

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return openai_body.write_cap(body, cap_tokens, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return openai_body.limit_priority(body, most_urgent)

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        return openai_body.ask_usage(body, request)

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return watch(is_event_stream=is_event_stream, hide_usage=hide_usage, content_encoding=content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def waiting_event(self, words: str) -> bytes:
        return comment(words)

    def error_event(self, error: ErrorFacts) -> bytes:
        return error_event(error)


def _read(body: bytes) -> tuple[_ChatMembers, Prompt, bytes]:
    """The members, what was found in the messages, and what placement hashes. A body that is not large is decoded in one go."""
    if len(body) <= DECODE_LIMIT_BYTES:
        chat = openai_body.decode(_CHAT_BODY, body)
        if chat.messages is not UNSET:
            prompt, start = look_at_messages(chat.messages, len(body))
            return chat, prompt, affinity(chat, start)
    else:
        large = openai_body.decode_body(_LARGE_CHAT_BODY, body)
        if large.messages is not UNSET:
            raw = bytes(large.messages)
            return large, read_messages(raw), affinity(large, raw)
    raise InvalidRequest("messages is missing.", param="messages")


def _add_beside(prompt: Prompt, chat: _ChatMembers) -> None:
    """Add what is rendered beside the messages, and what else a body says about its prompt."""
    for name in _SCHEMAS:
        raw = getattr(chat, name)
        if raw is not UNSET:
            prompt.text_bytes += schema_bytes(bytes(raw))
    prompt.tools = count_items(raw_json(chat.tools)) + count_items(raw_json(chat.functions))
    prompt.has_own_template = raw_json(chat.chat_template) != b"null"
    if raw_json(chat.mm_processor_kwargs) != b"null":
        prompt.media = ()  # such arguments change what an image becomes
    if chat.may_truncate:
        prompt.may_be_cut, prompt.least_text_bytes = True, 0
