"""POST /v1/embeddings: prompts that are only read. Nothing is written, so there is no cap, and no stream."""

from dataclasses import replace
from typing import Any, Final

import msgspec

from gateway.core.demand import Usage
from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, CapState, Countable, InferenceRequest, MediaKind, MediaPart, Prompt
from gateway.dialects import openai_body
from gateway.dialects.chat_text import read_messages, schema_bytes
from gateway.dialects.completions_prompt import MAX_PROMPTS, Prompts, read_prompts
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.encoded import unpacked
from gateway.dialects.openai_answer import is_error, last_usage, token_count
from gateway.dialects.openai_body import Priority, Raw
from gateway.dialects.openai_error import error_body, error_event
from gateway.dialects.openai_watcher import PlainWatcher
from gateway.dialects.sse import comment

# What a template may render of a chat, beside its messages, as JSON.
_SCHEMAS: Final = ("tools", "documents", "chat_template_kwargs", "instruction")
_LIST_OF_CHATS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = b"{"
_LIST: Final = b"["


class _EmbeddingsBody(msgspec.Struct):
    model: str | None = None
    input: Raw = msgspec.UNSET
    messages: Raw = msgspec.UNSET
    tools: Raw = msgspec.UNSET
    documents: Raw = msgspec.UNSET
    instruction: Raw = msgspec.UNSET
    chat_template: Raw = msgspec.UNSET
    chat_template_kwargs: Raw = msgspec.UNSET
    truncate_prompt_tokens: Raw = msgspec.UNSET
    padding: Raw = msgspec.UNSET
    priority: Priority = msgspec.UNSET

    def raw(self, name: str) -> bytes:
        return openai_body.raw_json(getattr(self, name))


_BODY: Final = msgspec.json.Decoder(_EmbeddingsBody)


class OpenAIEmbeddings:
    """OpenAI's embeddings: one body may hold many inputs, as texts or as token ids; vLLM takes chats as well."""

    name = "openai_embeddings"
    path = "/v1/embeddings"

    def read_request(self, body: bytes) -> InferenceRequest:
        read = openai_body.decode(_BODY, body)
        prompts = _read_prompts(read)
        if read.raw("padding") not in (b"null", b'"do_not_pad"'):
            prompts = replace(prompts, prompts=tuple(map(_padded, prompts.prompts)), texts=())
        elif read.raw("truncate_prompt_tokens") != b"null":
            prompts = replace(prompts, prompts=tuple(map(_cut, prompts.prompts)), texts=())
        return InferenceRequest(
            model=read.model,
            prompts=prompts.prompts,
            cap=CapState.SET,
            cap_tokens=1,
            is_chat=False,
            start=prompts.start,
            priority=read.priority if isinstance(read.priority, int) else None,
            to_count=Countable(texts=prompts.texts),
            is_prompt_only=True,
            prompt_name="messages" if read.input is msgspec.UNSET else "input",
        )

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return body  # nothing is written, so nothing is capped

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return openai_body.limit_priority(body, most_urgent)

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        return body

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return unpacked(EmbeddingsWatcher, content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def waiting_event(self, words: str) -> bytes:
        return comment(words)

    def error_event(self, error: ErrorFacts) -> bytes:
        return error_event(error)


def _read_prompts(read: _EmbeddingsBody) -> Prompts:
    """Everything that may be embedded: where an input stands beside messages, the engine says which, and both are held."""
    found: list[Prompts] = []
    if read.input is not msgspec.UNSET:
        raw = bytes(read.input)
        found.append(_read_chats(read, raw, "input") if _holds_chats(raw) else read_prompts(raw, param="input"))
    if read.messages is not msgspec.UNSET:
        found.append(_read_chats(read, bytes(read.messages), "messages"))
    if not found:
        raise InvalidRequest("input is missing.", param="input")
    if len(found) == 1:
        return found[0]
    return Prompts(found[0].prompts + found[1].prompts, (), found[0].start)


def _holds_chats(raw: bytes) -> bool:
    """A list of messages, or of lists of messages: of the other kinds of input none has an object in it."""
    start = raw[:256].translate(None, b" \t\r\n")
    return start.startswith((_LIST + _OBJECT, _LIST + _LIST + _OBJECT))


def _read_chats(read: _EmbeddingsBody, raw: bytes, param: str) -> Prompts:
    """One chat, or a list of them. Raises InvalidRequest for what is neither."""
    is_batch = raw[:256].translate(None, b" \t\r\n").startswith(_LIST + _LIST)
    chats = [bytes(chat) for chat in openai_body.decode(_LIST_OF_CHATS, raw, param=param)] if is_batch else [raw]
    if len(chats) > MAX_PROMPTS:
        raise InvalidRequest(f"{param} holds {len(chats)} chats; at most {MAX_PROMPTS} are taken in one body.", param=param)
    beside = sum(schema_bytes(read.raw(name)) for name in _SCHEMAS)
    has_own_template = read.raw("chat_template") != b"null"
    prompts = [read_messages(chat) for chat in chats]
    for prompt in prompts:
        prompt.text_bytes += beside
        prompt.tools = int(read.raw("tools") != b"null")
        prompt.has_own_template = has_own_template
        prompt.said = ""
    return Prompts(tuple(prompts), (), raw[:AFFINITY_BYTES])


def _padded(prompt: Prompt) -> Prompt:
    """The prompt, made as long as the engine likes."""
    return replace(prompt, token_ids=None, media_parts=1, media=(MediaPart(MediaKind.OTHER),), least_text_bytes=0)


def _cut(prompt: Prompt) -> Prompt:
    """The prompt, of which the engine may drop a part: no count of the whole says how much stays."""
    text_bytes = prompt.text_bytes if prompt.token_ids is None else prompt.token_ids
    return replace(prompt, text_bytes=text_bytes, token_ids=None, least_text_bytes=0, may_be_cut=True)


class EmbeddingsWatcher(PlainWatcher):
    """Usage has a prompt only. It stands behind the vectors in vLLM's answers, before them in llama.cpp's (measured)."""

    __slots__ = ()

    def read_large(self, head: bytes, tail: bytes) -> None:
        self.usage = last_usage(tail, read_prompt_usage) or last_usage(head, read_prompt_usage)

    def read_answer(self, answer: Any) -> None:
        if isinstance(answer, dict):
            self.has_error = is_error(answer)
            self.usage = read_prompt_usage(answer.get("usage"))


def read_prompt_usage(usage: Any) -> Usage | None:
    """The usage of an answer that has no output; None unless its count makes sense."""
    prompt = token_count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    return None if prompt is None else Usage(prompt_tokens=prompt, output_tokens=0)
