"""A request as bytes for the wire, framed by us and by nobody else."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.errors import InvalidRequest

# Above this, joining head and body costs more than it saves: they are handed over as two buffers of one write.
JOIN_BELOW_BYTES = 64 * 1024

_NOT_ONE_WORD = re.compile(rb"[\x00-\x20\x7f]|^$")
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})


@dataclass(slots=True, eq=False)
class WireRequest:
    """What goes out, in order, as one write. is_head: the answer will have no body, whatever its head says."""

    buffers: tuple[bytes, ...]
    is_head: bool


def write_request(method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> WireRequest:
    """The bytes of a request; `content-length` is added here.

    headers: all others, names in lower case, `host` among them, none that frames. Raises InvalidRequest if any part would
    break out of its line (CR, LF, NUL; a blank in the request line), ValueError for a framing header: our own mistake.
    """
    parts = [method, b" ", target, b" HTTP/1.1\r\n"]
    for name, value in headers:
        if name in _FRAMING:
            raise ValueError(f"{name!r} is not the caller's to set")
        parts += (name, b": ", value, b"\r\n")
    lines = len(headers) + 2
    if body or method not in _BODILESS:
        parts.append(b"content-length: %d\r\n" % len(body))
        lines += 1
    parts.append(b"\r\n")
    head = b"".join(parts)
    # Whatever the parts were: each line ends once, so nothing in them can have begun another.
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise InvalidRequest("a request header holds a line break or a NUL byte")
    if _NOT_ONE_WORD.search(method) or _NOT_ONE_WORD.search(target):
        raise InvalidRequest("the request's path holds a blank or a control character")
    if len(body) < JOIN_BELOW_BYTES:
        return WireRequest((head + body,), method == b"HEAD")
    return WireRequest((head, body), method == b"HEAD")
