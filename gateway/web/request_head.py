"""What may be wrong with the head of a request that the parser let pass, above all what could be read in two ways."""

import re
from typing import Final

from gateway.web.door import DoorReason

_HOST: Final = re.compile(rb"[A-Za-z0-9\-._~%!$&'()*+,;=:\[\]]*\Z")


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
