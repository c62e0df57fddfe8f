"""Blocks held in vain, by cause."""

import pytest

from gateway.core.geometry import Weighing
from gateway.core.waste import WasteCause, waste

WEIGHING = Weighing(16, 8_192)


def wasted(start: int, end: int, *, has_cap: bool = True) -> dict[WasteCause, float]:
    """Of a request with a prompt of 160 (11 blocks at its first token) that ended at 320 tokens (20 blocks), in 10 s."""
    return waste(
        charged_at_start=start,
        charged_at_end=end,
        prompt_tokens=160,
        output_tokens=160,
        seats=1,
        weighing=WEIGHING,
        has_cap=has_cap,
        seconds=10.0,
    )


def test_a_cap_above_the_truth_and_the_end_held_from_the_start_are_told_apart() -> None:
    assert wasted(50, 50) == {WasteCause.CAP_ABOVE_TRUTH: 300.0, WasteCause.END_FROM_START: 50.0}
    assert wasted(512, 512, has_cap=False)[WasteCause.ABSENT_CAP] == 4_920.0


def test_a_hold_that_grew_with_its_request_wastes_nothing() -> None:
    assert wasted(10, 20) == {WasteCause.CAP_ABOVE_TRUTH: 0.0, WasteCause.END_FROM_START: 0.0}


def test_causes_add_up_to_what_was_held_and_not_used() -> None:
    for start, end in ((20, 20), (15, 30), (400, 400)):
        assert sum(wasted(start, end).values()) == pytest.approx((start + end) / 2 * 10 - 15 * 10)
