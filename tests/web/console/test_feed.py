"""The feed: one snapshot for all who look, none for nobody, and a bound on how many look."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from gateway.web.console.feed import PERIOD_S, Feed, Viewer
from support.fake_upstream import eventually
from support.manual_clock import ManualClock


class Camera:
    """Takes numbered snapshots, and says how many it took."""

    def __init__(self) -> None:
        self.taken = 0
        self.is_broken = False
        self._numbers: Iterator[int] = count(1)

    def take(self) -> bytes:
        self.taken += 1
        if self.is_broken:
            raise RuntimeError("no picture")
        return b"%d" % next(self._numbers)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def camera() -> Camera:
    return Camera()


def joined(feed: Feed) -> Viewer:
    viewer = feed.join()
    assert viewer is not None
    return viewer


async def tick(clock: ManualClock) -> None:
    """Let the feed come to its sleep, then a second pass."""
    await eventually(lambda: clock.sleepers == 1)
    clock.advance(PERIOD_S)


async def test_nobody_looks_and_nothing_is_done(clock: ManualClock, camera: Camera) -> None:
    feed = Feed(camera.take, clock)
    clock.advance(100 * PERIOD_S)
    assert not feed.is_working
    viewer = joined(feed)
    await viewer.next()
    feed.leave(viewer)
    assert not feed.is_working
    await asyncio.sleep(0)
    clock.advance(100 * PERIOD_S)
    await asyncio.sleep(0)
    assert camera.taken == 1


async def test_a_snapshot_is_taken_once_a_second_however_many_look(clock: ManualClock, camera: Camera) -> None:
    feed = Feed(camera.take, clock)
    viewers = [joined(feed) for _ in range(5)]
    for number in (b"1", b"2", b"3"):
        assert [await viewer.next() for viewer in viewers] == [number] * 5
        await tick(clock)
    feed.close()
    assert camera.taken <= 4


async def test_who_comes_between_two_snapshots_sees_the_last_one_at_once(clock: ManualClock, camera: Camera) -> None:
    feed = Feed(camera.take, clock)
    await joined(feed).next()
    assert await joined(feed).next() == b"1"
    assert camera.taken == 1
    feed.close()


async def test_who_is_slow_gets_the_newest_and_no_backlog(clock: ManualClock, camera: Camera) -> None:
    feed = Feed(camera.take, clock)
    slow, quick = joined(feed), joined(feed)
    for _ in range(5):
        await quick.next()
        await tick(clock)
    assert await quick.next() == b"6"
    assert await slow.next() == b"6"
    feed.close()


async def test_there_are_at_most_so_many_viewers(clock: ManualClock, camera: Camera) -> None:
    feed = Feed(camera.take, clock, most_viewers=2)
    first, _ = joined(feed), joined(feed)
    assert feed.join() is None
    feed.leave(first)
    feed.leave(first)
    assert len(feed) == 1
    joined(feed)
    feed.close()


async def test_at_the_end_every_viewer_is_told_and_nobody_joins(clock: ManualClock, camera: Camera) -> None:
    feed = Feed(camera.take, clock)
    viewer = joined(feed)
    await viewer.next()
    feed.close()
    assert await viewer.next() is None
    feed.leave(viewer)
    assert feed.join() is None
    assert not feed.is_working


async def test_a_snapshot_that_cannot_be_taken_ends_the_viewers_and_nothing_else(
    clock: ManualClock, camera: Camera, caplog: pytest.LogCaptureFixture
) -> None:
    feed = Feed(camera.take, clock)
    viewer = joined(feed)
    await viewer.next()
    camera.is_broken = True
    await tick(clock)
    assert await viewer.next() is None
    feed.leave(viewer)
    assert "could not be taken" in caplog.text
    camera.is_broken = False
    assert await joined(feed).next() == b"2"
    feed.close()
