"""How fast a backend is, from what passes."""

import pytest

from gateway.core.pace import Pace


def test_a_gap_is_known_after_a_second_and_enough_tokens() -> None:
    pace = Pace()
    assert not pace.saw_gaps(1.0, 20, now=10.0)
    assert not pace.saw_gaps(1.0, 5, now=11.5)
    assert pace.gap_s is None
    assert pace.saw_gaps(1.0, 15, now=11.6)
    assert pace.gap_s == pytest.approx(3 / 40)


def test_the_gap_is_that_of_the_last_seconds_not_of_one_step_full_of_prompt() -> None:
    pace = Pace()
    for number in range(20):
        pace.saw_gaps(2.0, 100, now=1.0 * number)
    assert pace.gap_s == pytest.approx(0.02)
    pace.saw_gaps(10.0, 100, now=20.0)
    assert pace.gap_s == pytest.approx(0.035, abs=0.002), "five times the gap for one second of about five"
    for number in range(21, 41):
        pace.saw_gaps(10.0, 100, now=1.0 * number)
    assert pace.gap_s == pytest.approx(0.1, rel=0.02)


def test_the_light_gap_is_the_least_and_is_slowly_forgotten() -> None:
    pace = Pace()
    for number, gap_s in enumerate((0.03, 0.02, 0.09, 0.09)):
        pace.saw_gaps(0.0, 0, now=2.0 * number)
        pace.saw_gaps(100 * gap_s, 100, now=2.0 * number + 1.5)
    assert pace.light_gap_s == pytest.approx(0.02, rel=0.01)
    for number in range(10, 3_000):
        pace.saw_gaps(9.0, 100, now=2.0 * number)
    assert pace.light_gap_s == pytest.approx(0.09, rel=0.01)


def test_prefill_is_measured_on_prompts_long_enough_to_tell() -> None:
    pace = Pace()
    pace.saw_first_token(100, 0.05)
    assert pace.prefill_tokens_per_s is None
    pace.saw_first_token(4_000, 0.5)
    assert pace.prefill_tokens_per_s == pytest.approx(8_000)


def test_the_computed_share_takes_in_the_bound_and_the_prefix_cache() -> None:
    pace = Pace()
    for _ in range(200):
        pace.saw_prompt(4_000, 1_000, 500)
    assert pace.computed_share == pytest.approx(0.125)
    pace.saw_prompt(0, 10, 0)
    assert pace.computed_share == pytest.approx(0.125)


def test_progress_is_the_most_that_anything_says() -> None:
    pace = Pace()
    assert pace.progress(events=7, text_bytes=900, elapsed_s=100.0) == 7
    pace.saw_answer(output_tokens=100, text_bytes=450, seconds=None)
    assert pace.progress(events=7, text_bytes=900, elapsed_s=0.0) == 200
    pace.saw_answer(output_tokens=100, text_bytes=0, seconds=5.0)
    assert pace.progress(events=0, text_bytes=0, elapsed_s=10.0) == 100, "half of what the pace of plain answers gives"
    pace.saw_gaps(1.0, 100, now=0.0)
    pace.saw_gaps(1.0, 100, now=2.0)
    assert pace.progress(events=0, text_bytes=0, elapsed_s=10.0) == 500, "streams tell the pace better"
    assert pace.progress(events=7, text_bytes=0, elapsed_s=10.0, sequences=3) == 1500, "each of them goes at its pace"
    assert pace.progress(events=1600, text_bytes=0, elapsed_s=10.0, sequences=3) == 1600
