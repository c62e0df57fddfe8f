"""POST /v1/responses: OpenAI's Responses, as vLLM and llama.cpp serve them."""

import json
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, Countable, InferenceRequest, MediaPart, Prompt
from gateway.dialects import openai_body
from gateway.dialects.body_members import decoder_of, members_of
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES, count_items, schema_bytes, text_bytes
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.json_start import start_of
from gateway.dialects.openai_body import OpenAIBody, Raw
from gateway.dialects.openai_error import error_body
from gateway.dialects.responses_input import CALL_SLACK_TOKENS, ELSEWHERE, chat_of, look_at_input, read_input
from gateway.dialects.responses_watcher import watch
from gateway.dialects.sse import comment

# vLLM knows no other. llama.cpp lets two of its own win over it, and `max_tokens` not (both measured).
CAP: Final = "max_output_tokens"
_OBEYED: Final = (CAP,)
_ALSO_OBEYED: Final = ("max_completion_tokens", "n_predict")

# What a template may render, beside the input and the instructions, as JSON.
_SCHEMAS: Final = attrgetter("tools", "text", "tool_choice", "reasoning", "chat_template_kwargs", "previous_input_messages")
# Where the prompt, or a part of it, is kept elsewhere.
_ELSEWHERE: Final = attrgetter("previous_response_id", "conversation", "prompt")
# What llama.cpp's own counter reads of a body.
_COUNTABLE: Final = ("input", "instructions", "tools", "tool_choice", "text", "reasoning", "chat_template_kwargs")
# Tools that are the client's to run. Of any other the engine may see to by itself, and go on with a longer prompt.
_CLIENTS_TOOLS: Final = ("function", "custom", "namespace")
# A family whose prompts vLLM renders by a library, and in another way where it only counts.
_OTHERWISE_RENDERED: Final = ("gpt-oss", "gpt_oss")


class _Members(OpenAIBody):
    instructions: str | None = None
    max_output_tokens: openai_body.CapTokens = UNSET
    background: bool | None = None
    truncation: Raw = UNSET
    tools: Raw = UNSET
    tool_choice: Raw = UNSET
    text: Raw = UNSET
    reasoning: Raw = UNSET
    chat_template: Raw = UNSET
    chat_template_kwargs: Raw = UNSET
    previous_input_messages: Raw = UNSET
    previous_response_id: Raw = UNSET
    conversation: Raw = UNSET
    prompt: Raw = UNSET

    def raw(self, name: str) -> bytes:
        return openai_body.raw_json(getattr(self, name))

    @property
    def may_be_cut(self) -> bool:
        """vLLM cuts the prompt to the context unless that is disabled, which `null` does not (measured)."""
        return self.may_truncate or (self.truncation is not UNSET and self.raw("truncation") != b'"disabled"')


class _ResponsesBody(_Members):
    input: str | list[dict[str, Any]] | msgspec.UnsetType = UNSET


class _RawBody(_Members):
    input: Raw = UNSET


_BODY: Final = msgspec.json.Decoder(_ResponsesBody)
_RAW_BODY: Final = msgspec.json.Decoder(_RawBody)
_COUNTABLE_MEMBERS: Final = decoder_of(_COUNTABLE)
_COUNTABLE_UNINSTRUCTED: Final = decoder_of(tuple(name for name in _COUNTABLE if name != "instructions"))
_TOOLS: Final = msgspec.json.Decoder(list[dict[str, Any]] | None)
_ANYTHING: Final = msgspec.json.Decoder()


class OpenAIResponses:
    """OpenAI's Responses. What was thought counts into the cap; the answers are one, or as many as llama.cpp's `n` says."""

    name = "openai_responses"
    path = "/v1/responses"

    def read_request(self, body: bytes) -> InferenceRequest:
        read = openai_body.decode_at_once(_BODY, body) or openai_body.decode_body(_RAW_BODY, body)
        if read.input is UNSET:
            raise InvalidRequest("input is missing.", param="input")
        if read.background:
            raise InvalidRequest(
                "background is not served by this gateway: such an answer is computed after its request has ended, and"
                " nothing could hold the memory for it.",
                param="background",
            )
        cap, cap_tokens = openai_body.read_cap(read, _OBEYED, _ALSO_OBEYED)
        if isinstance(read, _RawBody):
            raw = openai_body.raw_json(read.input)
            text, start = read_input(raw), raw
        else:
            text, start = look_at_input(read.input), start_of(read.input)
        tools = [] if read.tools is UNSET else _read_tools(bytes(read.tools))
        media = (*text.media, *_elsewhere(read, tools))
        may_be_cut = read.may_be_cut
        prompt = Prompt(text.text_bytes, text.messages)
        if media:
            prompt.media_parts, prompt.media = len(media), media
        prompt.may_be_cut = may_be_cut
        prompt.has_own_template = read.raw("chat_template") != b"null"
        prompt.least_text_bytes = 0 if may_be_cut else text.least_bytes
        if read.instructions is not None:
            prompt.text_bytes += text_bytes(read.instructions)
            prompt.messages += 1
            start = read.instructions[:AFFINITY_BYTES].encode() + start
        _add_schemas(prompt, read, tools)
        return InferenceRequest(
            read.model,
            (prompt,),
            cap,
            cap_tokens,
            is_chat=True,
            stream=read.stream is True,
            n=read.samples,
            start=openai_body.session_key(read) or start[:AFFINITY_BYTES],
            priority=read.engine_priority,
            to_count=Countable() if may_be_cut else (_countable, body),
            prompt_name="input",
            cap_param=CAP,
        )

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return openai_body.write_cap(body, cap_tokens, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED, absent=CAP)

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return openai_body.limit_priority(body, most_urgent)

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        return body  # it comes in every stream

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return watch(is_event_stream=is_event_stream, content_encoding=content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def waiting_event(self, words: str) -> bytes:
        return comment(words)

    def error_event(self, error: ErrorFacts) -> bytes:
        """The `error` event of this format, with the error object in it besides: OpenAI's SDKs hand the event on as one
        of many, and raise only on the object."""
        body = error_body(error)
        shown = json.loads(body)["error"]
        event = {
            "type": "error",
            "sequence_number": 0,
            "code": shown["code"],
            "message": shown["message"],
            "param": shown["param"],
        }
        data = json.dumps({**event, "error": shown}, separators=(",", ":")).encode()
        return b"event: error\ndata: " + data + b"\n\n"


def _read_tools(raw: bytes) -> list[dict[str, Any]] | None:
    """The tools, None where they are too large to be looked at. Raises InvalidRequest unless they are a list of objects."""
    if len(raw) > DECODE_LIMIT_BYTES:
        return None
    return openai_body.decode(_TOOLS, raw, param="tools") or []


def _add_schemas(prompt: Prompt, read: _Members, tools: list[dict[str, Any]] | None) -> None:
    for raw in _SCHEMAS(read):
        if raw is not UNSET:
            prompt.text_bytes += schema_bytes(bytes(raw))
    prompt.tools = count_items(read.raw("tools")) if tools is None else len(tools)
    if read.previous_input_messages is not UNSET:
        prompt.messages += count_items(bytes(read.previous_input_messages))
    if read.reasoning is not UNSET:
        _effort(read)  # a number in it may be none


def _elsewhere(read: _Members, tools: list[dict[str, Any]] | None) -> list[MediaPart]:
    """What of the prompt is not in the body: it is kept elsewhere, or the engine fetches it by a tool of its own."""
    found = [ELSEWHERE for raw in _ELSEWHERE(read) if raw is not UNSET and bytes(raw) != b"null"]
    if tools is None or any(tool.get("type") not in _CLIENTS_TOOLS for tool in tools):
        found.append(ELSEWHERE)
    return found


def _countable(body: bytes) -> Countable:
    """body: one that was read before."""
    read = openai_body.decode(_RAW_BODY, body)
    items = read_input(openai_body.raw_json(read.input)).items
    calls = sum([item.get("type") == "function_call" for item in items]) if isinstance(items, list) else 0
    members = members_of(body, _COUNTABLE_UNINSTRUCTED if read.instructions is None else _COUNTABLE_MEMBERS)
    return Countable(_chat(read, items), responses=members, slack_tokens=CALL_SLACK_TOKENS * calls)


def _chat(read: _Members, items: str | list[dict[str, Any]] | None) -> dict[str, bytes] | None:
    """The chat members of which vLLM's /tokenize makes as many tokens as its Responses route of the body; None where nobody
    knows. items: its input, None where that is too large to be decoded."""
    tools, model = _read_tools(read.raw("tools")), (read.model or "").lower()
    if items is None or tools is None or any(name in model for name in _OTHERWISE_RENDERED):
        return None
    if read.raw("tool_choice") not in (b"null", b'"auto"') or read.raw("previous_input_messages") != b"null":
        return None
    messages, functions = chat_of(items, read.instructions), [_function_of(tool) for tool in tools]
    if messages is None or None in functions:
        return None
    # The route adds the model's own first token, which a chat leaves to its template.
    chat = {"messages": messages, "add_special_tokens": b"true"}
    if functions:
        chat["tools"] = msgspec.json.encode(functions)
    if read.raw("chat_template_kwargs") != b"null":
        chat["chat_template_kwargs"] = read.raw("chat_template_kwargs")
    effort = _effort(read)
    if effort is not None:
        chat["reasoning_effort"] = msgspec.json.encode(effort)
    return chat


def _effort(read: _Members) -> object:
    """How much is to be thought. Raises InvalidRequest where the numbers beside it are none."""
    reasoning = openai_body.decode(_ANYTHING, read.raw("reasoning"), param="reasoning")
    return reasoning.get("effort") if isinstance(reasoning, dict) else None


def _function_of(tool: dict[str, Any]) -> dict[str, Any] | None:
    """A function in the form of chats; None for any other tool."""
    if tool.get("type") != "function":
        return None
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
