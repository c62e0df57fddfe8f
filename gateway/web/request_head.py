"""What may be wrong with the head of a request that the parser let pass, above all what could be read in two ways."""

import re
from typing import Final

import httptools

from gateway.web.door import DoorReason

_FIELDS: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
_HOST: Final = re.compile(rb"[A-Za-z0-9\-._~%!$&'()*+,;=:\[\]]*\Z")


class HeadFields:
    """What a head says of the request as such: the values of Host, of Transfer-Encoding and of Expect (these two in lower
    case), and of Content-Length, which the parser lets come only once."""

    __slots__ = ("codings", "expectation", "hosts", "length")

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        """headers: names in lower case."""
        self.hosts: list[bytes] = []
        self.codings: list[bytes] = []
        self.length: bytes | None = None
        self.expectation: bytes | None = None
        for name, value in headers:
            if name not in _FIELDS:
                continue
            if name == b"host":
                self.hosts.append(value)
            elif name == b"content-length":
                self.length = value
            elif name == b"transfer-encoding":
                self.codings.append(value.lower())
            else:
                self.expectation = value.lower()


def fault_of(version: str, hosts: list[bytes], codings: list[bytes], expectation: bytes | None) -> DoorReason | None:
    """Why a head is refused; None: it is not. version: of HTTP. The others: the values of Host, of Transfer-Encoding and of
    Expect, the last two in lower case."""
    if version not in ("1.1", "1.0"):
        return DoorReason.VERSION
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return DoorReason.HOST
    if hosts and _HOST.match(hosts[0]) is None:
        return DoorReason.HOST
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return DoorReason.TRANSFER_CODING
    if expectation not in (None, b"100-continue") and version == "1.1":
        return DoorReason.EXPECTATION
    return None


def framing_of(codings: list[bytes], length: bytes | None) -> bytes | None:
    """The line of a head that tells how its body comes; None: it has none."""
    if codings:
        return b"transfer-encoding: chunked"
    if length is not None and length.strip(b"0"):
        return b"content-length: " + length
    return None


def path_and_query(method: bytes, target: bytes) -> tuple[bytes, bytes] | None:
    """What counts of a target, percent-encoded: whatever host an absolute one names, it is served here or not at all. None for
    one that is refused."""
    try:
        found = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return None
    if method == b"CONNECT" or found.schema not in (None, b"http", b"https"):
        return None
    return found.path or b"/", found.query or b""
