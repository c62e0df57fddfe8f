"""Dialect: what kvgate must know about one wire format. Watcher: what it learns from one answer while the bytes pass.

Both are pure: bytes and values in, values out; nothing here waits, logs or counts. A new wire format is one file with a
`Dialect` in it and one line in the table of `gateway.dialects`; one contract suite runs over all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.demand import Usage
from gateway.core.request import InferenceRequest


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """An error of kvgate's own, before a dialect dresses it.

    status: the HTTP status it goes out with, or would have. code: a reject reason or another stable word for programs.
    param: the member of the body at fault, if it is one. facts: the numbers behind it, shown beside the message.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    facts: Mapping[str, int] = field(default_factory=dict)


class Watcher(Protocol):
    """Sees one answer's body as it passes. Never raises, whatever the bytes are, and never changes one of them.

    The one exception is asked for by name: with `hide_usage` the event that only carries usage, which the caller did not
    ask for, is left out.
    """

    def feed(self, data: bytes) -> bytes:
        """The bytes to relay now: the very same object, unless a usage event is being cut out."""
        ...

    def passes(self, data: bytes) -> bool:
        """Whether `feed` would give back the very same object: then it may be fed after it was relayed."""
        ...

    def feed_passed(self, reads: list[bytes]) -> list[int]:
        """As `feed` of each of these reads, which have passed, one after the other. How many token events each brought."""
        ...

    def finish(self) -> bytes:
        """The upstream ended its answer cleanly: what was held back, mostly nothing. The facts below are final now."""
        ...

    @property
    def usage(self) -> Usage | None:
        """The last usage that made sense; final after `finish`."""
        ...

    @property
    def usage_missing(self) -> bool:
        """No usage made sense so far."""
        ...

    @property
    def token_events(self) -> int:
        """Events that carried text, reasoning or a tool call. A plain answer has none."""
        ...

    @property
    def text_bytes(self) -> int:
        """About how many bytes of such text, without their JSON."""
        ...

    @property
    def has_error(self) -> bool:
        """An error event or an error object passed. What follows it, `[DONE]` included, does not make it a success."""
        ...

    @property
    def is_complete(self) -> bool:
        """The engine said that it is done: a finish reason or the end mark of a stream. A plain answer: always true."""
        ...

    @property
    def hit_cap(self) -> bool:
        """Some choice ended because its output cap was reached."""
        ...

    @property
    def at_boundary(self) -> bool:
        """The relayed bytes stand between two events: an event of ours can follow."""
        ...


def feed_each(watcher: Watcher, reads: list[bytes]) -> list[int]:
    """`Watcher.feed_passed`, where nothing is gained by taking many reads at once."""
    brought = []
    for data in reads:
        before = watcher.token_events
        watcher.feed(data)
        brought.append(watcher.token_events - before)
    return brought


class Dialect(Protocol):
    """One wire format on one route."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """The route, as clients of this format call it."""
        ...

    def read_request(self, body: bytes) -> InferenceRequest:
        """What the caller asks for. Raises InvalidRequest for a body that no engine would serve as it stands."""
        ...

    def write_cap(self, body: bytes, cap_tokens: int) -> bytes:
        """The body with its output cap set to `cap_tokens`; every other byte stays.

        body: one that `read_request` took. No member is ever written twice.
        """
        ...

    def limit_priority(self, body: bytes, most_urgent: int) -> bytes:
        """The body with no priority in it that goes before `most_urgent` in the engine, where the lower goes first; every
        other byte stays.

        body: one that `read_request` took.
        """
        ...

    def ask_usage(self, body: bytes, request: InferenceRequest) -> bytes:
        """The body of a stream, asking for usage at its end; every other byte stays.

        request: what `read_request` made of the body, with `stream` true and `wants_usage` false. The body comes back
        unchanged where the caller would see more than the one event that the watcher can hide.
        """
        ...

    def watcher(self, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None) -> Watcher:
        """Eyes for one answer. content_encoding: as the upstream names it.

        Compressed answers are read in a copy (gzip, deflate; others pass unseen) and relayed as they came, so nothing can
        be hidden in them: ask the upstream for `identity` where usage was asked for.
        """
        ...

    def error_body(self, error: ErrorFacts) -> bytes:
        """An error answer in the shape that clients of this format read: strict JSON."""
        ...

    def waiting_event(self, words: str) -> bytes:
        """Something in a stream that clients of this format skip and proxies count as life. words: one line of plain ASCII."""
        ...

    def error_event(self, error: ErrorFacts) -> bytes:
        """Whole events that end a broken stream so that clients of this format raise."""
        ...
