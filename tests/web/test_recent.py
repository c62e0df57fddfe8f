"""The last minutes: what is drawn is what happened, in the step in which it happened, and it never grows."""

import pytest

from gateway.core.outcomes import RejectReason
from gateway.web.recent import REFUSALS, STEP_S, STEPS, Recent, Refusal
from support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recent(clock: ManualClock) -> Recent:
    return Recent(clock.now)


def refusal(number: int = 1, message: str = "the queue is full") -> Refusal:
    return Refusal(0.0, f"r-{number}", RejectReason.QUEUE_FULL, 429, message, "m", "standard", "anonymous", 12, 0.5)


def test_before_anything_happened_there_is_nothing_to_draw_and_no_rate_but_zero(recent: Recent) -> None:
    series = recent.series()
    assert series["queue_wait_p95_s"] == [None] * STEPS
    assert series["tokens_per_s"] == [0.0] * STEPS


def test_an_event_is_drawn_in_its_step_and_moves_on_with_time(recent: Recent, clock: ManualClock) -> None:
    recent.produced(100)
    recent.refused(refusal())
    assert recent.series()["tokens_per_s"][-1] == 100 / STEP_S
    clock.advance(3 * STEP_S)
    series = recent.series()
    assert (series["tokens_per_s"][-4], series["tokens_per_s"][-1]) == (100 / STEP_S, 0.0)
    assert series["refused_per_s"][-4] == 1 / STEP_S
    clock.advance(STEPS * STEP_S)
    assert recent.series()["tokens_per_s"] == [0.0] * STEPS


def test_quantiles_are_good_to_the_width_of_a_class(recent: Recent, clock: ManualClock) -> None:
    for hundredths in range(1, 101):
        recent.ended(clock.now(), waited_s=hundredths / 100, first_token_s=hundredths / 100, tokens=0)
    series = recent.series()
    for name, truth in (("ttft_p50_s", 0.5), ("ttft_p95_s", 0.95), ("queue_wait_p50_s", 0.5), ("queue_wait_p95_s", 0.95)):
        found = series[name][-1]
        assert found is not None
        assert truth <= found <= truth * 1.16, name


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 1e6, 1e9])
def test_no_duration_is_too_odd_to_be_kept(recent: Recent, clock: ManualClock, seconds: float) -> None:
    recent.ended(clock.now(), waited_s=seconds, first_token_s=None, tokens=0)
    assert recent.series()["queue_wait_p50_s"][-1] is not None


def test_of_refusals_the_newest_come_first_and_the_oldest_are_forgotten(recent: Recent) -> None:
    for number in range(REFUSALS + 10):
        recent.refused(refusal(number))
    shown = recent.refusals
    assert [shown[0].request_id, shown[-1].request_id, len(shown)] == [f"r-{REFUSALS + 9}", "r-10", REFUSALS]


def test_a_long_message_is_cut(recent: Recent) -> None:
    recent.refused(refusal(message="x" * 10_000))
    assert len(recent.refusals[0].message) == 301


def test_hours_of_events_take_no_more_memory_than_minutes(recent: Recent, clock: ManualClock) -> None:
    for _ in range(STEPS * 3):
        recent.ended(clock.now(), waited_s=None, first_token_s=None, tokens=0)
        clock.advance(STEP_S)
    assert len(recent.series()["ended_per_s"]) == STEPS
    assert len(recent._steps) == STEPS
