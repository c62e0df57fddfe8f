"""A request as bytes for the wire, framed by us and by nobody else.

Head and body are put together last, so that the lines of a head which is sent often are made and checked once.
"""

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
    head = request_line(method, target) + checked_lines(headers)
    has_body = body or method not in _BODILESS
    request = with_body(head, body) if has_body else WireRequest((head + b"\r\n",), is_head=False)
    request.is_head = method == b"HEAD"
    return request


def request_line(method: bytes, target: bytes) -> bytes:
    """The first line of a request. Raises InvalidRequest for what would not be one line of three words."""
    if not (method and target) or len(target.translate(None, _BLANKS)) != len(target) or not method.isalpha():
        raise InvalidRequest("the request's path holds a blank or a control character")
    return method + b" " + target + b" HTTP/1.1\r\n"


def checked_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Headers as they stand in a head. Raises InvalidRequest if one would break out of its line, ValueError for one that
    frames."""
    if not headers:
        return b""
    lines = header_lines(headers)
    # Whatever the parts were: each line ends once, so nothing in them can have begun another.
    if len(lines) - len(lines.translate(None, b"\r\n\0")) != 2 * len(headers):
        raise InvalidRequest("a request header holds a line break or a NUL byte")
    for name in _FRAMING:
        if name in lines or lines.startswith(name[2:]):
            raise ValueError("how a request is framed is not the caller's to say")
    return lines


def with_body(head: bytes, body: bytes) -> WireRequest:
    """A request that has a body, if an empty one. head: its line and its headers, each checked, but for the length."""
    head += b"content-length: %d\r\n\r\n" % len(body)
    return WireRequest((head + body,) if len(body) < JOIN_BELOW_BYTES else (head, body), is_head=False)
