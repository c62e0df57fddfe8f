"""Server-sent events: cutting a stream into events, and reading one event's fields. Any bytes, cut anywhere.

Lines end in LF, CRLF or CR, also mixed; an event ends with an empty line. Engines send whole events of one line of data each
and end lines in LF, one of them or many in a read, so that is the way that costs nothing: `lines` gives the data of all that
are in one read, `lines_apart` that of many reads.
"""

import re

# An event larger than this passes unread: what it could tell is not worth the memory (bytes).
EVENT_LIMIT_BYTES = 64 << 10

# Atomic, so that the two halves of one CRLF are never taken for two line ends.
_EMPTY_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# An empty line that is cut anywhere begins no earlier than this before the cut (bytes).
_OVERLAP = 3
_BOM = b"\xef\xbb\xbf"
# What is before the data of an event of one line, and what is between the data of two.
_DATA = b"data: "
_NEXT = b"\n\ndata: "
_BEHIND_NAME = b"\ndata: "
_ODD = re.compile(rb"[\n\r\0]")


class EventSplitter:
    """Gives back all bytes that it was given, in order, cut after each event.

    A piece is (bytes, is_whole): a whole event with the empty line that ends it, or a part of an event that outgrew the
    limit. The rest, at most the limit, is kept until its end arrives: `tail_bytes` of it.
    """

    __slots__ = ("_is_oversize", "_tail")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._is_oversize = False

    @property
    def tail_bytes(self) -> int:
        return len(self._tail)

    @property
    def is_fresh(self) -> bool:
        """What comes next begins an event, and nothing is kept."""
        return not self._tail and not self._is_oversize

    @property
    def is_between_events(self) -> bool:
        """All bytes given so far end with an event's end."""
        return not self._is_oversize and not self._tail.strip(b"\r\n")

    @property
    def is_amid_oversize(self) -> bool:
        """The pieces given back so far end within an event that outgrew the limit."""
        return self._is_oversize

    def line(self, data: bytes) -> bytes | None:
        """The data of the one event that `data` is, if it has one line of data and nothing else, and begins one; None if not.
        Nothing need be fed then."""
        if data.find(b"\n") == len(data) - 2 and data.startswith(_DATA) and data.endswith(b"\n\n") and self.is_fresh:
            return data[6:-2] if b"\r" not in data else None
        return None

    def lines(self, data: bytes) -> tuple[bytes, list[bytes]] | None:
        """Every event that ends in `data`, and the data of each, if each has just one line of data and nothing else; None if
        not. Nothing is fed by that: `pass_lines` does it, unless `data` itself came back."""
        if b"\r" in data or self._is_oversize:
            return None
        events = data
        if self._tail or not data.endswith(b"\n\n"):
            end = data.rfind(b"\n\n") + 2
            if end < 2 or b"\r" in self._tail:
                return None
            events = bytes(self._tail) + data[:end]
        if not events.startswith(_DATA):
            return None
        lines = events[len(_DATA) : -2].split(_NEXT)
        return (events, lines) if b"\n" not in b"".join(lines) else None

    def pass_lines(self, data: bytes) -> None:
        """Feed what `lines` has read."""
        self._tail[:] = data[data.rfind(b"\n\n") + 2 :]

    def feed(self, data: bytes) -> list[tuple[bytes, bool]]:
        tail = self._tail
        if not tail and not self._is_oversize and data.find(b"\n\n") == len(data) - 2 >= 0 and b"\r" not in data:
            return [(data, True)]  # one whole event
        searched_to = max(0, len(tail) - _OVERLAP)
        text: bytes | bytearray = data
        if tail:
            tail += data
            text = tail
        event_end = _event_end if b"\r" in text else _event_end_lf
        pieces: list[tuple[bytes, bool]] = []
        start = 0
        while (end := event_end(text, max(start, searched_to))) is not None:
            pieces.append((bytes(text[start:end]), not self._is_oversize))
            self._is_oversize = False
            start = end
        if text is tail:
            del tail[:start]
        else:
            tail += data[start:] if start else data
        self._is_oversize = self._is_oversize or len(tail) > EVENT_LIMIT_BYTES
        if self._is_oversize and len(tail) > _OVERLAP:
            pieces.append((bytes(tail[:-_OVERLAP]), False))
            del tail[:-_OVERLAP]
        return pieces

    def finish(self) -> tuple[bytes, bool]:
        """The rest, at the end of the stream: (bytes, whether it can be read as an event that lacks its empty line)."""
        rest = bytes(self._tail)
        self._tail.clear()
        return rest, not self._is_oversize


def lines_apart(reads: list[bytes]) -> tuple[bytes, list[bytes]] | None:
    """The name of all events and the data of each, if each read is just one event with one line of data, as `lines` knows
    them, and all have the same name or none; None if not. The last read may be left out: what ends a stream is like nothing
    before it. What comes before the first read has ended an event."""
    if reads[0].find(b"\n\n") != len(reads[0]) - 2:
        return None  # as it is with all of them, mostly
    return _all_apart(reads) or (_all_apart(reads[:-1]) if len(reads) > 1 else None)


def _all_apart(reads: list[bytes]) -> tuple[bytes, list[bytes]] | None:
    head, name = reads[0][: reads[0].find(_DATA) + len(_DATA)], b""
    if head != _DATA:
        name = head.removesuffix(_BEHIND_NAME)
        if not name.startswith(b"event:") or name == head or _ODD.search(name) is not None:
            return None
        name = name[6:].strip()
    # Where a NUL stands in no line, it stands only where one read ends and the next begins.
    text = b"\0".join(reads)
    lines = text[len(head) : -2].split(b"\n\n\0" + head)
    if len(lines) != len(reads) or not text.endswith(b"\n\n"):
        return None
    joined = b"".join(lines)
    return None if b"\n" in joined or b"\0" in joined or b"\r" in joined else (name, lines)


def _event_end_lf(text: bytes | bytearray, start: int) -> int | None:
    """Where the event that goes on at `start` ends, None if its end is not there yet. For text without any CR."""
    end = text.find(b"\n\n", start)
    return None if end < 0 else end + 2


def _event_end(text: bytes | bytearray, start: int) -> int | None:
    match = _EMPTY_LINE.search(text, start)
    # A CR at the very end may be the first half of a CRLF.
    if match is None or (match.end() == len(text) and text[-1] == 0x0D):
        return None
    return match.end()


def read_event(event: bytes) -> tuple[bytes, bytes | None]:
    """An event's name (empty if it has none) and its data, None if it has none. Comments and other fields are left out."""
    name = b""
    if b"\r" not in event:  # a name or none, and one line of data, as engines send them
        line, _, rest = event.partition(b"\n") if event.startswith(b"event:") else (b"", b"", event)
        if rest.startswith(b"data:") and rest.find(b"\n") == len(rest) - 2:
            return line[6:].strip(), rest[5:].strip()
    data: list[bytes] = []
    for line in _LINE_END.split(event.removeprefix(_BOM)):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.strip()
    return name, b"\n".join(data).strip() if data else None


def comment(words: str) -> bytes:
    """One comment, which every reader of event streams skips. words: one line of plain ASCII."""
    return b": " + words.encode("ascii") + b"\n\n"
