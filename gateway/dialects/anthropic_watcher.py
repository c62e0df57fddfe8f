"""Watchers for Messages: an event stream, a plain answer, one that is compressed, one unreadable."""

from typing import Any

from gateway.dialects.anthropic_answer import (
    Counts,
    blocks_of,
    is_capped,
    is_error,
    is_stop,
    last_usage,
    token_bytes,
    whole_usage,
)
from gateway.dialects.dialect import Watcher
from gateway.dialects.encoded import unpacked
from gateway.dialects.openai_answer import decode
from gateway.dialects.openai_watcher import PlainWatcher
from gateway.dialects.passing_stream import PassingStream


def watch(*, is_event_stream: bool, content_encoding: str | None) -> Watcher:
    """The watcher for an answer of this kind."""
    return unpacked(StreamWatcher if is_event_stream else PlainMessage, content_encoding)


class StreamWatcher(PassingStream):
    """Reads each event of a stream as it passes. Usage comes unasked, so there is none to hide.

    The stream is whole once it told why it stopped, or ended its message. Pings carry nothing.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counts()

    def see_large(self, head: bytes, tail: bytes) -> None:
        """No event of this format repeats the answer: one so large tells nothing that is looked for."""

    def see_event(self, data: bytes) -> None:
        value = decode(data)
        if not isinstance(value, dict):
            return
        if is_error(value):
            self.has_error = True
            return
        # The name is the SDKs' key, the type stands in the data as well: engines write both.
        match value.get("type"):
            case "message_start":
                message = value.get("message")
                if isinstance(message, dict):
                    self._counts.read_prompt(message.get("usage"))
            case "content_block_start":
                self._see_tokens(value.get("content_block"))
            case "content_block_delta":
                self._see_tokens(value.get("delta"))
            case "message_delta":
                self._counts.read_prompt(value.get("usage"))
                self._counts.read_output(value.get("usage"))
                self.usage = self._counts.usage
                delta = value.get("delta")
                if isinstance(delta, dict):
                    self.is_complete = self.is_complete or is_stop(delta.get("stop_reason"))
                    self.hit_cap = self.hit_cap or is_capped(delta.get("stop_reason"))
            case "message_stop":
                self.is_complete = True
            case _:
                pass  # pings, the ends of blocks, and what nobody knows yet

    def _see_tokens(self, block: Any) -> None:
        carried = token_bytes(block)
        if carried:
            self.token_events += 1
            self.text_bytes += carried


class PlainMessage(PlainWatcher):
    """One message."""

    __slots__ = ()

    def read_large(self, head: bytes, tail: bytes) -> None:
        self.usage = last_usage(tail)

    def read_answer(self, answer: Any) -> None:
        if not isinstance(answer, dict):
            return
        self.has_error = is_error(answer)
        self.usage = whole_usage(answer.get("usage"))
        self.hit_cap = is_capped(answer.get("stop_reason"))
        self.text_bytes = sum(map(token_bytes, blocks_of(answer)))
