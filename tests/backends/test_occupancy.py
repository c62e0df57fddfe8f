"""What the engine's gauges must say, and for how long, before it is believed."""

from gateway.backends.occupancy import Foreign, SeatLimit


def test_an_excess_is_foreign_after_ten_seconds_and_not_before() -> None:
    foreign = Foreign()
    readings = [foreign.read(20, 8, now=float(second)) for second in range(0, 12, 2)]
    assert readings == [0, 0, 0, 0, 0, 12]


def test_foreign_blocks_are_the_smallest_excess_of_the_ten_seconds() -> None:
    foreign = Foreign()
    for second, used in enumerate([30, 12, 40, 40, 40, 40]):
        last = foreign.read(used, 8, now=2.0 * second)
    assert last == 4
    assert foreign.read(40, 8, now=14.0) == 32  # the small reading is older than ten seconds now


def test_foreign_blocks_fall_back_at_once_when_the_gauge_falls() -> None:
    foreign = Foreign()
    for second in range(0, 12, 2):
        foreign.read(20, 8, now=float(second))
    assert foreign.read(10, 8, now=12.0) == 2
    assert foreign.read(8, 8, now=14.0) == 0
    assert foreign.read(20, 8, now=16.0) == 0  # the ten seconds begin anew


def test_what_our_own_requests_can_have_written_is_never_foreign() -> None:
    foreign = Foreign()
    assert {foreign.read(60, 60, now=float(second)) for second in range(60)} == {0}


def test_a_seat_limit_is_concluded_when_requests_wait_beside_room_and_the_running_stay_the_same() -> None:
    limit = SeatLimit()
    assert limit.read(running=4, waiting=2, has_room=True) is None
    assert limit.read(running=4, waiting=2, has_room=True) is None
    assert limit.read(running=4, waiting=1, has_room=True) == 4
    assert limit.read(running=3, waiting=0, has_room=True) == 4


def test_waiting_for_blocks_or_in_passing_is_no_seat_limit() -> None:
    limit = SeatLimit()
    for running, waiting, has_room in [(4, 2, False)] * 5 + [(4, 2, True), (5, 2, True), (6, 2, True), (6, 0, True)] * 3:
        assert limit.read(running=running, waiting=waiting, has_room=has_room) is None


def test_a_seat_limit_is_withdrawn_when_more_are_seen_to_run() -> None:
    limit = SeatLimit()
    for _ in range(3):
        limit.read(running=4, waiting=2, has_room=True)
    assert limit.read(running=6, waiting=0, has_room=True) is None
