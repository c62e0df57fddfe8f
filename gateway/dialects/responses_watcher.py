"""Watchers for Responses: an event stream of typed events, a plain answer, one that is compressed, one unreadable."""

import re
from typing import Any, Final

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher
from gateway.dialects.encoded import unpacked
from gateway.dialects.openai_answer import decode, is_error, last_usage, text_length, token_count
from gateway.dialects.openai_watcher import PlainWatcher
from gateway.dialects.passing_stream import PassingStream

# The events that end a stream, each with the whole answer in it.
_ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_END: Final = re.compile(rb'^event: ?(response\.\w+)\r?$|"type"\s*:\s*"(response\.\w+)"', re.MULTILINE)
# Keys cannot stand inside texts: their quotes would be escaped there.
_CAPPED: Final = re.compile(rb'"incomplete_details"\s*:\s*\{\s*"reason"\s*:\s*"max_output_tokens"')


def watch(*, is_event_stream: bool, content_encoding: str | None) -> Watcher:
    """The watcher for an answer of this kind."""
    return unpacked(ResponsesStream if is_event_stream else PlainResponses, content_encoding)


class ResponsesStream(PassingStream):
    """Whole once an event came that ends a response. vLLM ends a capped one with `response.completed`, and says in it that
    it is incomplete; llama.cpp says nowhere that a cap was reached. Where vLLM's engine dies, the stream breaks off without a
    word (all measured)."""

    __slots__ = ()

    def see_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_complete = True
            return
        event = decode(data)
        if not isinstance(event, dict):
            return
        kind = event.get("type")
        if is_error(event) or kind == "error":
            self.has_error = True
        elif isinstance(kind, str) and kind.endswith(".delta"):
            carried = text_length(event.get("delta"))
            if carried:
                self.token_events += 1
                self.text_bytes += carried
        elif isinstance(kind, str) and kind in _ENDS:
            self.is_complete = True
            response = event.get("response")
            if isinstance(response, dict):
                self.usage = read_usage(response.get("usage")) or self.usage
                self.hit_cap = self.hit_cap or is_capped(response)
                self.has_error = self.has_error or has_failed(response)
            self.has_error = self.has_error or kind == "response.failed"

    def see_large(self, head: bytes, tail: bytes) -> None:
        kinds = {(match[1] or match[2]).decode() for match in (_END.search(head), *_END.finditer(tail)) if match}
        if not kinds & _ENDS:
            return
        self.is_complete = True
        self.usage = last_usage(tail, read_usage) or self.usage
        self.hit_cap = self.hit_cap or bool(_CAPPED.search(head) or _CAPPED.search(tail))
        self.has_error = self.has_error or "response.failed" in kinds


class PlainResponses(PlainWatcher):
    """One response, or (llama.cpp, for `n`) a list of them."""

    __slots__ = ()

    def read_large(self, head: bytes, tail: bytes) -> None:
        self.usage = last_usage(tail, read_usage)
        self.hit_cap = bool(_CAPPED.search(head) or _CAPPED.search(tail))

    def read_answer(self, answer: Any) -> None:
        for response in answer if isinstance(answer, list) else [answer]:
            if not isinstance(response, dict):
                continue
            self.has_error = self.has_error or is_error(response) or has_failed(response)
            self.usage = _sum(self.usage, read_usage(response.get("usage")))
            self.hit_cap = self.hit_cap or is_capped(response)
            self.text_bytes += _output_bytes(response.get("output"))


def read_usage(usage: Any) -> Usage | None:
    """The usage of a response, None unless both of its counts make sense. What was thought is among the output."""
    if not isinstance(usage, dict):
        return None
    prompt, output = token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))
    if prompt is None or output is None:
        return None
    details = usage.get("input_tokens_details")
    cached = token_count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=None if cached is None else min(cached, prompt))


def is_capped(response: dict[str, Any]) -> bool:
    details = response.get("incomplete_details")
    return isinstance(details, dict) and details.get("reason") == "max_output_tokens"


def has_failed(response: dict[str, Any]) -> bool:
    return response.get("status") == "failed" or bool(response.get("error"))


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    """Usage of several samples of one prompt."""
    if one is None or other is None:
        return one or other
    return Usage(one.prompt_tokens, one.output_tokens + other.output_tokens, one.cached_tokens)


def _output_bytes(output: Any) -> int:
    """Bytes of the texts, thoughts and calls in the items of a response."""
    total = 0
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        total += sum(text_length(item.get(name)) for name in ("arguments", "input", "name"))
        for part in (*_list(item.get("content")), *_list(item.get("summary"))):
            if isinstance(part, dict):
                total += text_length(part.get("text")) + text_length(part.get("refusal"))
    return total


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
