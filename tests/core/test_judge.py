"""Freedom is taken at once and given back slowly."""

from gateway.core.commitment.judge import BASE, MOST, Freedom, Judge


def judge(*, pinned: bool = False, preemptions: int | None = 0) -> Judge:
    made = Judge(pinned=pinned)
    made.read(preemptions, overrun_fails_all=False, now=0.0)
    return made


def read(made: Judge, preemptions: int | None, now: float) -> bool:
    return made.read(preemptions, overrun_fails_all=False, now=now)


def is_strict(made: Judge) -> bool:
    return made.freedom is Freedom.STRICT


def test_an_engine_that_shows_its_preemptions_is_forecast_from_its_first_reading() -> None:
    made = judge(preemptions=70)
    assert (made.freedom, made.headroom, made.last_preemption) == (Freedom.FORECAST, BASE, None), "old ones are not ours"
    assert made.may_start_cold


def test_one_that_shows_none_is_strict_unless_the_operator_pins_it() -> None:
    assert judge(preemptions=None).freedom is Freedom.STRICT
    pinned = judge(preemptions=None, pinned=True)
    assert pinned.freedom is Freedom.FORECAST
    assert not pinned.may_start_cold, "a guess without evidence needs an engine that shows when it was wrong"


def test_a_counter_that_is_missing_for_once_changes_nothing() -> None:
    made = judge()
    assert not read(made, None, 2.0)
    assert made.freedom is Freedom.FORECAST


def test_where_an_overrun_fails_everybody_nothing_is_forecast_whoever_pins_it() -> None:
    made = Judge(pinned=True)
    made.read(None, overrun_fails_all=True, now=0.0)
    assert made.freedom is Freedom.STRICT


def test_each_preemption_takes_a_step_at_once_and_the_last_step_is_strict() -> None:
    made = judge()
    seen = []
    for number in range(1, 4):
        assert read(made, number, 2.0 * number)
        seen.append((made.freedom, made.headroom))
    assert seen == [(Freedom.FORECAST, 0.2), (Freedom.FORECAST, MOST), (Freedom.STRICT, MOST)]
    assert not made.may_start_cold
    assert "preemption" in made.why


def test_many_at_a_time_are_strict_at_once() -> None:
    made = judge()
    read(made, 40, 2.0)
    assert made.freedom is Freedom.STRICT


def test_headroom_comes_back_a_step_a_quiet_minute() -> None:
    made = judge()
    read(made, 1, 2.0)
    read(made, 2, 4.0)
    steps = [(read(made, 2, now), made.headroom) for now in (30.0, 65.0, 70.0, 130.0, 190.0, 260.0, 400.0)]
    assert [headroom for _, headroom in steps] == [0.3, 0.25, 0.25, 0.2, 0.15, 0.1, 0.1]
    assert [changed for changed, _ in steps] == [False, True, False, True, True, True, False]


def test_strict_ends_after_a_quiet_pause_that_doubles_each_time() -> None:
    made = judge()
    now, preemptions = 0.0, 0
    pauses: list[float] = []
    for _ in range(4):
        preemptions += 9
        now += 2.0
        read(made, preemptions, now)
        assert is_strict(made)
        fell = now
        while is_strict(made):
            now += 2.0
            read(made, preemptions, now)
        assert made.headroom == MOST, "and begins with the most headroom"
        pauses.append(now - fell)
    assert pauses == [60.0, 120.0, 240.0, 480.0]


def test_preemptions_while_strict_begin_the_pause_anew() -> None:
    made = judge()
    read(made, 9, 2.0)
    read(made, 10, 40.0)
    read(made, 10, 90.0)
    assert is_strict(made)
    read(made, 10, 100.0)
    assert not is_strict(made)


def test_a_counter_that_ran_backwards_is_another_engine_and_no_preemption() -> None:
    made = judge(preemptions=500)
    assert not read(made, 0, 2.0)
    assert read(made, 1, 4.0)


def test_what_the_operator_pins_gets_headroom_and_never_strict() -> None:
    made = judge(pinned=True)
    for number in range(1, 10):
        read(made, 50 * number, 2.0 * number)
    assert (made.freedom, made.headroom) == (Freedom.FORECAST, MOST)
