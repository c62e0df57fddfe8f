"""Asked: what a request's headers say to the gateway itself, picked out in one pass.

Most requests say little or nothing of it, and each header is looked at once, however many rooms might want one.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.relay.headers import Header

EXPECT: Final = b"expect"
LANE: Final = b"x-kvgate-lane"
PRIORITY: Final = b"x-kvgate-priority"
RETRY_COUNT: Final = b"x-stainless-retry-count"
TRACEPARENT: Final = b"traceparent"
# Seconds that SDKs say they will wait for an answer.
PATIENCE: Final = (b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-request-timeout")

_NAMES: Final = frozenset((EXPECT, LANE, PRIORITY, RETRY_COUNT, TRACEPARENT, *PATIENCE))

Asked = Mapping[bytes, bytes]
"""The first value of each such header, by its name in lower case."""


def asked_of(headers: Iterable[Header]) -> Asked:
    """What the headers of a request ask. Two traces are none, so of a header of them nothing is left."""
    asked: dict[bytes, bytes] = {}
    for name, value in headers:
        name = name.lower()
        if name in _NAMES:
            asked[name] = b"" if name == TRACEPARENT and name in asked else asked.get(name, value)
    return asked
