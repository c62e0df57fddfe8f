"""Limits beside the fit test: prompts that wait inside the engine, and the gap between tokens."""

import pytest

from gateway.core.guards import UNKNOWN_LIMIT_TOKENS, Guards
from support.tickets import A, B, tid


def test_prompts_without_a_first_token_stay_within_two_steps() -> None:
    guards = Guards()
    guards.granted(tid(1), A, UNKNOWN_LIMIT_TOKENS - 100, now=0.0)
    assert guards.admits(A, 100)
    assert not guards.admits(A, 101)
    assert guards.admits(B, 10_000), "every backend for itself"
    assert guards.answered(tid(1), now=0.5) == A
    assert guards.admits(A, 101)
    assert guards.answered(tid(1), now=0.6) is None


def test_an_answer_wakes_nobody_where_nobody_was_barred() -> None:
    guards = Guards()
    guards.granted(tid(1), A, 100, now=0.0)
    assert guards.admits(A, 100)
    assert guards.answered(tid(1), now=0.5) is None


def test_a_prompt_larger_than_that_goes_when_no_other_is_unanswered() -> None:
    guards = Guards()
    assert guards.admits(A, 10 * UNKNOWN_LIMIT_TOKENS)
    guards.granted(tid(1), A, 1, now=0.0)
    assert not guards.admits(A, 10 * UNKNOWN_LIMIT_TOKENS)
    guards.answered(tid(1), now=None)
    guards.granted(tid(2), A, 10 * UNKNOWN_LIMIT_TOKENS, now=1.0)
    assert not guards.has_room(A)
    assert not guards.admits(A, 1)


def test_as_many_prompt_tokens_may_be_unanswered_as_are_computed_within_the_gap_aimed_at() -> None:
    for rate, limit in ((100.0, 2_048), (20_000.0, 4_000), (1e6, 16_384)):
        guards = Guards(gap_target_s=0.2)
        guards.granted(tid(1), A, 5_000, now=0.0)
        guards.answered(tid(1), now=5_000 / rate)
        snapshot = guards.snapshot(A)
        assert snapshot is not None
        assert snapshot.unanswered_limit == pytest.approx(limit, abs=1)
        assert guards.prefill_s(A, 5_000) == pytest.approx(5_000 / rate)


def test_only_what_is_expected_to_be_computed_counts() -> None:
    guards = Guards()
    for _ in range(200):
        guards.pace(A).saw_prompt(1_000, 250, 50)
    guards.granted(tid(1), A, 30_000, now=0.0)
    assert guards.admits(A, 5_000), "a bound four times too high, or a prefix that is cached, is not computed"
    assert not guards.admits(A, 15_000)


def test_what_is_unanswered_for_long_is_not_waited_for() -> None:
    guards = Guards()
    guards.granted(tid(1), A, 4_096, now=0.0)
    assert guards.expected_s(tid(1), is_stream=False) == pytest.approx(1.0)
    assert guards.expected_s(tid(1), is_stream=True) == pytest.approx(5.0)
    guards.granted(tid(2), A, 16_384, now=0.0)
    assert guards.expected_s(tid(2), is_stream=True) == pytest.approx(20.0), "it waits for those before it as well"
    assert guards.expected_s(tid(3), is_stream=True) == 0.0


def window(guards: Guards, gap_s: float, *, running: int, now: float) -> bool:
    return guards.saw_gaps(A, 100 * gap_s, 100, running=running, now=now)


def test_the_gap_is_held_below_three_times_that_of_the_lightly_loaded_engine() -> None:
    guards = Guards()
    window(guards, 0.01, running=1, now=0.0)
    window(guards, 0.01, running=1, now=2.0)
    assert guards.seat_limit(A) is None
    for now in (60.0, 62.0, 64.0):
        window(guards, 0.026, running=40, now=now)
    assert guards.seat_limit(A) is None, "below nine tenths of the target nobody is limited"
    assert not window(guards, 0.028, running=40, now=120.0), "one slow window is chance"
    assert window(guards, 0.028, running=40, now=122.0)
    assert guards.seat_limit(A) == 36


def test_a_decrease_waits_until_the_last_one_shows() -> None:
    guards = Guards(gap_target_s=0.02)
    for number in range(6):
        window(guards, 0.05, running=50, now=2.0 * number)
    assert guards.seat_limit(A) == 45, "50 run still: of what 45 do to the gap nothing is known"
    window(guards, 0.05, running=44, now=20.0)
    assert guards.seat_limit(A) == 39


def test_the_limit_grows_while_it_binds_and_the_gap_allows() -> None:
    guards = Guards(gap_target_s=0.02)
    for now in (0.0, 2.0, 4.0):
        window(guards, 0.05, running=20, now=now)
    assert guards.seat_limit(A) == 18
    window(guards, 0.01, running=10, now=60.0)
    assert guards.seat_limit(A) == 18, "nobody was kept waiting by it"
    window(guards, 0.01, running=18, now=120.0)
    assert guards.seat_limit(A) == 19


def test_a_few_sequences_may_run_whatever_the_gap() -> None:
    guards = Guards(gap_target_s=0.001)
    for number in range(60):
        window(guards, 0.5, running=max(40 - number, 1), now=2.0 * number)
    assert guards.seat_limit(A) == 4, "what makes four of them slow is not that they are four"


def test_guards_that_are_off_bar_nobody_and_still_know_the_pace() -> None:
    guards = Guards(is_on=False, gap_target_s=0.001)
    guards.granted(tid(1), A, 10**6, now=0.0)
    for number in range(4):
        window(guards, 0.5, running=9, now=2.0 * number)
    assert guards.admits(A, 10**6)
    assert guards.has_room(A)
    assert guards.seat_limit(A) is None
    assert guards.snapshot(A) is None
    assert guards.pace(A).gap_s == pytest.approx(0.5)
