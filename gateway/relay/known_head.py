"""A head that has come before: whoever sends it again, byte for byte but for the digits of its length, with nothing behind it
but its body or the beginning of that, is served as the parser read that head the first time, and it need not see it, nor
the body.

Why this is no second opinion on what a message is: the parser stands between two messages, so it would read the same bytes
in the same way, and it has read all of them before but the digits. Those stand in the one `content-length` of a head without
a transfer coding, so they are all that frames the body; they count only as plain digits, and only of a body that is not
empty. Everything else is for the parser, which has not moved meanwhile: split heads, and whatever comes behind a message.
"""

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

MOST_DIGITS: Final = 15
# Of a connection one head is kept, and an idle connection must stay cheap.
MOST_BYTES: Final = 4096

_NOT_THIS: Final = (b"", 0)

Facts = TypeVar("Facts")


class KnownHead(Generic[Facts]):
    """facts: what follows from it."""

    __slots__ = ("_before", "_behind", "facts")

    def __init__(self, facts: Facts, before: bytes, behind: bytes) -> None:
        """before, behind: the bytes around the digits of its length."""
        self.facts = facts
        self._before = before
        self._behind = behind

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is this head and its whole body; None for everything else."""
        body, length = self.part_of(data)
        return body if length and len(body) == length else None

    def part_of(self, data: bytes) -> tuple[bytes, int]:
        """What there is of the body, and how long the whole one will be, if `data` is this head and no more than its body;
        a length of 0 for everything else."""
        before, behind = self._before, self._behind
        if not data.startswith(before):
            return _NOT_THIS
        start = len(before)
        end = data.find(b"\r", start, start + MOST_DIGITS + 1)
        if end < 0 or not data.startswith(behind, end):
            return _NOT_THIS
        digits = data[start:end]
        if not digits.isdigit() or digits.startswith(b"0"):
            return _NOT_THIS
        body, length = data[end + len(behind) :], int(digits)
        return (body, length) if len(body) <= length else _NOT_THIS


def known_head(data: bytes, first_line: bytes, headers: Sequence[tuple[bytes, bytes]], facts: Facts) -> KnownHead[Facts] | None:
    """The head at the beginning of `data`, which the parser has read from there so, as one of HTTP/1.1; None if it is not
    written as plainly as programs write, or is too large to keep. headers: names in lower case."""
    lines = data[: data.find(b"\r\n\r\n", 0, MOST_BYTES) + 2].split(b"\r\n")[:-1]
    if len(lines) != len(headers) + 1 or lines[0] != first_line:
        return None
    at, digits = len(lines[0]) + 2, range(0)
    for line, (name, value) in zip(lines[1:], headers, strict=True):
        said_name, _, said_value = line.partition(b":")
        if said_name.lower() != name or said_value.strip(b" \t") != value.strip(b" \t") or name == b"transfer-encoding":
            return None
        at += len(line) + 2
        if name == b"content-length":
            if digits or not value.isdigit() or len(value) > MOST_DIGITS or not line.endswith(value):
                return None
            digits = range(at - 2 - len(value), at - 2)
    return KnownHead(facts, data[: digits.start], data[digits.stop : at + 2]) if digits else None
