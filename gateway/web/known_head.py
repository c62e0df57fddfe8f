"""A head that a connection has brought before: whoever brings it again, byte for byte but for the digits of its length, with
the whole body behind it and nothing more, is served as the parser read that head the first time, and it need not see it.

Why this is no second opinion on what a request is: the parser stands between two messages, so it would read the same bytes
in the same way, and it has read all of them before but the digits. Those stand in the one `content-length` of a head without
a transfer coding, so they are all that frames the body; they count only as plain digits, and only if exactly so many bytes
are behind the head. Everything else is for the parser, which has not moved meanwhile: split heads, split bodies, whatever
comes behind a request.
"""

from typing import Final

from gateway.web.inference_head import InferenceHead

MOST_DIGITS: Final = 15
# One head a connection is kept, and an idle connection must stay cheap.
MOST_BYTES: Final = 4096


class KnownHead:
    """head: what follows from it."""

    __slots__ = ("_before", "_behind", "head")

    def __init__(self, head: InferenceHead, before: bytes, behind: bytes) -> None:
        """before, behind: the bytes around the digits of its length."""
        self.head = head
        self._before = before
        self._behind = behind

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is this head and its whole body, of a byte at least; None for everything else."""
        before, behind = self._before, self._behind
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + MOST_DIGITS + 1)
        if end < 0 or not data.startswith(behind, end):
            return None
        digits = data[start:end]
        if not digits.isdigit():
            return None
        body = data[end + len(behind) :]
        return body if body and len(body) == int(digits) else None


def known_head(data: bytes, head: InferenceHead) -> KnownHead | None:
    """The head at the beginning of `data`, which the parser has read from there as the head of a POST in HTTP/1.1; None if it
    is not written as plainly as clients write, or is too large to keep."""
    lines = data[: data.find(b"\r\n\r\n", 0, MOST_BYTES) + 2].split(b"\r\n")[:-1]
    if len(lines) != len(head.headers) + 1 or lines[0] != b"POST " + head.target + b" HTTP/1.1":
        return None
    at, digits = len(lines[0]) + 2, range(0)
    for line, (name, value) in zip(lines[1:], head.headers, strict=True):
        said_name, _, said_value = line.partition(b":")
        if said_name.lower() != name or said_value.strip(b" \t") != value.strip(b" \t") or name == b"transfer-encoding":
            return None
        at += len(line) + 2
        if name == b"content-length":
            if digits or not value.isdigit() or len(value) > MOST_DIGITS or not line.endswith(value):
                return None
            digits = range(at - 2 - len(value), at - 2)
    return KnownHead(head, data[: digits.start], data[digits.stop : at + 2]) if digits else None
