"""Reads the few samples that we want out of an engine's metrics page (Prometheus text format, or OpenMetrics).

It promises: any text at all is read without an exception; a line that makes no sense is skipped, the others count.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page. value: finite; what is NaN or infinite is not a sample to us."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted samples of one page."""

    samples: tuple[Sample, ...]

    def named(self, *names: str) -> tuple[Sample, ...]:
        """The samples of the first of `names` that has any: an engine's older names come after its present one."""
        for name in names:
            if found := tuple(sample for sample in self.samples if sample.name == name):
                return found
        return ()

    def total(self, *names: str) -> int | None:
        """The sum over all labels, as a whole number, None if there is no such sample."""
        found = self.named(*names)
        return round(sum(sample.value for sample in found)) if found else None


def read_exposition(text: str, wanted: Iterable[str]) -> Exposition:
    """The samples whose names are among `wanted`. A page has hundreds of lines, so the others are passed by unread."""
    names = frozenset(wanted)
    return Exposition(tuple(_samples(text, names)))


def _samples(text: str, names: frozenset[str]) -> Iterator[Sample]:
    for line in text.splitlines():
        match = _NAME.match(line)
        if match is None or match[0] not in names:
            continue
        labels, rest = _labels(line, match.end())
        value = _value(rest)
        if labels is not None and value is not None:
            yield Sample(match[0], labels, value)


def _labels(line: str, at: int) -> tuple[dict[str, str] | None, str]:
    """The labels that begin at `at`, and what comes after them; None for labels that cannot be read."""
    if not line.startswith("{", at):
        return {}, line[at:]
    labels: dict[str, str] = {}
    at += 1
    while (match := _LABEL.match(line, at)) is not None:
        labels[match[1]] = _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[0]), match[2])
        at = match.end()
    rest = line[at:].lstrip()
    return (labels, rest[1:]) if rest.startswith("}") else (None, "")


def _value(rest: str) -> float | None:
    """The first word is the value; a timestamp or an exemplar may follow."""
    words = rest.split(maxsplit=1)
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
