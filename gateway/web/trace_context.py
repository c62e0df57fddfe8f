"""Trace context (W3C): the ids under which the caller follows its request, read for the log. The header itself goes on as it
came: kvgate makes no span of its own.

Callers choose these ids, so only what has exactly the standard's shape and length is taken for one.
"""

import re
from dataclasses import dataclass
from typing import Final

from gateway.web.asked import TRACEPARENT, Asked

_SHAPE: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.DOTALL)
_NO_TRACE: Final = b"0" * 32
_NO_PARENT: Final = b"0" * 16


@dataclass(frozen=True, slots=True)
class TraceContext:
    """trace_id: 32 hex digits, of the whole trace. parent_id: 16, of the caller's own span."""

    trace_id: str
    parent_id: str


def trace_context(asked: Asked) -> TraceContext | None:
    """The context of a request; None without one, with two, or with one that is not what the standard says it is."""
    value = asked.get(TRACEPARENT)
    if value is None:
        return None
    found = _SHAPE.fullmatch(value.strip())
    if found is None:
        return None
    version, trace_id, parent_id, more = found.groups()
    # Version 00 ends here; a later one may say more behind another dash, and ff is no version.
    if version == b"ff" or (version == b"00" and more is not None) or trace_id == _NO_TRACE or parent_id == _NO_PARENT:
        return None
    return TraceContext(trace_id.decode(), parent_id.decode())
