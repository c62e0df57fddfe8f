"""start_of: the first bytes of a list as JSON, which placement hashes, without writing what stands behind them."""

from typing import Any, Final

import msgspec

from gateway.core.request import AFFINITY_BYTES

# No text of a prompt lies deeper than this; who nests for fun is not followed.
_LEVELS: Final = 8
_encode: Final = msgspec.json.Encoder().encode


def start_of(value: Any) -> bytes:
    """The beginning of a value, written as compact JSON: at most AFFINITY_BYTES. Values with one beginning have one start."""
    if not isinstance(value, list):
        return _encode(_beginning(value))[:AFFINITY_BYTES]
    start = b""
    for each in value:
        start += (b"," if start else b"[") + _encode(each if _is_short(each) else _beginning(each))
        if len(start) >= AFFINITY_BYTES:
            return start[:AFFINITY_BYTES]
    return (start or b"[") + b"]"


def _is_short(value: Any) -> bool:
    """Whether the value is an object of short texts, as most messages are: it is its own beginning."""
    if type(value) is not dict:
        return False
    for each in value.values():  # noqa: SIM110 – a generator costs as much again
        if type(each) is not str or len(each) > AFFINITY_BYTES:
            return False
    return True


def _beginning(value: Any, levels: int = _LEVELS) -> Any:
    """The value without what cannot stand in the first bytes of its JSON."""
    if isinstance(value, str):
        return value[:AFFINITY_BYTES]
    if not isinstance(value, list | dict):
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [_beginning(each, levels - 1) for each in value[:AFFINITY_BYTES]]
    return {key: _beginning(each, levels - 1) for key, each in value.items()}
