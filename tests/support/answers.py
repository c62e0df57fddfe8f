"""Recorded answers of real engines, and feeding them to a watcher in pieces."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from gateway.dialects.dialect import Watcher

RECORDED = Path(__file__).parent.parent / "dialects" / "recorded"


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def streams() -> list[str]:
    return sorted(path.name for path in RECORDED.glob("*.txt"))


def cut(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """The data cut at the positions (bytes from the start)."""
    edges = [0, *sorted(positions), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def relay(watcher: Watcher, pieces: Iterable[bytes]) -> bytes:
    """What a client gets of an answer that arrives in these pieces and ends cleanly."""
    return b"".join(watcher.feed(piece) for piece in pieces) + watcher.finish()


def seen(watcher: Watcher) -> tuple[object, ...]:
    """Everything that a watcher knows."""
    return (
        watcher.usage,
        watcher.usage_missing,
        watcher.token_events,
        watcher.text_bytes,
        watcher.has_error,
        watcher.is_complete,
        watcher.hit_cap,
        watcher.at_boundary,
    )
