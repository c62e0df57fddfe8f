"""Series: plain numbers under labels, and the text in which Prometheus reads them (its exposition format, as text).

What happens on every request costs an addition here: a series is a slotted object with numbers in it, found by its label
values with one look into a dict. What a scrape needs beside is made while it is rendered, and that happens piece by piece,
so that other work can go between: a family gives its text with the numbers of the instant at which it was asked.
"""

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Final, TypeVar

Labels = tuple[str, ...]
_Series = TypeVar("_Series")

_ODD_NUMBERS: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_IN_LABELS: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Count:
    """What only grows: whoever counts adds to `total`. created: seconds since the epoch."""

    __slots__ = ("created", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.created = time.time()


class Spread:
    """How many values were at most each bound and above the one before; the last of `counts` is of those above all bounds."""

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts, bounds = self.counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)


class Family(dict[Labels, _Series], ABC):
    """The series of one name, by their labels' values in the order of the labels' names. One that is asked for begins at 0."""

    def __init__(self, name: str, text: str, *names: str) -> None:
        super().__init__()
        self._name = name
        self._text = text
        self._names = names

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """The text of it, some lines at a time, with the numbers that it has now."""

    def begin(self, *labels: str) -> None:
        """From now on this series is there, with 0 until something is counted."""
        self[labels]

    def _created(self, created: list[tuple[str, float]]) -> Iterator[str]:
        if created:
            name = f"{self._name}_created"
            yield heading(name, "gauge", self._text)
            for labels, instant in created:
                yield sample(name, labels, instant)


class Counters(Family[Count]):
    """name: without the `_total` that a scrape shows."""

    def __missing__(self, labels: Labels) -> Count:
        series = self[labels] = Count()
        return series

    def lines(self) -> Iterator[str]:
        return self._lines([(labels, series.total, series.created) for labels, series in self.items()])

    def _lines(self, taken: list[tuple[Labels, float, float]]) -> Iterator[str]:
        name, created = f"{self._name}_total", []
        yield heading(name, "counter", self._text)
        for labels, total, instant in taken:
            text = label_text(self._names, labels)
            yield sample(name, text, total)
            created.append((text, instant))
        yield from self._created(created)


class Histograms(Family[Spread]):
    """bounds: the upper ends of the buckets, rising."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], *names: str) -> None:
        super().__init__(name, text, *names)
        self._bounds = bounds

    def __missing__(self, labels: Labels) -> Spread:
        series = self[labels] = Spread(self._bounds)
        return series

    def lines(self) -> Iterator[str]:
        return self._lines([(labels, each.counts.copy(), each.total, each.created) for labels, each in self.items()])

    def _lines(self, taken: list[tuple[Labels, list[int], float, float]]) -> Iterator[str]:
        ends, created = [f'le="{number(bound)}"' for bound in (*self._bounds, inf)], []
        yield heading(self._name, "histogram", self._text)
        for labels, counts, total, instant in taken:
            text, seen, lines = label_text(self._names, labels), 0, []
            for end, count in zip(ends, counts, strict=True):
                seen += count
                lines.append(sample(f"{self._name}_bucket", f"{text},{end}" if text else end, seen))
            yield "".join((*lines, sample(f"{self._name}_count", text, seen), sample(f"{self._name}_sum", text, total)))
            created.append((text, instant))
        yield from self._created(created)


def gauge_lines(name: str, text: str, names: Labels, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The text of values that were read just now. One whose name ends in `_total` only grows."""
    yield heading(name, "counter" if name.endswith("_total") else "gauge", text)
    for labels, value in values:
        yield sample(name, label_text(names, labels), value)


def heading(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text.translate(_IN_HELP)}\n# TYPE {name} {kind}\n"


def label_text(names: Labels, labels: Labels) -> str:
    """What stands between the braces."""
    return ",".join(f'{name}="{label.translate(_IN_LABELS)}"' for name, label in sorted(zip(names, labels, strict=True)))


def sample(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"


def number(value: float) -> str:
    text = repr(float(value))
    return _ODD_NUMBERS.get(text, text)
