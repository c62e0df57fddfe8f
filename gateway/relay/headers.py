"""Which headers cross the gateway, in both directions, and which belong to one hop only (RFC 9110, 7.6.1).

Values go on as the bytes they are, in their order, each header on its own: two cookies stay two headers.
"""

import re
import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from enum import Enum, auto
from functools import lru_cache

from gateway.core.errors import InvalidRequest

Header = tuple[bytes, bytes]

OWN_PREFIX = b"x-kvgate-"
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
"""Headers in which callers bring a key, by OpenAI's custom and by Anthropic's."""
UNENCODED: Header = (b"accept-encoding", b"identity")
_AUTHORIZATION = frozenset({b"authorization"})
_NONE: frozenset[bytes] = frozenset()

_HOP_BY_HOP = frozenset(
    {
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


class _Fate(Enum):
    """What becomes of a header, by its name alone."""

    GOES_ON = auto()
    STAYS = auto()  # belongs to this hop, or is ours to say
    NAMES_MORE = auto()  # Connection, which names others that stay
    REPLACED = auto()  # goes on in answers; of a request, ours takes its place
    NO_NAME = auto()


_GOES_ON, _STAYS, _NAMES_MORE, _REPLACED, _NO_NAME = _Fate

# The names in use are few, so each is judged once; those that callers make up take 64 KiB of memory at most.
_MOST_KNOWN = 1024
_KNOWN_BYTES = 64
_known: dict[bytes, tuple[bytes, _Fate]] = {}


def _judge(name: bytes) -> tuple[bytes, _Fate]:
    """A header's name in lower case, and its fate. What `_known` does not know yet is asked here."""
    found = (name.lower(), _fate(name.lower()))
    if len(name) <= _KNOWN_BYTES and len(_known) < _MOST_KNOWN:
        _known[name] = found
    return found


def _fate(name: bytes) -> _Fate:
    if name == b"connection":
        return _NAMES_MORE
    if name in _HOP_BY_HOP or name.startswith(OWN_PREFIX):
        return _STAYS
    if name in _REPLACED_ONWARD:
        return _REPLACED
    return _NO_NAME if _NOT_A_NAME.search(name) else _GOES_ON


def onward_headers(
    headers: Iterable[Header], *, host: bytes, authorization: bytes | None = None, keeps_credentials: bool = True
) -> list[Header]:
    """A client's headers as they go on to an engine.

    host: the engine's, with its port. authorization: takes the place of the caller's; None leaves the caller's as it is.
    keeps_credentials: False where the caller's key was meant for us: it goes no further, whatever header it stands in.
    `content-length` is not among them, whoever writes the body adds it. The answer is asked for unencoded, because
    usage must be seen as it passes. Raises InvalidRequest for a name or value that could break out of its line.
    """
    dropped = CREDENTIALS if not keeps_credentials else _NONE if authorization is None else _AUTHORIZATION
    onward = [(b"host", host), UNENCODED, *kept_headers(headers, dropped)]
    if authorization is not None:
        onward.append((b"authorization", authorization))
    return onward


def kept_headers(headers: Iterable[Header], dropped: frozenset[bytes]) -> list[Header]:
    """Those of a client's headers that go on to any engine. dropped: names of some that do not (lower case).

    Raises InvalidRequest for a name or value that could break out of its line.
    """
    kept: list[Header] = []
    values: list[bytes] = []
    for given_name, value in headers:
        name, fate = _known.get(given_name) or _judge(given_name)
        if fate is not _GOES_ON:
            if fate is _NAMES_MORE:
                dropped |= _names_in(value)
            elif fate is _NO_NAME:
                raise _not_http()
            continue
        kept.append((name, value))
        values.append(value)
    if _breaks_a_line(values):
        raise _not_http()
    return [header for header in kept if header[0] not in dropped] if dropped else kept


def answer_headers(
    headers: Iterable[Header], own: Sequence[Header] = (), *, is_event_stream: bool, length_changes: bool
) -> list[Header]:
    """An engine's headers as they go back to the client, and `own` behind them.

    There is one Date: the engine's, else ours, so the server in front must add none. length_changes: the body will be
    rewritten on its way, so the engine's length says nothing. Event streams forbid to be held back or kept by a proxy.
    A header that could break out of its line is dropped: the answer is whole without it.
    """
    named: set[bytes] = set()
    back: list[Header] = []
    has_date = False
    values: list[bytes] = []
    for given_name, value in headers:
        name, fate = _known.get(given_name) or _judge(given_name)
        if fate is _STAYS or fate is _NO_NAME:
            continue
        if fate is _NAMES_MORE:
            named |= _names_in(value)
            continue
        if name == b"date":
            if has_date:
                continue
            has_date = True
        elif name == b"content-length" and length_changes:
            continue
        back.append((name, value))
        values.append(value)
    if _breaks_a_line(values):
        back = [header for header in back if not _breaks_a_line(header[1:])]
        has_date = any(name == b"date" for name, _ in back)
    if named:
        back = [header for header in back if header[0] not in named]
        has_date = has_date and b"date" not in named
    if not has_date:
        back.append(date_header())
    if is_event_stream:
        said = {name for name, _ in back}
        back += (header for header in _NOT_HELD_BACK if header[0] not in said)
    back += own
    return back


# For event streams: what keeps proxies from holding them back.
_NOT_HELD_BACK: Sequence[Header] = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


def _breaks_a_line(values: Sequence[bytes]) -> bool:
    """Whether something in one of these values would end its line."""
    text = b"".join(values)
    return len(text.translate(None, b"\r\n\0")) != len(text)


def _not_http() -> InvalidRequest:
    return InvalidRequest("a request header has a name or value that HTTP does not allow")


_NAMES_NONE = (b"keep-alive", b"close")


def _names_in(connection: bytes) -> frozenset[bytes]:
    """The headers that a Connection header declares to be for this hop."""
    if connection in _NAMES_NONE:
        return _NONE
    return frozenset([token.strip().lower() for token in connection.split(b",")])


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they stand in a head, each with the end of its line."""
    lines = b"\r\n".join(map(b": ".join, headers))
    return lines + b"\r\n" if lines else lines


def date_header() -> Header:
    """The Date of an answer that brings none of its own: the server in front adds none."""
    return b"date", _date(int(time.time()))


def header_value(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first value of the header `name` (lower case); None if it is not there."""
    for key, value in headers:
        if key == name or key.lower() == name:
            return value
    return None


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The Date of a wall-clock second; formatted once a second, as every answer may need it."""
    return formatdate(second, usegmt=True).encode()
