"""POST /v1/responses: OpenAI's Responses, as vLLM and llama.cpp serve them."""

import json
from typing import Any, Final

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import Countable, InferenceRequest, MediaPart, Prompt
from gateway.dialects import openai_body
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES, count_items, schema_bytes, text_bytes
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.openai_body import OpenAIBody, Raw
from gateway.dialects.openai_error import error_body
from gateway.dialects.responses_input import CALL_SLACK_TOKENS, ELSEWHERE, InputText, chat_of, read_input
from gateway.dialects.responses_watcher import watch
from gateway.dialects.sse import comment

# vLLM knows no other. llama.cpp lets two of its own win over it, and `max_tokens` not (both measured).
CAP: Final = "max_output_tokens"
_OBEYED: Final = (CAP,)
_ALSO_OBEYED: Final = ("max_completion_tokens", "n_predict")

# What a template may render, beside the input and the instructions, as JSON.
_SCHEMAS: Final = ("tools", "text", "tool_choice", "reasoning", "chat_template_kwargs", "previous_input_messages")
# Where the prompt, or a part of it, is kept elsewhere.
_ELSEWHERE: Final = ("previous_response_id", "conversation", "prompt")
# What llama.cpp's own counter reads of a body.
_COUNTABLE: Final = ("input", "instructions", "tools", "tool_choice", "text", "reasoning", "chat_template_kwargs")
# Tools that are the client's to run. Of any other the engine may see to by itself, and go on with a longer prompt.
_CLIENTS_TOOLS: Final = frozenset(("function", "custom", "namespace"))
# A family whose prompts vLLM renders by a library, and in another way where it only counts.
_OTHERWISE_RENDERED: Final = ("gpt-oss", "gpt_oss")


class _ResponsesBody(OpenAIBody):
    input: Raw = msgspec.UNSET
    instructions: str | None = None
    max_output_tokens: openai_body.CapTokens = msgspec.UNSET
    background: bool | None = None
    truncation: Raw = msgspec.UNSET
    tools: Raw = msgspec.UNSET
    tool_choice: Raw = msgspec.UNSET
    text: Raw = msgspec.UNSET
    reasoning: Raw = msgspec.UNSET
    chat_template: Raw = msgspec.UNSET
    chat_template_kwargs: Raw = msgspec.UNSET
    previous_input_messages: Raw = msgspec.UNSET
    previous_response_id: Raw = msgspec.UNSET
    conversation: Raw = msgspec.UNSET
    prompt: Raw = msgspec.UNSET

    def raw(self, name: str) -> bytes:
        value = getattr(self, name)
        return msgspec.json.encode(value) if value is None or isinstance(value, str) else openai_body.raw_json(value)

    @property
    def may_be_cut(self) -> bool:
        """vLLM cuts the prompt to the context unless that is disabled, which `null` does not (measured)."""
        return self.may_truncate or (self.truncation is not msgspec.UNSET and self.raw("truncation") != b'"disabled"')


_BODY: Final = msgspec.json.Decoder(_ResponsesBody)
_TOOLS: Final = msgspec.json.Decoder(list[dict[str, Any]] | None)
_ANYTHING: Final = msgspec.json.Decoder()


class OpenAIResponses:
    """OpenAI's Responses. What was thought counts into the cap; the answers are one, or as many as llama.cpp's `n` says."""

    name = "openai_responses"
    path = "/v1/responses"

    def read_request(self, body: bytes) -> InferenceRequest:
        read = openai_body.decode_body(_BODY, body)
        if read.input is msgspec.UNSET:
            raise InvalidRequest("input is missing.", param="input")
        if read.background:
            raise InvalidRequest(
                "background is not served by this gateway: such an answer is computed after its request has ended, and"
                " nothing could hold the memory for it.",
                param="background",
            )
        cap, cap_tokens = openai_body.read_cap(read, _OBEYED, _ALSO_OBEYED)
        raw = bytes(read.input)
        text = read_input(raw)
        tools = _read_tools(read.raw("tools"))
        media = (*text.media, *_elsewhere(read, tools))
        prompt = Prompt(
            text_bytes=text.text_bytes
            + text_bytes(read.instructions or "")
            + sum(schema_bytes(read.raw(name)) for name in _SCHEMAS),
            messages=text.messages + (read.instructions is not None) + count_items(read.raw("previous_input_messages")),
            tools=count_items(read.raw("tools")),
            media_parts=len(media),
            media=media,
            may_be_cut=read.may_be_cut,
            has_own_template=read.raw("chat_template") != b"null",
            least_text_bytes=0 if read.may_be_cut else text.least_bytes,
        )
        start = raw if read.instructions is None else read.instructions[: openai_body.AFFINITY_BYTES].encode() + raw
        return InferenceRequest(
            model=read.model,
            prompts=(prompt,),
            cap=cap,
            cap_tokens=cap_tokens,
            is_chat=True,
            stream=read.stream is True,
            n=read.samples,
            affinity=openai_body.affinity(read, start),
            priority=read.engine_priority,
            countable=Countable() if read.may_be_cut else _countable(read, text, tools),
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


def _elsewhere(read: _ResponsesBody, tools: list[dict[str, Any]] | None) -> list[MediaPart]:
    """What of the prompt is not in the body: it is kept elsewhere, or the engine fetches it by a tool of its own."""
    found = [ELSEWHERE for name in _ELSEWHERE if read.raw(name) != b"null"]
    if tools is None or any(tool.get("type") not in _CLIENTS_TOOLS for tool in tools):
        found.append(ELSEWHERE)
    return found


def _countable(read: _ResponsesBody, text: InputText, tools: list[dict[str, Any]] | None) -> Countable:
    members = {name: read.raw(name) for name in _COUNTABLE if getattr(read, name) not in (msgspec.UNSET, None)}
    calls = 0 if not isinstance(text.items, list) else sum(item.get("type") == "function_call" for item in text.items)
    return Countable(chat=_chat(read, text, tools), responses=members, slack_tokens=CALL_SLACK_TOKENS * calls)


def _chat(read: _ResponsesBody, text: InputText, tools: list[dict[str, Any]] | None) -> dict[str, bytes] | None:
    """The chat members of which vLLM's /tokenize makes as many tokens as its Responses route of the body; None where nobody
    knows."""
    model = (read.model or "").lower()
    if text.items is None or tools is None or any(name in model for name in _OTHERWISE_RENDERED):
        return None
    if read.raw("tool_choice") not in (b"null", b'"auto"') or read.raw("previous_input_messages") != b"null":
        return None
    messages, functions = chat_of(text.items, read.instructions), [_function_of(tool) for tool in tools]
    if messages is None or None in functions:
        return None
    # The route adds the model's own first token, which a chat leaves to its template.
    chat = {"messages": messages, "add_special_tokens": b"true"}
    if functions:
        chat["tools"] = msgspec.json.encode(functions)
    if read.raw("chat_template_kwargs") != b"null":
        chat["chat_template_kwargs"] = read.raw("chat_template_kwargs")
    effort = _effort(read.raw("reasoning"))
    if effort is not None:
        chat["reasoning_effort"] = msgspec.json.encode(effort)
    return chat


def _effort(raw: bytes) -> object:
    reasoning = openai_body.decode(_ANYTHING, raw, param="reasoning")
    return reasoning.get("effort") if isinstance(reasoning, dict) else None


def _function_of(tool: dict[str, Any]) -> dict[str, Any] | None:
    """A function in the form of chats; None for any other tool."""
    if tool.get("type") != "function":
        return None
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
