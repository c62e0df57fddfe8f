"""What a scrape reads of plain numbers is what Prometheus' own library writes of the same events."""

import math
import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from gateway.series import Counters, Histograms, gauge_lines

BOUNDS = (0.1, 0.25, 1, 2.5, 1024)
LABEL = re.compile(r'[a-z]+="(?:[^"\\]|\\.)*"')
ODD_NAMES = ["m", 'quote"', "back\\slash", "new\nline", "日本", ""]


def written(registry: CollectorRegistry) -> list[str]:
    """Lines of the library, each with its labels in one order and without the instants at which series began."""
    return comparable(generate_latest(registry).decode())


def comparable(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        name, _, labelled = line.partition("{")
        if labelled and not line.startswith("#"):
            labels, _, value = labelled.rpartition("} ")
            line = f"{name} {sorted(LABEL.findall(labels))} {value}"
        lines.append(re.sub(r"(_created(?: \[.*\])?) [0-9.e+]+$", r"\1 then", line))
    return lines


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_counter_is_written_as_the_library_writes_it(name: str) -> None:
    registry = CollectorRegistry()
    theirs = Counter("kvgate_things", "What \\ was\ncounted", ["model", "end"], registry=registry)
    ours = Counters("kvgate_things", "What \\ was\ncounted", "model", "end")
    for end, amount in (("good", 1.0), ("bad", 2.5), ("good", 3.0)):
        theirs.labels(name, end).inc(amount)
        ours[name, end].total += amount
    theirs.labels(name, "never")
    ours.begin(name, "never")
    assert comparable("".join(ours.lines())) == written(registry)


@pytest.mark.parametrize("labels", [[], ["zone"], ["lane", "outcome"]])
def test_a_histogram_is_written_as_the_library_writes_it(labels: list[str]) -> None:
    """With values on a bound, beyond all of them, and below zero."""
    registry = CollectorRegistry()
    theirs = Histogram("kvgate_seconds", "How long", labels, registry=registry, buckets=BOUNDS)
    ours = Histograms("kvgate_seconds", "How long", BOUNDS, *labels)
    values = tuple("x" for _ in labels)
    one_by_one, together = (0.1, 0.1000001, -1.0, 2.5, 0.0), (9.0, 1024.0, 5000.0, 0.5)
    for seconds in (*one_by_one, *together):
        (theirs.labels(*values) if labels else theirs).observe(seconds)
    for seconds in one_by_one:
        ours[values].observe(seconds)
    ours[values].observe_all(together)
    assert comparable("".join(ours.lines())) == written(registry)


def test_a_gauge_is_written_as_the_library_writes_it() -> None:
    registry = CollectorRegistry()
    theirs = Gauge("kvgate_blocks", "Blocks", ["backend"], registry=registry)
    values = {"a": 3.0, "b": math.inf, "c": -0.25, "d": math.nan}
    for name, value in values.items():
        theirs.labels(name).set(value)
    ours = gauge_lines("kvgate_blocks", "Blocks", ("backend",), [((name,), value) for name, value in values.items()])
    assert comparable("".join(ours)) == written(registry)


def test_a_family_that_nobody_counted_in_is_named_all_the_same() -> None:
    registry = CollectorRegistry()
    Counter("kvgate_things", "Things", ["model"], registry=registry)
    assert comparable("".join(Counters("kvgate_things", "Things", "model").lines())) == written(registry)


def test_what_is_rendered_is_of_the_instant_at_which_it_was_asked_for() -> None:
    counters, histograms = (
        Counters("kvgate_things", "Things", "model"),
        Histograms("kvgate_seconds", "Seconds", BOUNDS, "model"),
    )
    for model in ("a", "b"):
        counters[model,].total += 1
        histograms[model,].observe(0.2)
    before = ["".join(family.lines()) for family in (counters, histograms)]
    lines = [family.lines() for family in (counters, histograms)]
    for model in ("b", "c"):
        counters[model,].total += 1
        histograms[model,].observe(0.2)
    assert ["".join(each) for each in lines] == before
