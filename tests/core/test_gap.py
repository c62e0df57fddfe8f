"""The gap between the ledger and the engine's gauge: its parts add up, and each has the cause that it must have."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.gap import GapCause, ledger_gap

BLOCKS = st.integers(0, 1000)


def gap(
    charged: int, used: int, *, worst: int | None = None, foreign: int = 0, seats: int = 1, running: int | None = 1
) -> dict[str, int]:
    """The causes that have a part."""
    worst_blocks = charged if worst is None else worst
    causes = ledger_gap(
        charged_blocks=charged,
        worst_blocks=worst_blocks,
        foreign_blocks=foreign,
        used_blocks=used,
        held_seats=seats,
        running=running,
    )
    assert set(causes) == set(GapCause)
    return {cause.value: blocks for cause, blocks in causes.items() if blocks}


def test_room_held_and_not_written_yet_is_the_estimate_s() -> None:
    assert gap(40, 10) == {"estimate": 30}


def test_a_forecast_that_was_too_low_is_the_estimate_s_as_far_as_the_worst_case_goes() -> None:
    assert gap(10, 25, worst=40) == {"estimate": -15}


def test_more_than_ours_can_have_written_is_foreign() -> None:
    assert gap(10, 50, worst=30) == {"estimate": -20, "foreign": -20}


def test_it_is_orphaned_where_the_engine_runs_more_sequences_than_we_hold_seats_for() -> None:
    assert gap(0, 12, seats=0, running=1) == {"orphaned": -12}
    assert gap(0, 12, seats=0, running=None) == {"foreign": -12}, "an engine that does not say how many it runs"


def test_what_was_found_foreign_already_is_no_gap() -> None:
    assert gap(40, 52, foreign=12) == {}


@given(charged=BLOCKS, extra=BLOCKS, foreign=BLOCKS, used=BLOCKS, seats=BLOCKS, running=st.none() | BLOCKS)
def test_the_parts_add_up(charged: int, extra: int, foreign: int, used: int, seats: int, running: int | None) -> None:
    parts = gap(charged, used, worst=charged + extra, foreign=foreign, seats=seats, running=running)
    assert sum(parts.values()) == charged + foreign - used
