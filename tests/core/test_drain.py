"""Drain: blocks per second of somebody waiting, with a memory of about ten releases."""

import pytest

from gateway.core.drain import DrainRate


def draining(releases: int = 10, *, blocks: int = 8, every_s: float = 2.0) -> tuple[DrainRate, float]:
    """A pool in which somebody waits and that many releases came at even intervals; and the time then."""
    drain, now = DrainRate(), 100.0
    drain.waits(True, now=now)
    for _ in range(releases):
        now += every_s
        drain.released(blocks, 1, now=now)
    return drain, now


def test_before_ten_releases_nothing_is_said() -> None:
    drain, now = draining(9)
    assert drain.blocks_per_s(now=now) is None
    assert drain.wait_s(blocks=8, seats=0, now=now) is None
    drain.released(8, 1, now=now + 2.0)
    assert drain.blocks_per_s(now=now + 2.0) == pytest.approx(4.0)


def test_a_wait_is_what_is_short_over_the_drain() -> None:
    drain, now = draining()
    assert drain.wait_s(blocks=20, seats=0, now=now) == pytest.approx(5.0)
    assert drain.wait_s(blocks=-20, seats=-1, now=now) == 0.0


def test_who_is_short_of_seats_waits_for_seats() -> None:
    drain, now = draining()
    assert drain.wait_s(blocks=-100, seats=3, now=now) == pytest.approx(6.0)


def test_releases_and_time_while_nobody_waits_do_not_count() -> None:
    drain, now = draining()
    drain.waits(False, now=now)
    drain.released(1_000, 1, now=now + 1.0)
    assert drain.blocks_per_s(now=now + 3_600.0) == pytest.approx(4.0)
    drain.waits(True, now=now + 3_600.0)
    drain.released(8, 1, now=now + 3_602.0)
    assert drain.blocks_per_s(now=now + 3_602.0) == pytest.approx(4.0)


def test_waiting_that_stops_and_starts_between_two_releases_adds_up() -> None:
    drain, now = draining()
    for start in (0.0, 10.0):
        drain.waits(True, now=now + start)
        drain.waits(False, now=now + start + 1.0)
    drain.waits(True, now=now + 20.0)
    drain.released(8, 1, now=now + 20.0)
    drain.released(8, 1, now=now + 22.0)
    assert drain.blocks_per_s(now=now + 22.0) == pytest.approx(4.0)


def test_the_memory_is_about_ten_releases_long() -> None:
    drain, now = draining(50)
    for _ in range(10):
        now += 2.0
        drain.released(16, 1, now=now)
    rate = drain.blocks_per_s(now=now)
    assert rate is not None
    assert 6.0 < rate < 7.5
    for _ in range(40):
        now += 2.0
        drain.released(16, 1, now=now)
    assert drain.blocks_per_s(now=now) == pytest.approx(8.0, rel=0.05)


def test_an_engine_that_stalls_drains_ever_slower_before_its_next_release() -> None:
    drain, now = draining(50)
    rates = [drain.blocks_per_s(now=now + pause) for pause in (0.0, 2.0, 20.0, 200.0)]
    known = [rate for rate in rates if rate is not None]
    assert known[0] == pytest.approx(known[1], rel=0.01)
    assert known[1] > 1.8 * known[2] > 5 * known[3]


def test_a_hold_found_smaller_is_room_but_no_release() -> None:
    drain, now = draining(9)
    drain.shrunk(80)
    assert drain.blocks_per_s(now=now) is None
    drain.released(8, 1, now=now + 2.0)
    rate = drain.blocks_per_s(now=now + 2.0)
    assert rate is not None
    assert rate > 4.0


def test_releases_in_one_instant_tell_no_rate() -> None:
    drain, now = draining(20, every_s=0.0)
    assert drain.blocks_per_s(now=now) is None
    assert drain.wait_s(blocks=1, seats=1, now=now) is None


def test_who_looks_far_ahead_is_told_by_what_was_long_seen_and_who_looks_near_by_the_last() -> None:
    drain, now = draining(200)
    for _ in range(10):  # ten quick ones in a row, as chance has it
        now += 0.5
        drain.released(8, 1, now=now)
    near, far = drain.wait_s(blocks=8, seats=0, now=now), drain.wait_s(blocks=1_600, seats=0, now=now)
    assert near is not None
    assert far is not None
    assert near < 0.65 * 2.0
    assert far > 0.9 * 400.0
