"""A CSV as a trace: a line of names, then a request a line.

    arrival_s,input_tokens,output_tokens[,cap_tokens][,tenant][,session,turn,shared_tokens,think_s]

arrival_s: seconds from the start. Where there are session and think_s, a turn comes think_s after its session's previous
answer ended, and arrival_s matters for a session's first turn only. An empty output_tokens is one that is not known; an empty
cap_tokens, or no such column, is no cap. Other columns are not looked at.
"""

import csv
import math
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.replay.trace import Request, RowError

MOST_TOKENS: Final = 10**9
_LATEST_S: Final = 1e12
_LONGEST_NAME: Final = 256


def read_csv_rows(lines: Iterable[tuple[int, bytes]], prefix: str = "") -> Iterator[tuple[Request, None]]:
    """The requests of numbered lines, the first of which has the names. prefix: for sessions, so that those of several files
    are not taken for each other's. Raises RowError."""
    numbered = iter(lines)
    number, line = next(numbered)
    names = [name.strip().lower() for name in _fields(number, line)]
    for name in ("input_tokens", "output_tokens"):
        if name not in names:
            raise RowError(number, f"the column {name} is missing: there are {_shown(', '.join(names))}")
    if "arrival_s" not in names and not {"session", "think_s"} <= set(names):
        raise RowError(number, "the column arrival_s is missing, and there are no sessions with think_s either")
    if len(set(names)) < len(names):
        raise RowError(number, "two columns have one name")
    for number, line in numbered:
        fields = _fields(number, line)
        if len(fields) != len(names):
            raise RowError(number, f"{len(fields)} fields under {len(names)} names")
        row = dict(zip(names, fields, strict=True))
        session = _name(number, "session", row)
        output_tokens = _tokens(number, "output_tokens", row)
        yield (
            Request(
                at=_seconds(number, "arrival_s", row) or 0.0,
                # No engine runs an empty prompt, or answers with nothing.
                prompt_tokens=max(_tokens(number, "input_tokens", row) or 0, 1),
                output_tokens=None if output_tokens is None else max(output_tokens, 1),
                cap_tokens=_cap(number, row),
                tenant=_name(number, "tenant", row),
                session=prefix + session if session else "",
                think_s=_seconds(number, "think_s", row) if session else None,
                shared_tokens=_tokens(number, "shared_tokens", row) or 0 if session else 0,
            ),
            None,
        )


def _fields(number: int, line: bytes) -> list[str]:
    try:
        text = line.decode("utf-8-sig").strip("\r\n")
        return next(csv.reader((text,), strict=True)) if '"' in text else text.split(",")
    except UnicodeDecodeError:
        raise RowError(number, "this is no text in UTF-8") from None
    except (csv.Error, StopIteration) as error:
        raise RowError(number, f"this is no line of a CSV: {error}") from None


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME and text.isprintable() else f"{text[:_LONGEST_NAME]!r} ..."


def _tokens(number: int, name: str, row: dict[str, str]) -> int | None:
    """None where there is no such column, or nothing in it."""
    text = row.get(name, "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if not text:
        return None
    tokens = _float(text)
    if not 0 <= tokens <= MOST_TOKENS or tokens != int(tokens):
        raise RowError(number, f"{name} is {text[:40]!r}, which is no number of tokens")
    return int(tokens)


def _cap(number: int, row: dict[str, str]) -> int | None:
    cap_tokens = _tokens(number, "cap_tokens", row)
    if cap_tokens == 0:
        raise RowError(number, "cap_tokens is 0: a cap is at least 1, and where none was sent the field is empty")
    return cap_tokens


def _seconds(number: int, name: str, row: dict[str, str]) -> float | None:
    text = row.get(name, "").strip()
    if not text:
        if name == "arrival_s" and name in row:
            raise RowError(number, "arrival_s is empty")
        return None
    seconds = _float(text)
    if not 0 <= seconds <= _LATEST_S:
        raise RowError(number, f"{name} is {text[:40]!r}, which is no number of seconds from 0 on")
    return seconds


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _name(number: int, name: str, row: dict[str, str]) -> str:
    text = row.get(name, "").strip()
    if len(text) > _LONGEST_NAME or not text.isprintable():
        raise RowError(number, f"{name} is no name: {text[:40]!r}")
    return text
