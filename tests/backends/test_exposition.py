"""Reading an engine's metrics page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.exposition import read_exposition

PAGE = r"""# HELP x:used_perc Use. 1 means 100 percent.
# TYPE x:used_perc gauge
x:used_perc{engine="0",model_name="a,b}=\"c\"\\d"} 2.5e-01
x:used_perc{engine="1",model_name="tiny"} 0.5 1796031728000
x:used_perc_other 9
x:count_total{} 3.0 # {trace_id="abc"} 1.0
x:bare 7
x:nan NaN
x:inf +Inf
x:broken{engine="0 4
x:wordy{engine="0"} many
  x:indented 1
"""


def test_labels_are_unescaped_and_every_label_set_is_a_sample() -> None:
    first, second = read_exposition(PAGE, ["x:used_perc"]).named("x:used_perc")
    assert first.labels == {"engine": "0", "model_name": 'a,b}="c"\\d'}
    assert first.value == 0.25
    assert second.value == 0.5


def test_a_name_that_only_begins_alike_is_another_one() -> None:
    page = read_exposition(PAGE, ["x:used_perc", "x:used"])
    assert len(page.samples) == 2


@pytest.mark.parametrize("name", ["x:nan", "x:inf", "x:broken", "x:wordy", "x:indented", "x:absent"])
def test_what_makes_no_sense_is_no_sample(name: str) -> None:
    assert read_exposition(PAGE, [name]).total(name) is None


def test_totals_sum_all_labels_and_an_older_name_counts_where_the_new_one_is_absent() -> None:
    page = read_exposition(PAGE, ["x:count_total", "x:bare"])
    assert page.total("x:count_total") == 3
    assert page.total("x:newer", "x:bare") == 7


@given(st.text(max_size=300))
def test_any_text_at_all_is_read_without_an_exception(text: str) -> None:
    read_exposition(text + "\nx:a{" + text + "} " + text, ["x:a"])
