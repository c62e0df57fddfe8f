"""POST /v1/completions."""

from dataclasses import replace

import msgspec

from gateway.core.request import Countable, InferenceRequest
from gateway.dialects import openai_body
from gateway.dialects.completions_prompt import read_prompts
from gateway.dialects.dialect import ErrorFacts
from gateway.dialects.openai_body import OpenAIBody, Raw
from gateway.dialects.openai_error import error_body, error_event
from gateway.dialects.openai_watcher import watch
from gateway.dialects.sse import comment

_OBEYED = ("max_tokens",)
# vLLM ignores the newer name here, llama.cpp lets it win (both measured).
_ALSO_OBEYED = ("max_completion_tokens", "n_predict")


class _CompletionsBody(OpenAIBody):
    prompt: Raw = msgspec.UNSET
    suffix: str | None = None
    prompt_embeds: Raw = msgspec.UNSET


_COMPLETIONS_BODY = msgspec.json.Decoder(_CompletionsBody)


class OpenAICompletions:
    """OpenAI's completions: one body may hold many prompts, as texts or as token ids."""

    name = "openai_completions"
    path = "/v1/completions"
    watcher = staticmethod(watch)

    def read_request(self, body: bytes) -> InferenceRequest:
        completions = openai_body.decode_body(_COMPLETIONS_BODY, body)
        cap, cap_tokens = openai_body.read_cap(completions, _OBEYED, _ALSO_OBEYED)
        read = read_prompts(
            openai_body.raw_json(completions.prompt),
            suffix=completions.suffix,
            embeds=openai_body.raw_json(completions.prompt_embeds),
        )
        request = InferenceRequest(
            model=completions.model,
            prompts=tuple(replace(each, least_text_bytes=0, may_be_cut=True) for each in read.prompts)
            if completions.may_truncate
            else read.prompts,
            cap=cap,
            cap_tokens=cap_tokens,
            is_chat=False,
            stream=completions.stream is True,
            start=openai_body.session_key(completions) or read.start,
            # The engine's counter does not take a suffix, so the prompt alone would be too few.
            to_count=Countable(texts=() if completions.suffix else read.texts),
        )
        openai_body.add_choices(request, completions)
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
