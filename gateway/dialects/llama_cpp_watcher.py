"""Watchers for llama.cpp's own completions: an event stream, a plain answer, one that is compressed, one unreadable.

Every event but the last of a sequence says `"stop": false`; the last one brings the counts, the settings and the whole prompt
again, so that it may be large. A client can choose its members (`response_fields`), and `stop` be none of them.
"""

import re
from typing import Any, Final

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher
from gateway.dialects.encoded import unpacked
from gateway.dialects.openai_answer import decode, is_error, read_timings, text_length, token_count
from gateway.dialects.openai_watcher import PlainWatcher
from gateway.dialects.passing_stream import PassingStream

_TIMINGS: Final = re.compile(rb'"timings"\s*:\s*(\{[^{}]*\})')
_INDEX: Final = re.compile(rb'"index"\s*:\s*([0-9]{1,9})\b')
_AT_LIMIT: Final = re.compile(rb'"stop_type"\s*:\s*"limit"')
_GOES_ON: Final = re.compile(rb'"stop"\s*:\s*false')


def watch(*, is_event_stream: bool, content_encoding: str | None) -> Watcher:
    """The watcher for an answer of this kind."""
    return unpacked(NativeStream if is_event_stream else PlainNative, content_encoding)


class NativeStream(PassingStream):
    """Whole once every sequence that has begun has ended. There is no end mark."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        super().__init__()
        # Sequences that have begun and not ended; None before the first.
        self._open: set[int] | None = None

    def see_event(self, data: bytes) -> None:
        event = decode(data)
        if not isinstance(event, dict):
            return
        if is_error(event):
            self.has_error = True
            return
        carried = text_length(event.get("content"))
        if event.get("stop") is False:
            # Half a character comes as a token without a text.
            if carried or event.get("tokens"):
                self.token_events += 1
                self.text_bytes += carried
            self._begin(event.get("index"))
            return
        self.text_bytes += carried
        self._end(event.get("index"), read_counts(event), hit_cap=is_at_limit(event))

    def see_large(self, head: bytes, tail: bytes) -> None:
        if _GOES_ON.search(head) or _GOES_ON.search(tail):
            return
        index = _INDEX.search(head)
        self._end(int(index[1]) if index else 0, last_counts(tail), hit_cap=bool(_AT_LIMIT.search(tail)))

    def _begin(self, index: Any) -> None:
        self._open = set() if self._open is None else self._open
        self._open.add(index if isinstance(index, int) else 0)

    def _end(self, index: Any, counts: Usage | None, *, hit_cap: bool) -> None:
        self._open = set() if self._open is None else self._open
        if isinstance(index, int):
            self._open.discard(index)
        else:
            self._open.clear()
        self.is_complete = not self._open
        self.usage = add_counts(self.usage, counts)
        self.hit_cap = self.hit_cap or hit_cap


class PlainNative(PlainWatcher):
    """One sequence, or a list of them."""

    __slots__ = ()

    def read_large(self, head: bytes, tail: bytes) -> None:
        self.usage = last_counts(tail)
        self.hit_cap = bool(_AT_LIMIT.search(tail))

    def read_answer(self, answer: Any) -> None:
        for sequence in answer if isinstance(answer, list) else [answer]:
            if isinstance(sequence, dict):
                self.has_error = self.has_error or is_error(sequence)
                self.usage = add_counts(self.usage, read_counts(sequence))
                self.hit_cap = self.hit_cap or is_at_limit(sequence)
                self.text_bytes += text_length(sequence.get("content"))


def read_counts(sequence: dict[str, Any]) -> Usage | None:
    """The tokens of one sequence, None unless they make sense. Its prompt is told whole, whatever was found in the cache."""
    prompt, output = token_count(sequence.get("tokens_evaluated")), token_count(sequence.get("tokens_predicted"))
    timed = read_timings(sequence.get("timings"))
    if prompt is None or output is None:
        return timed
    cached = None if timed is None or timed.cached_tokens is None else min(timed.cached_tokens, prompt)
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def last_counts(text: bytes) -> Usage | None:
    """The tokens in the end of an answer that is too large to decode."""
    found = None
    for match in _TIMINGS.finditer(text):
        found = read_timings(decode(match.group(1))) or found
    return found


def add_counts(one: Usage | None, other: Usage | None) -> Usage | None:
    """Usage of two sequences together, each with its prompt."""
    if one is None or other is None:
        return one or other
    cached = None if one.cached_tokens is None or other.cached_tokens is None else one.cached_tokens + other.cached_tokens
    return Usage(one.prompt_tokens + other.prompt_tokens, one.output_tokens + other.output_tokens, cached)


def is_at_limit(sequence: dict[str, Any]) -> bool:
    return sequence.get("stop_type") == "limit" or sequence.get("stopped_limit") is True
