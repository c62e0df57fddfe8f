"""Restarts and balancers leave different marks."""

from gateway.backends.balancer import BalancerSigns


def verdicts(*answers: tuple[str, int | None]) -> list[bool]:
    signs = BalancerSigns()
    return [signs.read(identity, preemptions) for identity, preemptions in answers]


def test_a_restart_is_a_new_start_time_and_a_counter_that_begins_anew() -> None:
    assert not any(verdicts(("a", 5), ("a", 7), ("b", 0), ("b", 3), ("c", 0), ("c", 0)))


def test_a_start_time_that_comes_back_is_another_engine() -> None:
    assert verdicts(("a", 5), ("b", 0), ("a", 5)) == [False, False, True]


def test_one_step_back_may_be_a_restart_that_tells_no_start_time_but_two_are_not() -> None:
    assert verdicts(("", 9), ("", 0), ("", 4)) == [False, False, False]
    assert verdicts(("", 9), ("", 2), ("", 9), ("", 2))[-1]


def test_an_engine_without_counters_shows_nothing() -> None:
    assert not any(verdicts(("", None), ("", None), ("", 3), ("", None)))
