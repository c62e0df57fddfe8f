"""Watchers for OpenAI's chat and completions: an event stream, a plain answer, one that is compressed, one unreadable."""

from functools import partial
from typing import Any

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher, feed_each
from gateway.dialects.encoded import coding_of, unpacked
from gateway.dialects.openai_answer import (
    Answer,
    Choice,
    decode,
    last_usage,
    read_answer,
    read_answers,
    token_bytes,
    usage_of,
)
from gateway.dialects.sse import EventSplitter, lines_apart, read_event

# Plain answers are read whole up to here; of larger ones, the beginning and the end are kept (bytes).
ANSWER_LIMIT_BYTES = 1 << 20
ANSWER_HEAD_BYTES = 4 << 10
ANSWER_TAIL_BYTES = 64 << 10

_DONE = b"[DONE]"


def watch(*, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
    """The watcher for an answer of this kind. Usage can be hidden only in a stream that is not compressed."""
    if not content_encoding:
        return StreamWatcher(hide_usage=hide_usage) if is_event_stream else PlainChoices()
    if not is_event_stream:
        return unpacked(PlainChoices, content_encoding)
    return unpacked(partial(StreamWatcher, hide_usage=hide_usage and not coding_of(content_encoding)), content_encoding)


class StreamWatcher:
    """Reads each event of a stream as it passes; all those of one read in one go, where they are as engines send them.

    A decode of an event costs half a microsecond, no more than the substring searches that would spare it.
    With `hide_usage` the beginning of an event is held back until its end tells what it is; one larger than
    sse.EVENT_LIMIT_BYTES passes.
    """

    __slots__ = (
        "_ends_amid_event",
        "_is_done",
        "_is_hiding",
        "_open_choices",
        "_splitter",
        "has_error",
        "hit_cap",
        "is_complete",
        "text_bytes",
        "token_events",
        "usage",
    )

    def __init__(self, *, hide_usage: bool) -> None:
        self._splitter = EventSplitter()
        self._is_hiding = hide_usage
        self._is_done = False
        self._ends_amid_event = False
        self.is_complete = False
        self._open_choices: set[int] = set()  # have begun and not ended
        self.usage: Usage | None = None
        self.token_events = 0
        self.text_bytes = 0
        self.has_error = False
        self.hit_cap = False

    def passes(self, data: bytes) -> bool:
        if not self._is_hiding:
            return True
        usages = data.count(b'"usage"')
        if usages and usages != data.count(b'"usage":null'):  # which some engines put into every event
            return False
        # Behind an object an event has ended there; behind a third line end the next may have begun.
        return data.endswith(b"}\n\n") and self._splitter.is_fresh

    def feed(self, data: bytes) -> bytes:
        splitter = self._splitter
        line = splitter.line(data)
        if line is not None and (chunk := read_answer(line)) is not None and not (self._is_hiding and chunk.only_tells_usage):
            self._see_chunk(chunk)
            return data
        found = splitter.lines(data)
        if found is not None:
            events, lines = found
            if self._see_lines(lines):
                if events is not data:
                    splitter.pass_lines(data)
                return events if self._is_hiding else data
        if not self._is_hiding:
            for event, is_whole in splitter.feed(data):
                if is_whole:
                    self._see(event)
            return data
        was_held = splitter.tail_bytes
        pieces = splitter.feed(data)
        shown = [piece for piece, is_whole in pieces if not (is_whole and self._see(piece))]
        if not was_held and not splitter.tail_bytes and len(shown) == len(pieces):
            return data
        return b"".join(shown)

    def feed_passed(self, reads: list[bytes]) -> list[int]:
        found = lines_apart(reads) if self._splitter.is_fresh else None
        if found is None:
            return feed_each(self, reads)
        name, lines = found
        if name == b"error":
            self.has_error = True
        brought = [self._see_chunk(chunk) for chunk in read_answers(lines)]
        return brought + feed_each(self, reads[len(brought) :])

    def finish(self) -> bytes:
        rest, is_whole = self._splitter.finish()
        is_usage_event = bool(rest) and is_whole and self._see(rest)
        shown = b"" if self._is_hiding and is_usage_event else rest
        # What follows now would be read as a part of this last event, which lacks its empty line.
        self._ends_amid_event = self._ends_amid_event or bool(shown.strip(b"\r\n"))
        return shown if self._is_hiding else b""

    @property
    def usage_missing(self) -> bool:
        return self.usage is None

    @property
    def at_boundary(self) -> bool:
        if self._ends_amid_event:
            return False
        # While usage is hidden, an event that has only begun has not been relayed.
        return not self._splitter.is_amid_oversize if self._is_hiding else self._splitter.is_between_events

    def _see(self, event: bytes) -> bool:
        """Take in one event; True if it is one that only carries usage."""
        name, data = read_event(event)
        if name == b"error":
            self.has_error = True
        if data is None:
            return False
        if data == _DONE:
            self._is_done = self.is_complete = True
            return False
        chunk = read_answer(data)
        if chunk is None:
            return False
        self._see_chunk(chunk)
        return chunk.only_tells_usage and not chunk.is_error

    def _see_lines(self, lines: list[bytes]) -> bool:
        """Take in the data of many events; False, and nothing is taken in, where they have to be looked at one by one."""
        if is_done := lines[-1] == _DONE:
            lines.pop()
        chunks = list(read_answers(lines))
        if len(chunks) != len(lines):
            return False
        if self._is_hiding:
            for chunk in chunks:
                if chunk.only_tells_usage:
                    return False
        for chunk in chunks:
            self._see_chunk(chunk)
        if is_done:
            self._is_done = self.is_complete = True
        return True

    def _see_chunk(self, chunk: Answer) -> int:
        """Take in one event; 1 if it is a token event, 0 if not."""
        if chunk.error or chunk.object == "error":
            self.has_error = True
            return 0
        if chunk.usage is not None or chunk.timings is not None:
            self.usage = usage_of(chunk) or self.usage
        carried = 0
        for choice in chunk.choices or ():
            carried += token_bytes(choice)
            if choice.finish_reason or choice.index not in self._open_choices:
                self._see_end(choice)
        if not carried:
            return 0
        self.token_events += 1
        self.text_bytes += carried
        return 1

    def _see_end(self, choice: Choice) -> None:
        if choice.finish_reason:
            self._open_choices.discard(choice.index)
            self.hit_cap = self.hit_cap or choice.finish_reason == "length"
            self.is_complete = self.is_complete or not self._open_choices
        else:
            self._open_choices.add(choice.index)
            self.is_complete = self._is_done


class PlainWatcher:
    """Keeps a plain answer and reads it at its end. No event can follow it, and it is complete when it ends cleanly.

    Of one that is too large to decode, its first and its last bytes are kept. Other formats read it in their own way.
    """

    __slots__ = ("_head", "_is_oversize", "_kept", "has_error", "hit_cap", "text_bytes", "usage")

    token_events = 0
    is_complete = True
    at_boundary = False

    def __init__(self) -> None:
        self._kept: bytes | bytearray = b""  # nearly all answers come in one piece
        self._head = b""
        self._is_oversize = False
        self.usage: Usage | None = None
        self.text_bytes = 0
        self.has_error = False
        self.hit_cap = False

    def passes(self, data: bytes) -> bool:
        return True

    def feed_passed(self, reads: list[bytes]) -> list[int]:
        return feed_each(self, reads)

    def feed(self, data: bytes) -> bytes:
        kept = self._kept
        if not kept and len(data) <= ANSWER_LIMIT_BYTES:
            self._kept = data
            return data
        if isinstance(kept, bytearray):
            kept += data
        else:
            self._kept = bytearray(kept) + data
        if len(self._kept) > ANSWER_LIMIT_BYTES and not self._is_oversize:
            self._is_oversize = True
            self._head = bytes(self._kept[:ANSWER_HEAD_BYTES])
        if self._is_oversize:
            self._kept = bytearray(self._kept[-ANSWER_TAIL_BYTES:])
        return data

    def finish(self) -> bytes:
        if self._is_oversize:
            self.read_large(self._head, bytes(self._kept))
        else:
            self.read_whole(self._kept)
        self._kept = b""
        return b""

    @property
    def usage_missing(self) -> bool:
        return self.usage is None

    def read_large(self, head: bytes, tail: bytes) -> None:
        """An answer of which only the beginning and the end were kept."""
        self.usage = last_usage(tail)

    def read_whole(self, text: bytes | bytearray) -> None:
        """All of an answer."""
        self.read_answer(decode(text))

    def read_answer(self, answer: Any) -> None:
        """The decoded answer, whatever it is; None where it is no JSON."""


class PlainChoices(PlainWatcher):
    """One answer with its choices."""

    __slots__ = ()

    def read_whole(self, text: bytes | bytearray) -> None:
        answer = read_answer(text)
        if answer is None:
            return
        self.has_error = answer.is_error
        self.usage = usage_of(answer)
        for choice in answer.choices or ():
            self.text_bytes += token_bytes(choice)
            if choice.finish_reason == "length":
                self.hit_cap = True
