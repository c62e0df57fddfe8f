"""A request as bytes for the wire, framed by us and by nobody else."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.errors import InvalidRequest
from gateway.relay.headers import header_lines

# Above this, joining head and body costs more than it saves: they are handed over as two buffers of one write.
JOIN_BELOW_BYTES = 64 * 1024

_BLANKS = bytes(range(0x21)) + b"\x7f"
_FRAMING = (b"\r\ncontent-length: ", b"\r\ntransfer-encoding: ")
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
    head = method + b" " + target + b" HTTP/1.1\r\n" + header_lines(headers)
    if _FRAMING[0] in head or _FRAMING[1] in head:
        raise ValueError("how a request is framed is not the caller's to say")
    lines = len(headers) + 2
    if body or method not in _BODILESS:
        head += b"content-length: %d\r\n" % len(body)
        lines += 1
    head += b"\r\n"
    # Whatever the parts were: each line ends once, so nothing in them can have begun another.
    if len(head) - len(head.translate(None, b"\r\n\0")) != 2 * lines:
        raise InvalidRequest("a request header holds a line break or a NUL byte")
    if not (method and target) or len(target.translate(None, _BLANKS)) != len(target) or not method.isalpha():
        raise InvalidRequest("the request's path holds a blank or a control character")
    if len(body) < JOIN_BELOW_BYTES:
        return WireRequest((head + body,), method == b"HEAD")
    return WireRequest((head, body), method == b"HEAD")
