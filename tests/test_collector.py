"""The collector of circles: many open streams do not make it look at them, and what lies about is found in quiet."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.collector import PERIOD_S, collect_in_quiet, keep_what_is_here
from support.fake_upstream import eventually
from support.manual_clock import ManualClock


class Thing:
    """What may lie in a circle."""

    itself: "Thing | None" = None


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_700_000_objects_of_open_streams_consist_of_is_not_looked_through() -> None:
    full = 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        full += phase == "start" and info["generation"] == 2

    keep_what_is_here()
    gc.callbacks.append(count)
    try:
        streams = [[[number] for number in range(70)] for _ in range(10_000)]
    finally:
        gc.callbacks.remove(count)
    assert len(streams) == 10_000
    assert full == 0


def test_no_look_while_streams_begin_is_at_many_objects() -> None:
    """What is looked at in one go holds up every chunk for as long: a wave of streams brings many short looks, no long one."""
    young: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    keep_what_is_here()
    gc.callbacks.append(note)
    try:
        streams = [[[number] for number in range(70)] for _ in range(500)]
    finally:
        gc.callbacks.remove(note)
    assert len(streams) == 500
    assert len(young) > 10
    assert max(young) < 5_000


async def test_a_circle_that_has_grown_old_is_collected_in_the_next_quiet_moment() -> None:
    clock = ManualClock(0.0)
    busy = [True]
    task = asyncio.create_task(collect_in_quiet(clock, is_quiet=lambda: not busy[0]))
    things = [Thing()]
    things[0].itself = things[0]
    gc.collect()
    gc.collect(1)  # so that there is something to look for
    gc.disable()
    try:
        gone = weakref.ref(things.pop())
        gc.collect(0)
        await eventually(lambda: clock.sleepers == 1)
        clock.advance(PERIOD_S)
        await eventually(lambda: clock.sleepers == 1)
        assert gone() is not None, "it was not quiet"
        busy.clear()
        busy.append(False)
        clock.advance(PERIOD_S)
        await eventually(lambda: gone() is None)
    finally:
        gc.enable()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
