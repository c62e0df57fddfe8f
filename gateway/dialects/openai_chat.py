"""POST /v1/chat/completions."""

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import Countable, InferenceRequest, Prompt
from gateway.dialects import openai_body
from gateway.dialects.chat_text import count_items, read_messages, schema_bytes
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


class _ChatBody(OpenAIBody):
    messages: Raw = msgspec.UNSET
    tools: Raw = msgspec.UNSET
    functions: Raw = msgspec.UNSET
    documents: Raw = msgspec.UNSET
    response_format: Raw = msgspec.UNSET
    tool_choice: Raw = msgspec.UNSET
    chat_template: Raw = msgspec.UNSET
    chat_template_kwargs: Raw = msgspec.UNSET
    reasoning_effort: Raw = msgspec.UNSET
    add_generation_prompt: Raw = msgspec.UNSET
    continue_final_message: Raw = msgspec.UNSET
    add_special_tokens: Raw = msgspec.UNSET
    mm_processor_kwargs: Raw = msgspec.UNSET

    def raw(self, name: str) -> bytes:
        return openai_body.raw_json(getattr(self, name))


_CHAT_BODY = msgspec.json.Decoder(_ChatBody)


class OpenAIChat:
    """OpenAI's chat completions, as vLLM, Dynamo, llama.cpp and SGLang serve them."""

    name = "openai_chat"
    path = "/v1/chat/completions"

    def read_request(self, body: bytes) -> InferenceRequest:
        chat = openai_body.decode(_CHAT_BODY, body)
        if chat.messages is msgspec.UNSET:
            raise InvalidRequest("messages is missing.", param="messages")
        cap, cap_tokens = openai_body.read_cap(chat, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)
        chat.check_numbers()
        messages = bytes(chat.messages)
        text = read_messages(messages)
        prompt = Prompt(
            text_bytes=text.text_bytes + sum(schema_bytes(chat.raw(name)) for name in _SCHEMAS),
            messages=text.messages,
            tools=count_items(chat.raw("tools")) + count_items(chat.raw("functions")),
            media_parts=text.media_parts,
            # Such arguments change what an image becomes.
            media=text.media if chat.raw("mm_processor_kwargs") == b"null" else (),
            may_be_cut=chat.may_truncate,
            has_own_template=chat.raw("chat_template") != b"null",
            least_text_bytes=0 if chat.may_truncate else text.least_bytes,
        )
        countable = {name: bytes(getattr(chat, name)) for name in _COUNTABLE if getattr(chat, name) is not msgspec.UNSET}
        countable["messages"] = messages
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
            affinity=openai_body.affinity(chat, messages),
            priority=chat.engine_priority,
            countable=Countable(chat=countable),
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
