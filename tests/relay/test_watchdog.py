"""One ticker for all answers: it runs while somebody is watched, and sleeps without a timer otherwise."""

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator

import pytest

from gateway.relay.watchdog import Watchdog
from support.fake_upstream import eventually
from support.manual_clock import ManualClock


class Looked:
    """Watched: keeps when it was looked at."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def check(self, now: float) -> None:
        self.at.append(now)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
async def watchdog(clock: ManualClock) -> AsyncIterator[Watchdog]:
    watchdog = Watchdog(clock)
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    yield watchdog
    assert not running.done(), running
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def tick(clock: ManualClock) -> None:
    await eventually(lambda: clock.sleepers == 1)
    clock.advance(Watchdog.PERIOD_S)


async def test_all_are_looked_at_four_times_a_second(clock: ManualClock, watchdog: Watchdog) -> None:
    one, other = Looked(), Looked()
    watchdog.watch(one)
    await tick(clock)
    await eventually(lambda: one.at == [0.25])
    watchdog.watch(other)
    await tick(clock)
    await eventually(lambda: (one.at, other.at) == ([0.25, 0.5], [0.5]))


async def test_while_nobody_is_watched_no_timer_runs(clock: ManualClock, watchdog: Watchdog) -> None:
    assert clock.sleepers == 0
    one = Looked()
    watchdog.watch(one)
    await eventually(lambda: clock.sleepers == 1)
    watchdog.unwatch(one)
    await tick(clock)
    await asyncio.sleep(0)
    assert clock.sleepers == 0
    assert one.at == []
    watchdog.watch(one)
    await tick(clock)
    await eventually(lambda: len(one.at) == 1)


async def test_who_was_looked_at_is_not_kept_alive(clock: ManualClock, watchdog: Watchdog) -> None:
    looked_at = [Looked()]
    watchdog.watch(looked_at[0])
    await tick(clock)
    await eventually(lambda: looked_at[0].at == [0.25])
    watchdog.unwatch(looked_at[0])
    gone = weakref.ref(looked_at.pop())
    await eventually(lambda: gone() is None)


async def test_who_ends_within_a_look_is_not_looked_at_again(clock: ManualClock) -> None:
    """Ending one answer makes others end or begin: the set changes while it is gone through."""
    watchdog = Watchdog(clock)

    class Ending(Looked):
        def check(self, now: float) -> None:
            super().check(now)
            watchdog.unwatch(self)
            watchdog.watch(Looked())

    endings = [Ending() for _ in range(5)]
    for ending in endings:
        watchdog.watch(ending)
    watchdog.look_at_next(5)
    watchdog.look_at_next(5)
    assert [len(ending.at) for ending in endings] == [1] * 5


def test_who_was_never_watched_can_be_left_alone(clock: ManualClock) -> None:
    Watchdog(clock).unwatch(Looked())


async def test_many_are_looked_at_a_few_at_a_time(clock: ManualClock, watchdog: Watchdog) -> None:
    """Between two looks the loop goes round, and who has ended by then is not looked at."""
    many = [Looked() for _ in range(1_000)]
    for one in many:
        watchdog.watch(one)
    seen: list[int] = []

    async def go_round() -> None:
        while not seen or seen[-1] < 900:
            seen.append(sum(len(one.at) for one in many))
            if seen[-1] > 500:
                for one in many[:10] + many[-10:]:
                    watchdog.unwatch(one)
            await asyncio.sleep(0)

    await tick(clock)
    async with asyncio.timeout(10):
        await go_round()
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert max(steps) <= 32
    await eventually(lambda: sum(bool(one.at) for one in many) >= 980)
    assert all(len(one.at) <= 1 for one in many)


async def test_looks_are_spread_over_the_whole_period(clock: ManualClock, watchdog: Watchdog) -> None:
    """A hundred looks in one go would hold up every chunk that comes meanwhile, four times a second."""
    many = [Looked() for _ in range(64)]
    for one in many:
        watchdog.watch(one)
    for part in range(1, 9):
        await eventually(lambda: clock.sleepers == 1)
        clock.advance(Watchdog.PERIOD_S / 4)
        await eventually(lambda part=part: sum(len(one.at) for one in many) == 16 * part)  # type: ignore[misc]
    assert all(len(one.at) == 2 for one in many)


async def test_who_comes_within_a_period_is_looked_at_within_another_one(clock: ManualClock, watchdog: Watchdog) -> None:
    many = [Looked() for _ in range(64)]
    for one in many[:32]:
        watchdog.watch(one)
    await eventually(lambda: clock.sleepers == 1)
    for one in many[32:]:
        watchdog.watch(one)
    for _ in range(4):
        await eventually(lambda: clock.sleepers == 1)
        clock.advance(Watchdog.PERIOD_S / 4)
        for _ in range(20):
            await asyncio.sleep(0)
    assert all(one.at and one.at[0] <= Watchdog.PERIOD_S for one in many)
