"""The lanes file, KVGATE_LANES: TOML in, a LaneTable out. README.md ("Lanes") says what may stand in it.

It promises: what is not understood is an error that names the lane and the key; nothing is guessed and nothing ignored.
"""

import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from gateway.core.lane_table import LaneTable, LaneTerms
from gateway.core.names import LaneName
from gateway.units import parse_duration

MOST_LANES: Final = 32  # each is a label of several metrics
_NAME_LENGTH: Final = 64


def read_lanes(path: Path) -> LaneTable:
    """The table that a file holds.

    Raises OSError if it cannot be read, ValueError with one sentence for the operator if it does not make sense.
    """
    with path.open("rb") as file:
        try:
            content = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"this is not TOML: {error}") from None
    return parse_lanes(content)


def parse_lanes(content: Mapping[str, Any]) -> LaneTable:
    """The table in the content of a file. Raises ValueError with one sentence."""
    strangers = [key for key in content if key != "lanes"]
    if strangers:
        raise ValueError(f"{strangers[0]!r} is not understood: a lane is written as a table [lanes.<name>]")
    lanes = content.get("lanes")
    if not isinstance(lanes, dict) or not lanes:
        raise ValueError("it holds no lane: a lane is written as a table [lanes.<name>]")
    if len(lanes) > MOST_LANES:
        raise ValueError(f"{len(lanes)} lanes are too many: at most {MOST_LANES}")
    return LaneTable(tuple(_lane(name, keys) for name, keys in lanes.items()))


def _lane(name: str, keys: object) -> LaneTerms:
    if not (0 < len(name) <= _NAME_LENGTH and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise ValueError(f"{name!r} cannot be the name of a lane: letters, digits, - and _, at most {_NAME_LENGTH}")
    if not isinstance(keys, dict):
        raise ValueError(f"the lane {name} is not a table: write [lanes.{name}]")
    terms: dict[str, Any] = {}
    for key, value in keys.items():
        read = _KEYS.get(key)
        if read is None:
            raise ValueError(f"the lane {name} has no key {key!r}: there are {', '.join(_KEYS)}")
        try:
            terms |= read(value)
        except ValueError as error:
            raise ValueError(f"{key} of the lane {name}: {error}") from None
    return LaneTerms(LaneName(name), **terms)


def _weight(value: object) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{value!r} is not a number above 0")
    return {"weight": float(value)}


def _whole(attribute: str) -> Callable[[object], dict[str, Any]]:
    def read(value: object) -> dict[str, Any]:
        return {attribute: _whole_number(value)}

    return read


def _whole_or_share(whole: str, share: str) -> Callable[[object], dict[str, Any]]:
    """A reader of a whole number, or of a percentage as text."""

    def read(value: object) -> dict[str, Any]:
        if isinstance(value, str):
            return {share: _share(value)}
        return {whole: _whole_number(value)}

    return read


def _whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a whole number of at least 1")
    return value


def _share(text: str) -> Fraction:
    number = text.strip().removesuffix("%")
    try:
        share = Fraction(number) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not text.strip().endswith("%") or not 0 < share <= 1:
        raise ValueError(f"{text!r} is not a part: write it as percent, above 0% and at most 100%")
    return share


def _duration(value: object) -> dict[str, Any]:
    if not isinstance(value, str) or (seconds := parse_duration(value)) <= 0:
        raise ValueError(f"{value!r} is not a time above 0: write it with its unit, like 10s")
    return {"deadline_s": seconds}


def _flag(attribute: str) -> Callable[[object], dict[str, Any]]:
    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return {attribute: value}

    return read


_KEYS: Final[Mapping[str, Callable[[object], dict[str, Any]]]] = {
    "weight": _weight,
    "cap": _whole_or_share("cap_blocks", "cap_share"),
    "queue": _whole("max_requests"),
    "deadline": _duration,
    "above": _whole_or_share("above_tokens", "above_share"),
    "header": _flag("by_header"),
    "open": _flag("is_open"),
}
