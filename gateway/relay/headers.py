"""Which headers cross the gateway, in both directions, and which belong to one hop only (RFC 9110, 7.6.1).

Values go on as the bytes they are, in their order, each header on its own: two cookies stay two headers.
"""

import re
import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from functools import lru_cache

from gateway.core.errors import InvalidRequest

Header = tuple[bytes, bytes]

OWN_PREFIX = b"x-kvgate-"
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
"""Headers in which callers bring a key, by OpenAI's custom and by Anthropic's."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
# Ours to say: whom we talk to, how long the body is, and that the answer must be readable. Expect was answered by the
# server that took the request from the client.
_REPLACED_ONWARD = frozenset({b"host", b"content-length", b"accept-encoding", b"expect"})

_NOT_A_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]|^$")
_BREAKS_A_LINE = re.compile(rb"[\r\n\x00]")


def onward_headers(
    headers: Iterable[Header], *, host: bytes, authorization: bytes | None = None, keeps_credentials: bool = True
) -> list[Header]:
    """A client's headers as they go on to an engine.

    host: the engine's, with its port. authorization: takes the place of the caller's; None leaves the caller's as it is.
    keeps_credentials: False where the caller's key was meant for us: it goes no further, whatever header it stands in.
    `content-length` is not among them, whoever writes the body adds it. The answer is asked for unencoded, because
    usage must be seen as it passes. Raises InvalidRequest for a name or value that could break out of its line.
    """
    headers = list(headers)
    hop = _named_in_connection(headers)
    onward: list[Header] = [(b"host", host), (b"accept-encoding", b"identity")]
    for name, value in headers:
        name = name.lower()
        if name in _HOP_BY_HOP or name in _REPLACED_ONWARD or name in hop or name.startswith(OWN_PREFIX):
            continue
        if (name == b"authorization" and authorization is not None) or (name in CREDENTIALS and not keeps_credentials):
            continue
        if _NOT_A_NAME.search(name) or _BREAKS_A_LINE.search(value):
            raise InvalidRequest("a request header has a name or value that HTTP does not allow")
        onward.append((name, value))
    if authorization is not None:
        onward.append((b"authorization", authorization))
    return onward


def answer_headers(
    headers: Sequence[Header], own: Sequence[Header] = (), *, is_event_stream: bool, length_changes: bool
) -> list[Header]:
    """An engine's headers as they go back to the client, and `own` behind them.

    There is one Date: the engine's, else ours, so the server in front must add none. length_changes: the body will be
    rewritten on its way, so the engine's length says nothing. Event streams forbid to be held back or kept by a proxy.
    A header that could break out of its line is dropped: the answer is whole without it.
    """
    hop = _named_in_connection(headers)
    back: list[Header] = []
    seen: set[bytes] = set()
    for name, value in headers:
        name = name.lower()
        if name in _HOP_BY_HOP or name in hop or name.startswith(OWN_PREFIX):
            continue
        if (name == b"date" and name in seen) or (name == b"content-length" and length_changes):
            continue
        if _NOT_A_NAME.search(name) or _BREAKS_A_LINE.search(value):
            continue
        seen.add(name)
        back.append((name, value))
    if b"date" not in seen:
        back.append(date_header())
    if is_event_stream:
        if b"cache-control" not in seen:
            back.append((b"cache-control", b"no-cache"))
        if b"x-accel-buffering" not in seen:
            back.append((b"x-accel-buffering", b"no"))
    back += own
    return back


def date_header() -> Header:
    """The Date of an answer that brings none of its own: the server in front adds none."""
    return b"date", _date(int(time.time()))


def header_value(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first value of the header `name` (lower case); None if it is not there."""
    return next((value for key, value in headers if key.lower() == name), None)


def _named_in_connection(headers: Iterable[Header]) -> frozenset[bytes] | set[bytes]:
    """The headers that their sender declared to be for this hop."""
    named: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return named


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The Date of a wall-clock second; formatted once a second, as every answer may need it."""
    return formatdate(second, usegmt=True).encode()
