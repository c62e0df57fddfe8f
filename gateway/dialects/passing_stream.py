"""A stream that passes untouched while its events are read: for formats in which nothing ever has to be cut out.

Some formats repeat the whole answer in their last event, with the usage at its end. Such an event may be larger than what is
kept of any: then its first and its last bytes are shown, between which nothing of interest stands.
"""

from abc import ABC, abstractmethod

from gateway.core.demand import Usage
from gateway.dialects.dialect import feed_each
from gateway.dialects.sse import EventSplitter, lines_apart, read_event

# What is kept of an event that outgrew the limit of one (bytes).
HEAD_BYTES = 4 << 10
TAIL_BYTES = 64 << 10


class PassingStream(ABC):
    """What the watchers of such streams share. They say what an event tells: `see_event`, and `see_large` of a large one."""

    __slots__ = (
        "_ends_amid_event",
        "_large_head",
        "_large_tail",
        "_splitter",
        "has_error",
        "hit_cap",
        "is_complete",
        "text_bytes",
        "token_events",
        "usage",
    )

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._ends_amid_event = False
        self._large_head = b""
        self._large_tail = b""
        self.usage: Usage | None = None
        self.token_events = 0
        self.text_bytes = 0
        self.has_error = False
        self.hit_cap = False
        self.is_complete = False

    @abstractmethod
    def see_event(self, data: bytes) -> None:
        """The data of one event that has some."""

    @abstractmethod
    def see_large(self, head: bytes, tail: bytes) -> None:
        """An event of which only the beginning and the end were kept."""

    def passes(self, data: bytes) -> bool:
        return True

    def feed(self, data: bytes) -> bytes:
        pieces = self._splitter.feed(data)
        last = len(pieces) - 1
        for number, (piece, is_whole) in enumerate(pieces):
            if is_whole:
                self._see(piece)
                continue
            if len(self._large_head) < HEAD_BYTES:
                self._large_head += piece[: HEAD_BYTES - len(self._large_head)]
            self._large_tail = (self._large_tail + piece[-TAIL_BYTES:])[-TAIL_BYTES:]
            if number < last or not self._splitter.is_amid_oversize:
                self._end_large()
        return data

    def feed_passed(self, reads: list[bytes]) -> list[int]:
        found = lines_apart(reads) if self._splitter.is_fresh else None
        if found is None:
            return feed_each(self, reads)
        name, lines = found
        brought = []
        for data in lines:
            before = self.token_events
            self._see_data(name, data.strip())
            brought.append(self.token_events - before)
        return brought + feed_each(self, reads[len(lines) :])

    def finish(self) -> bytes:
        rest, is_whole = self._splitter.finish()
        if rest and is_whole:
            self._see(rest)
        # What follows now would be read as a part of this last event, which lacks its empty line.
        self._ends_amid_event = self._ends_amid_event or bool(rest.strip(b"\r\n"))
        return b""

    @property
    def usage_missing(self) -> bool:
        return self.usage is None

    @property
    def at_boundary(self) -> bool:
        return not self._ends_amid_event and self._splitter.is_between_events

    def _see(self, event: bytes) -> None:
        name, data = read_event(event)
        self._see_data(name, data)

    def _see_data(self, name: bytes, data: bytes | None) -> None:
        if name == b"error":
            self.has_error = True
        if data is not None:
            self.see_event(data)

    def _end_large(self) -> None:
        self.see_large(self._large_head, self._large_tail)
        self._large_head = self._large_tail = b""
