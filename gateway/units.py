"""Durations and sizes as operators write them, and back. Seconds are floats, bytes are integers."""

import re
from collections.abc import Mapping
from typing import Final

_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES: Final[Mapping[str, int]] = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([a-zA-Z]*)")
# Thirty years, and more memory than there is: beyond, a figure is a slip, and no text could show it so that it is read again.
_LONGEST_S: Final = 1e9
_LARGEST_BYTES: Final = 2**60


def parse_duration(text: str) -> float:
    """Seconds in `500ms`, `60s`, `5m`, `1h`, or a bare number of seconds. Never negative, never above thirty years.

    Raises ValueError with a sentence that says what a duration looks like.
    """
    amount, unit = _split(text)
    factor = _SECONDS.get(unit or "s")
    if amount is None or factor is None or amount * factor > _LONGEST_S:
        raise ValueError(f"{text!r} is not a duration: write it like 500ms, 60s, 5m, 1h, or as a number of seconds")
    return round(amount * factor, 6)


def parse_bytes(text: str) -> int:
    """Bytes in `32MiB`, `10MB`, `512KiB`, or a bare number of bytes.

    Raises ValueError with a sentence that says what a size looks like.
    """
    amount, unit = _split(text)
    factor = _BYTES.get(unit or "b")
    if amount is None or factor is None or amount * factor > _LARGEST_BYTES:
        raise ValueError(f"{text!r} is not a size: write it like 32MiB, 10MB, 512KiB, or as a number of bytes")
    return int(amount * factor)


def show_duration(duration_s: float) -> str:
    """The shortest text that `parse_duration` reads as the same duration: 60s, 500ms, 1.5s."""
    if 0 < duration_s < 1:
        return f"{round(duration_s * 1000, 3):.12g}ms"
    return f"{round(duration_s, 6):.15g}s"


def show_bytes(size_bytes: int) -> str:
    """A text that `parse_bytes` reads as the same size, in the largest unit that divides it."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = _BYTES[unit.lower()]
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def _split(text: str) -> tuple[float | None, str]:
    """The number and the lower-case unit of `text`; no number if it does not have that form."""
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None:
        return None, ""
    return float(match[1]), match[2].lower()
