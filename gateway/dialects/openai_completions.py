"""POST /v1/completions."""

from typing import Annotated

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import Countable, InferenceRequest, Prompt
from gateway.dialects import openai_body
from gateway.dialects.chat_text import text_bytes
from gateway.dialects.dialect import ErrorFacts, Watcher
from gateway.dialects.openai_body import OpenAIBody
from gateway.dialects.openai_error import error_body, error_event
from gateway.dialects.openai_watcher import watch

_OBEYED = ("max_tokens",)
# vLLM ignores the newer name here, llama.cpp lets it win (both measured).
_ALSO_OBEYED = ("max_completion_tokens", "n_predict")

_TokenId = Annotated[int, msgspec.Meta(ge=0)]


class _CompletionsBody(OpenAIBody):
    prompt: str | list[_TokenId | str | list[_TokenId]] | None = None
    suffix: str | None = None
    prompt_embeds: str | list[str] | None = None


_COMPLETIONS_BODY = msgspec.json.Decoder(_CompletionsBody)


class OpenAICompletions:
    """OpenAI's completions: one body may hold many prompts, as texts or as token ids."""

    name = "openai_completions"
    path = "/v1/completions"

    def read_request(self, body: bytes) -> InferenceRequest:
        completions = openai_body.decode(_COMPLETIONS_BODY, body)
        cap, cap_tokens = openai_body.read_cap(completions, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)
        prompts, texts = _read_prompts(completions)
        return InferenceRequest(
            model=completions.model,
            prompts=prompts,
            cap=cap,
            cap_tokens=cap_tokens,
            is_chat=False,
            stream=completions.stream is True,
            n=completions.samples,
            best_of=completions.best_of or 1,
            wants_usage=completions.wants_usage,
            affinity=openai_body.affinity(completions, _start(completions.prompt)),
            # The engine's counter does not take a suffix, so the prompt alone would be too few.
            countable=Countable(texts=() if completions.suffix else tuple(msgspec.json.encode(text) for text in texts)),
        )

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        return openai_body.write_cap(body, cap_tokens, obeyed=_OBEYED, also_obeyed=_ALSO_OBEYED)

    def ask_usage(self, body: bytes) -> bytes:
        return openai_body.ask_usage(body)

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        return watch(is_event_stream=is_event_stream, hide_usage=hide_usage, content_encoding=content_encoding)

    def error_body(self, error: ErrorFacts) -> bytes:
        return error_body(error)

    def error_event(self, error: ErrorFacts) -> bytes:
        return error_event(error)


def _read_prompts(body: _CompletionsBody) -> tuple[tuple[Prompt, ...], list[str]]:
    """The prompts in order, and the texts among them. Raises InvalidRequest for a list that is empty or of mixed kinds."""
    suffix = text_bytes(body.suffix or "")
    embeds = _read_embeds(body)
    prompt = body.prompt
    if prompt is None:
        if not embeds:
            raise InvalidRequest("prompt is missing.", param="prompt")
        return embeds, []
    if isinstance(prompt, str):
        return (Prompt(text_bytes=text_bytes(prompt) + suffix), *embeds), [prompt]
    texts = [entry for entry in prompt if isinstance(entry, str)]
    lists = [entry for entry in prompt if isinstance(entry, list)]
    if not prompt:
        raise InvalidRequest("prompt is an empty list.", param="prompt")
    if len(texts) == len(prompt):
        return (*(Prompt(text_bytes=text_bytes(text) + suffix) for text in texts), *embeds), texts
    if len(lists) == len(prompt):
        if not all(lists):
            raise InvalidRequest("prompt holds an empty list of token ids.", param="prompt")
        return (*(Prompt(text_bytes=0, token_ids=len(ids)) for ids in lists), *embeds), []
    if texts or lists:
        raise InvalidRequest("prompt mixes texts, token ids and lists of token ids.", param="prompt")
    return (Prompt(text_bytes=0, token_ids=len(prompt)), *embeds), []


def _read_embeds(body: _CompletionsBody) -> tuple[Prompt, ...]:
    """vLLM's prompts as tensors, whose length stands in a pickle that nobody should open: prompts without a bound."""
    embeds = body.prompt_embeds
    if embeds is None:
        return ()
    return tuple(Prompt(text_bytes=0, media_parts=1) for _ in ([embeds] if isinstance(embeds, str) else embeds))


def _start(prompt: object) -> bytes:
    """The first bytes of the first prompt, as placement hashes them."""
    while isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt[: openai_body.AFFINITY_BYTES].encode()
    return msgspec.json.encode(prompt[: openai_body.AFFINITY_BYTES]) if isinstance(prompt, list) else b""
