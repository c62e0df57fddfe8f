"""POST /v1/chat/completions."""

from typing import Any

import msgspec
from msgspec import UNSET

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, Countable, InferenceRequest, Prompt
from gateway.dialects import openai_body
from gateway.dialects.body_members import decoder_of, members_of
from gateway.dialects.chat_text import (
    DECODE_LIMIT_BYTES,
    count_items,
    look_at_messages,
    read_messages,
    schema_bytes,
)
from gateway.dialects.dialect import ErrorFacts
from gateway.dialects.openai_body import OpenAIBody, Raw, raw_json
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

    @property
    def has_more(self) -> bool:
        """Something stands beside the messages that changes what is rendered; in most bodies nothing does."""
        return not (
            self.tools is UNSET
            and self.tool_choice is UNSET
            and self.response_format is UNSET
            and self.reasoning_effort is UNSET
            and self.functions is UNSET
            and self.documents is UNSET
            and self.chat_template is UNSET
            and self.chat_template_kwargs is UNSET
            and self.mm_processor_kwargs is UNSET
            and self.truncate_prompt_tokens is UNSET
        )


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
    watcher = staticmethod(watch)

    def read_request(self, body: bytes) -> InferenceRequest:
        chat: _ChatMembers
        start: bytes | str
        if len(body) > DECODE_LIMIT_BYTES:
            chat, prompt, start = _read_large(body)
        else:
            chat = decoded = openai_body.decode(_CHAT_BODY, body)
            if decoded.messages is UNSET:
                raise _no_messages()
            prompt, start = look_at_messages(decoded.messages, len(body))
        if chat.has_more:
            _add_beside(prompt, chat)
        if chat.prompt_cache_key is not UNSET or chat.session_id is not UNSET:
            start = openai_body.session_key(chat) or start
        cap, cap_tokens = openai_body.read_cap(chat, _OBEYED, _ALSO_OBEYED)
        # By their places: to name them would cost as much as to make the request.
        request = InferenceRequest(chat.model, (prompt,), cap, cap_tokens, True, chat.stream is True, start, (_countable, body))
        openai_body.add_choices(request, chat)
        return request

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return openai_body.write_cap(body, cap_tokens, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return openai_body.limit_priority(body, most_urgent)

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        return openai_body.ask_usage(body, request)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def waiting_event(self, words: str) -> bytes:
        return comment(words)

    def error_event(self, error: ErrorFacts) -> bytes:
        return error_event(error)


def _read_large(body: bytes) -> tuple[_ChatMembers, Prompt, bytes]:
    """The members of a body that is not decoded in one go, what was found in its messages, and their beginning."""
    chat = openai_body.decode_body(_LARGE_CHAT_BODY, body)
    if chat.messages is UNSET:
        raise _no_messages()
    raw = bytes(chat.messages)
    return chat, read_messages(raw), raw[:AFFINITY_BYTES]


def _countable(body: bytes) -> Countable:
    return Countable(members_of(body, _COUNTABLE_MEMBERS))


def _no_messages() -> InvalidRequest:
    return InvalidRequest("messages is missing.", param="messages")


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
