"""Plain answers of an engine whose heads are as the last one's was: one head is kept for all connections of a pool.

With the engine's Date in it a head is the same for a second at most, and with an id of the request in it never: then it is
soon no longer kept, and only tried again now and then.
"""

from typing import Final

from gateway.relay.known_head import KnownHead, known_head
from gateway.relay.upstream import UpstreamHead

# So many heads in a row are kept although none came again; from then on, one of so many.
_MOST_UNSEEN: Final = 8
_TRIED_AGAIN: Final = 64


class KnownAnswer:
    """The head that a plain answer had last, if it may come again."""

    __slots__ = ("_known", "_unseen")

    def __init__(self) -> None:
        self._known: KnownHead[UpstreamHead] | None = None
        self._unseen = 0

    def read(self, data: bytes) -> tuple[UpstreamHead, bytes] | None:
        """Head and body, if `data` is a whole answer with that head and nothing more; None for everything else."""
        known = self._known
        if known is None:
            return None
        body = known.body_of(data)
        if body is None:
            return None
        self._unseen = 0
        return known.facts.of_length(len(body)), body

    def learn(self, data: bytes, head: UpstreamHead) -> None:
        """A connection that may carry another brought a whole answer with this head in one read, as the parser read it."""
        self._unseen += 1
        if self._unseen <= _MOST_UNSEEN or self._unseen % _TRIED_AGAIN == 0:
            line, _, _ = data.partition(b"\r\n")
            self._known = known_head(data, line, head.headers, head) if line.startswith(b"HTTP/1.1 ") else None
