"""Series: plain numbers under labels, and the text in which Prometheus reads them, as its own library writes it.

What happens on every request costs an addition here: a series is a slotted object with numbers in it, found by its label
values with one look into a dict. What a scrape needs beside is made while it is rendered, and that happens piece by piece,
so that other work can go between: a family gives its text with the numbers of the instant at which it was asked.
"""

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
_Series = TypeVar("_Series")
_Sample = tuple[str, dict[str, str], float]

# Samples that are rendered in one go: a fraction of a millisecond.
_AT_ONCE: Final = 100


class Count:
    """What only grows: whoever counts adds to `total`. created: seconds since the epoch."""

    __slots__ = ("created", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.created = time.time()


class Spread:
    """How many values were at most each bound and above the one before; the last of `counts` is of those above all bounds."""

    __slots__ = ("bounds", "counts", "created", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts, bounds = self.counts, self.bounds
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

    def _pieces(self, kind: str, samples: Iterable[tuple[Labels, float]], suffix: str = "") -> Iterator[str]:
        """Samples that all have the family's name and this at its end."""
        named = ((self._name + suffix, dict(zip(self._names, labels, strict=True)), value) for labels, value in samples)
        yield from _pieces(self._name + (suffix if kind == "gauge" else ""), self._text, kind, named)


class Counters(Family[Count]):
    """name: without the `_total` that a scrape shows."""

    def __missing__(self, labels: Labels) -> Count:
        series = self[labels] = Count()
        return series

    def lines(self) -> Iterator[str]:
        return self._lines([(labels, series.total, series.created) for labels, series in self.items()])

    def _lines(self, taken: list[tuple[Labels, float, float]]) -> Iterator[str]:
        yield from self._pieces("counter", [(labels, total) for labels, total, _ in taken], "_total")
        if taken:
            yield from self._pieces("gauge", [(labels, created) for labels, _, created in taken], "_created")


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
        yield from _pieces(self._name, self._text, "histogram", self._samples(taken))
        if taken:
            yield from self._pieces("gauge", [(labels, created) for labels, _, _, created in taken], "_created")

    def _samples(self, taken: list[tuple[Labels, list[int], float, float]]) -> Iterator[_Sample]:
        ends = [floatToGoString(bound) for bound in (*self._bounds, inf)]  # type: ignore[no-untyped-call]
        for labels, counts, total, _ in taken:
            named, seen = dict(zip(self._names, labels, strict=True)), 0
            for end, count in zip(ends, counts, strict=True):
                seen += count
                yield f"{self._name}_bucket", named | {"le": end}, seen
            yield f"{self._name}_count", named, seen
            yield f"{self._name}_sum", named, total


def gauge_lines(name: str, text: str, names: Labels, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The text of values that were read just now. One whose name ends in `_total` only grows."""
    kind = "counter" if name.endswith("_total") else "gauge"
    named = ((name, dict(zip(names, labels, strict=True)), value) for labels, value in values)
    return _pieces(name.removesuffix("_total"), text, kind, named)


class _Only(Collector):
    """A registry of one metric, for the library to render."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def _pieces(name: str, text: str, kind: str, samples: Iterable[_Sample]) -> Iterator[str]:
    """The text of one metric, some samples at a time."""
    samples, is_first = iter(samples), True
    while (some := list(islice(samples, _AT_ONCE))) or is_first:
        metric = Metric(name, text, kind)
        for sample in some:
            metric.add_sample(*sample)
        piece = generate_latest(_Only(metric)).decode()
        # What the library writes before the samples, a line of help and one of its type, stands once.
        yield piece if is_first else piece.split("\n", 2)[2]
        is_first = False
