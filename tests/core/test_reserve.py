"""The reserve: what an operator may write, and how many blocks it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reserve import Reserve, ReserveProblem


@pytest.mark.parametrize(
    ("text", "blocks", "reserve_blocks"),
    [
        ("5%", 64, 4),
        ("0", 64, 0),
        ("0%", 64, 0),
        ("10", 64, 10),
        ("12.5%", 64, 8),
        ("1%", 1000, 10),
        ("1%", 1001, 11),
        ("99%", 2, 1),
    ],
)
def test_a_percentage_is_rounded_up_and_blocks_are_blocks(text: str, blocks: int, reserve_blocks: int) -> None:
    assert Reserve.parse(text).resolve(blocks) == reserve_blocks


@pytest.mark.parametrize("text", ["", "-1", "5 percent", "100%", "101%", "1.5", "1e3", "GiB", "5%%", "nan", "2gb!", "9" * 20])
def test_what_is_no_reserve_is_refused_with_a_sentence_that_shows_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a reserve.*5%"):
        Reserve.parse(text)


def test_memory_becomes_blocks_only_where_a_block_has_known_bytes() -> None:
    reserve = Reserve.parse("2GiB")
    assert reserve.resolve(5000, bytes_per_block=2**21) == 1024
    problem = reserve.resolve(5000)
    assert isinstance(problem, ReserveProblem)
    assert "blocks or percent" in problem.message
    assert not problem.too_large


def test_a_reserve_that_leaves_nothing_is_a_problem_with_both_numbers() -> None:
    problem = Reserve.parse("64").resolve(64)
    assert isinstance(problem, ReserveProblem)
    assert problem.too_large
    assert "64 blocks" in problem.message
    assert "KVGATE_RESERVE" in problem.message


@given(percent=st.integers(0, 99), blocks=st.integers(1, 10**9))
def test_a_percentage_never_takes_the_whole_of_a_budget(percent: int, blocks: int) -> None:
    reserve_blocks = Reserve.parse(f"{percent}%").resolve(blocks)
    assert isinstance(reserve_blocks, int)
    assert 0 <= reserve_blocks < blocks
    assert reserve_blocks * 100 >= min(percent * blocks, (blocks - 1) * 100)


@given(st.text(max_size=12))
def test_any_text_is_a_reserve_or_a_value_error(text: str) -> None:
    try:
        reserve = Reserve.parse(text)
    except ValueError:
        return
    assert Reserve.parse(str(reserve)) == reserve
