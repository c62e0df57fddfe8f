"""Answers that come compressed: read in a copy, relayed as they came. What cannot be read passes unseen."""

import zlib
from collections.abc import Callable

from gateway.core.demand import Usage
from gateway.dialects.dialect import Watcher, feed_each

_CODINGS = frozenset(("gzip", "x-gzip", "deflate"))
# zlib's window argument: gzip or zlib by their headers; the bare stream that some mean by deflate.
_WITH_HEADER = 47
_BARE = -15
# Decompressed at once, and at most for one read; text does not shrink further, only a bomb does (bytes).
_PIECE_BYTES = 64 << 10
_FEED_LIMIT_BYTES = 8 << 20


def coding_of(content_encoding: str | None) -> str:
    """How an answer is packed, as the upstream names it; empty where it is not."""
    coding = (content_encoding or "").strip().lower()
    return "" if coding == "identity" else coding


def unpacked(watcher: Callable[[], Watcher], content_encoding: str | None) -> Watcher:
    """The watcher, behind whatever unpacks for it what is packed; of what nobody here can unpack nothing is seen."""
    coding = coding_of(content_encoding) if content_encoding else ""
    if not coding:
        return watcher()
    return Decompressing(watcher(), coding) if coding in _CODINGS else Unseen()


class Unseen:
    """Watches nothing: the bytes pass, no usage is found, and no end can be doubted."""

    __slots__ = ()

    usage: Usage | None = None
    usage_missing = True
    token_events = 0
    text_bytes = 0
    has_error = False
    is_complete = True
    hit_cap = False
    at_boundary = False

    def passes(self, data: bytes) -> bool:
        return True

    def feed_passed(self, reads: list[bytes]) -> list[int]:
        return feed_each(self, reads)

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


class Decompressing:
    """Lets another watcher read the decompressed bytes. At nonsense it stops reading, and doubts no end from there on.

    A read that decompresses to more than 8 MiB is a bomb: from there on the answer passes unseen. No event of ours can be
    put into a compressed stream.
    """

    __slots__ = ("_head", "_inflater", "_is_blind", "_seen")

    at_boundary = False

    def __init__(self, seen: Watcher, encoding: str) -> None:
        self._seen = seen
        # Two bytes tell which of the two deflates it is; None: decided.
        self._head: bytes | None = b"" if encoding == "deflate" else None
        self._inflater = zlib.decompressobj(_WITH_HEADER)
        self._is_blind = False

    def passes(self, data: bytes) -> bool:
        return True

    def feed_passed(self, reads: list[bytes]) -> list[int]:
        return feed_each(self, reads)

    def feed(self, data: bytes) -> bytes:
        if not self._is_blind:
            try:
                self._inflate(data)
            except zlib.error:
                self._is_blind = True
        return data

    def finish(self) -> bytes:
        self._seen.finish()
        return b""

    def _inflate(self, data: bytes) -> None:
        """Show the watcher what `data` decompresses to. Raises zlib.error for nonsense, and for too much."""
        if self._head is not None:
            data = self._head + data
            if len(data) < 2:
                self._head = data
                return
            self._head = None
            if data[0] & 0x0F != 8 or int.from_bytes(data[:2], "big") % 31:
                self._inflater = zlib.decompressobj(_BARE)
        room = _FEED_LIMIT_BYTES
        while data:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(_WITH_HEADER)  # the next member of a gzip file
            piece = self._inflater.decompress(data, _PIECE_BYTES)
            room -= len(piece)
            if room < 0:
                raise zlib.error("more than any text shrinks to")
            self._seen.feed(piece)
            data = self._inflater.unconsumed_tail or self._inflater.unused_data

    @property
    def usage(self) -> Usage | None:
        return self._seen.usage

    @property
    def usage_missing(self) -> bool:
        return self._seen.usage_missing

    @property
    def token_events(self) -> int:
        return self._seen.token_events

    @property
    def text_bytes(self) -> int:
        return self._seen.text_bytes

    @property
    def has_error(self) -> bool:
        return self._seen.has_error

    @property
    def is_complete(self) -> bool:
        return self._is_blind or self._seen.is_complete

    @property
    def hit_cap(self) -> bool:
        return self._seen.hit_cap
