"""How long answers become, learned from those that ended, those that were cut off and those that run."""

import random

import pytest

from gateway.core.commitment.lengths import HALF_LIFE, Ending, Lengths, bin_of


def seen(*tokens: int) -> Lengths:
    lengths = Lengths()
    for each in tokens:
        end(lengths, each)
    return lengths


def end(lengths: Lengths, tokens: int, ending: Ending = Ending.FINISHED) -> None:
    lengths.ended(tokens, bin_of(tokens), ending)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 100, 1_023, 50_000])
def test_answers_of_one_length_are_forecast_exactly_wherever_one_stands(tokens: int) -> None:
    lengths = seen(*[tokens] * 100)
    assert {lengths.expected(progress) for progress in range(0, tokens, max(tokens // 7, 1))} == {tokens}


def test_nothing_seen_says_nothing() -> None:
    assert Lengths().expected(0) is None


def test_the_forecast_is_the_median_of_those_that_came_as_far() -> None:
    lengths = seen(*[10, 1000] * 300)
    assert lengths.expected(0) in (10, 1000)
    assert lengths.expected(10) == 1000
    assert seen(*[10, 10, 1000] * 200).expected(0) == 10
    assert seen(*[10, 1000, 1000] * 200).expected(0) == 1000


def test_what_passes_all_that_ended_is_taken_to_be_half_way() -> None:
    lengths = seen(*[100] * 200)
    assert [lengths.expected(progress) for progress in (100, 150, 4_000)] == [200, 300, 8_000]


def test_it_is_always_more_than_there_is_already() -> None:
    draw = random.Random(1)
    lengths = seen(*[int(draw.lognormvariate(5, 1.5)) + 1 for _ in range(700)])
    forecasts = [lengths.expected(progress) for progress in range(0, 20_000, 13)]
    assert all(forecast is not None and forecast > at * 13 for at, forecast in enumerate(forecasts))
    assert forecasts == sorted(forecasts, key=lambda each: each or 0), "who has come further will go at least as far"


def test_the_median_is_within_a_bin_of_the_true_one() -> None:
    draw = random.Random(2)
    lengths = seen(*[int(draw.expovariate(1 / 300)) + 1 for _ in range(3_000)])
    median, conditional = lengths.expected(0), lengths.expected(500)
    assert median is not None
    assert conditional is not None
    assert median == pytest.approx(208, rel=0.15)
    assert conditional == pytest.approx(708, rel=0.15)  # an exponential forgets how far it came


def test_answers_cut_off_do_not_make_the_others_look_short() -> None:
    draw = random.Random(3)
    lengths = Lengths()
    for _ in range(3_000):
        natural, patience = int(draw.expovariate(1 / 300)) + 1, int(draw.expovariate(1 / 300)) + 1
        if natural <= patience:
            end(lengths, natural)
        else:
            end(lengths, patience, Ending.LEFT)
    median = lengths.expected(0)
    assert median == pytest.approx(208, rel=0.2), "counted as ended, the median would be half of that"


def test_where_a_cap_ends_most_answers_their_length_is_unknown() -> None:
    lengths = Lengths()
    for _ in range(200):
        end(lengths, 256, Ending.CAPPED)
    assert lengths.completions == 200
    assert lengths.expected(0) is None


def test_running_answers_count_as_at_least_so_long() -> None:
    short = seen(*[10] * 101)
    assert short.expected(0) == 10
    short.running[bin_of(800)] += 400
    end(short, 10)
    for _ in range(3):
        end(short, 10)
    forecast = short.expected(0)
    assert forecast is None or forecast > 10, "four of five are known to go on past 800"
    short.running[bin_of(800)] -= 400
    for _ in range(10):
        end(short, 10)
    assert short.expected(0) == 10


def test_the_past_fades_by_half_in_its_half_life() -> None:
    lengths = seen(*[10] * 2_000)
    for number in range(HALF_LIFE + HALF_LIFE // 8):
        if number == HALF_LIFE // 2:
            assert lengths.expected(0) == 10, "one that changes for a while is not followed at once"
        end(lengths, 1_000)
    assert lengths.expected(0) == 1_000


def test_what_has_misled_is_outvoted_eight_times_as_fast() -> None:
    lengths = seen(*[10] * 2_000)
    lengths.doubt()
    for _ in range(HALF_LIFE // 6):
        end(lengths, 1_000)
    assert lengths.expected(0) == 1_000


def test_that_the_forecast_is_another_is_said_once_until_somebody_asks() -> None:
    lengths = seen(*[10] * 2_000)
    for _ in range(2):
        lengths.expected(0)
        said = [lengths.ended(1_000, bin_of(1_000), Ending.FINISHED) for _ in range(400)]
        assert said.count(True) == 1
    assert lengths.expected(0) == 1_000, "what came since it was said counts as well"


def test_what_one_that_runs_becomes_is_of_the_moment_in_which_a_new_one_was_last_forecast() -> None:
    draw = random.Random(5)
    answers = [int(draw.lognormvariate(5, 1.5)) + 1 for _ in range(2_000)]
    at_once, later = seen(*answers), seen(*answers)
    later.running[bin_of(300)] += 5
    at_once.running[bin_of(300)] += 5
    assert at_once.expected(0) == later.expected(0)
    asked = [at_once.expected(progress) for progress in range(1, 4_000, 100)]
    later.running[bin_of(300)] += 500
    for _ in range(5):
        assert not later.ended(9_000, bin_of(9_000), Ending.FINISHED), "too few to matter"
    assert [later.expected(progress) for progress in range(1, 4_000, 100)] == asked


def test_a_length_that_has_not_been_seen_for_long_is_forgotten() -> None:
    lengths = seen(5_000, *[10] * 3_000)
    assert lengths.expected(10) == 5_000, "one in three thousand, and not so long ago"
    for _ in range(HALF_LIFE):
        end(lengths, 10)
    assert lengths.expected(10) == 20
    assert [at for at, *_ in lengths.rows()] == [bin_of(10)]


def test_what_nobody_asks_about_for_a_long_time_is_still_known_in_the_end() -> None:
    lengths = seen(*[10] * 2_000)
    for _ in range(2_000):  # as good as five hundred half-lives
        lengths.doubt()
        end(lengths, 1_000)
    assert lengths.expected(0) == 1_000


def test_memory_is_fixed_whatever_comes() -> None:
    lengths = seen(*[1 << shift for shift in range(40)] * 30)
    assert len(lengths.rows()) <= 26 * 12


def test_what_was_written_down_says_the_same_when_it_is_read() -> None:
    draw = random.Random(4)
    lengths = seen(*[int(draw.expovariate(1 / 300)) + 1 for _ in range(900)])
    again = Lengths()
    again.take(lengths.rows(), lengths.completions)
    assert [again.expected(progress) for progress in range(0, 3_000, 50)] == [
        lengths.expected(progress) for progress in range(0, 3_000, 50)
    ]


@pytest.mark.parametrize(
    "row",
    [(-1, 1.0, 1.0, 0.0), (10_000, 1.0, 1.0, 0.0), (3, -1.0, 1.0, 0.0), (3, 1.0, 1e300, 0.0), (3, 1.0, 1.0, float("nan"))],
)
def test_rows_that_nobody_wrote_are_refused_and_leave_nothing_behind(row: tuple[int, float, float, float]) -> None:
    lengths = Lengths()
    with pytest.raises(ValueError):
        lengths.take([(5, 1.0, 1.5, 0.0), row], 7)
    assert lengths.completions == 0
    assert lengths.rows() == []
