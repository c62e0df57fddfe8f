"""POST /completion and /completions: llama.cpp's own route, which has another body, another stream and other errors."""

import json
from typing import Final

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState, Countable, InferenceRequest
from gateway.dialects import openai_body
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.llama_cpp_prompt import read_native_prompts
from gateway.dialects.llama_cpp_watcher import watch
from gateway.dialects.openai_body import OpenAIBody, Raw
from gateway.dialects.openai_error import error_type, short_message
from gateway.dialects.sse import comment

CAP: Final = "n_predict"
# The strongest first; `null` is no word (measured, b11549).
_OBEYED: Final = (CAP, "max_completion_tokens", "max_tokens")


class _Body(OpenAIBody):
    prompt: Raw = msgspec.UNSET


_BODY: Final = msgspec.json.Decoder(_Body)


class LlamaCppCompletion:
    """llama.cpp's own completion, under either of its names. Without a cap, and with -1, it runs to the end of its slot."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = f"llama_cpp_{path.removeprefix('/')}"

    def read_request(self, body: bytes) -> InferenceRequest:
        read = openai_body.decode_body(_BODY, body)
        if read.prompt is msgspec.UNSET:
            raise InvalidRequest("prompt is missing.", param="prompt")
        cap, cap_tokens = _read_cap(read)
        prompts = read_native_prompts(bytes(read.prompt))
        return InferenceRequest(
            model=read.model,
            prompts=prompts.prompts,
            cap=cap,
            cap_tokens=cap_tokens,
            is_chat=False,
            stream=read.stream is True,
            n=read.samples,
            start=openai_body.session_key(read) or prompts.start,
            priority=read.engine_priority,
            to_count=Countable(texts=prompts.texts),
            cap_param=CAP,
        )

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return openai_body.write_cap(body, cap_tokens, obeyed=_OBEYED, also_obeyed=(), absent=CAP)

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        return openai_body.limit_priority(body, most_urgent)

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        return body  # it comes in every stream

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return watch(is_event_stream=is_event_stream, content_encoding=content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        """As llama.cpp writes its own: `code` is the status. What kvgate calls the reason stands beside it."""
        members = {
            **error.facts,
            "code": error.status,
            "message": short_message(error.message),
            "type": error_type(error.status),
            "param": error.param,
            "reason": error.code,
        }
        return json.dumps({"error": members}, allow_nan=False, separators=(",", ":")).encode()

    def waiting_event(self, words: str) -> bytes:
        return comment(words)

    def error_event(self, error: ErrorFacts) -> bytes:
        return b"data: " + self.error_body(error) + b"\n\n"


def _read_cap(body: OpenAIBody) -> tuple[CapState, int | None]:
    """The output cap. 0 runs one token; less than that is no limit here, and the engine's to refuse (measured)."""
    state = CapState.ABSENT
    for name in _OBEYED:
        value = getattr(body, name)
        if isinstance(value, int):
            return (CapState.NULL, None) if value < 0 else (CapState.SET, max(value, 1))
        if value is None:
            state = CapState.NULL
    return state, None
