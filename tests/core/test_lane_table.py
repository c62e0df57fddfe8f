"""Every request goes to one lane: as its caller wishes where that counts, else as its tenant may, else by its size."""

from fractions import Fraction
from typing import Any

import pytest

from gateway.core.lane_table import DEFAULT_LANES, STANDARD_ONLY, LaneTable, LaneTerms, RequestSize
from gateway.core.names import LaneName

TALK, BATCH, LONG, STAFF = (LaneName(name) for name in ("talk", "batch", "long", "staff"))
TABLE = LaneTable(
    (
        LaneTerms(TALK),
        LaneTerms(BATCH, by_header=True),
        LaneTerms(LONG, above_share=Fraction(1, 4)),
        LaneTerms(LaneName("huge"), above_tokens=5000),
        LaneTerms(STAFF, is_open=False, by_header=True),
    )
)


def size(tokens: int, *, budget: int | None = 100, context: int | None = 10) -> RequestSize:
    """A request on a backend of 100 blocks of 100 tokens, with a context of 10 blocks."""
    return RequestSize(tokens, -(-tokens // 100), budget, context)


@pytest.mark.parametrize(
    ("tokens", "asked", "allowed", "lane"),
    [
        (100, None, (), "talk"),
        (2500, None, (), "talk"),  # a quarter is not above a quarter
        (2600, None, (), "long"),
        (5100, None, (), "huge"),  # of two that take it, the one for larger ones
        (2600, "batch", (), "batch"),  # a wish goes before size
        (100, "long", (), "talk"),  # that lane takes no wishes
        (100, "nonsense", (), "talk"),
        (100, "staff", (), "talk"),  # not open to all
        (100, None, (STAFF,), "staff"),
        (100, "staff", (TALK, STAFF), "staff"),
        (2600, None, (STAFF,), "staff"),  # it may use no other
        (100, None, (LONG,), "long"),
        (100, None, (BATCH, TALK), "batch"),  # its first
        (100, None, (LaneName("gone"),), "talk"),  # a name that is not in the table counts as none
    ],
)
def test_a_request_goes_to_one_lane(tokens: int, asked: str | None, allowed: tuple[LaneName, ...], lane: str) -> None:
    assert TABLE.choose(size(tokens), asked=asked, allowed=allowed).name == lane


@pytest.mark.parametrize(
    ("tokens", "given", "lane"),
    [
        (2600, {}, "long"),
        (2500, {}, "standard"),
        (2600, {"context": 13}, "standard"),  # seven contexts fit, not eight
        (2600, {"context": 12}, "long"),
        (2600, {"context": None}, "standard"),
        (2600, {"budget": None}, "standard"),
    ],
)
def test_without_a_file_what_is_large_on_a_large_backend_has_a_lane_of_its_own(
    tokens: int, given: dict[str, Any], lane: str
) -> None:
    assert DEFAULT_LANES.choose(size(tokens, **given), asked=None, allowed=()).name == lane


@pytest.mark.parametrize("table", [TABLE, DEFAULT_LANES, STANDARD_ONLY, LaneTable(TABLE.lanes[:3])])
@pytest.mark.parametrize("budget", [30, 79, 80, 100, 121])
@pytest.mark.parametrize("sequences", [1, 2, 3, 12])
def test_what_is_never_large_goes_to_the_ordinary_lane_however_long_it_is(
    table: LaneTable, budget: int, sequences: int
) -> None:
    lanes = {
        table.choose(RequestSize(blocks * 100, blocks, budget, 10), asked=None, allowed=())
        for blocks in range(1, sequences * 10 + 1)
    }
    assert table.are_never_large(sequences, budget, 10) <= (lanes == {table.ordinary})


def test_one_sequence_is_never_large_where_a_large_backend_has_a_lane_for_what_is() -> None:
    assert DEFAULT_LANES.are_never_large(1, 100, 10)
    assert DEFAULT_LANES.are_never_large(2, 100, 10)
    assert not DEFAULT_LANES.are_never_large(3, 100, 10)
    assert not TABLE.are_never_large(1, 100, 10)  # a lane by tokens alone


@pytest.mark.parametrize(
    ("terms", "budget", "cap"),
    [
        ({}, 100, None),
        ({"cap_blocks": 30}, 100, 30),
        ({"cap_share": Fraction(1, 3)}, 100, 33),
        ({"cap_share": Fraction(1, 3), "cap_blocks": 30}, 60, 20),
        ({"cap_share": Fraction(1, 3)}, 0, 1),
    ],
)
def test_a_cap_is_the_smaller_of_blocks_and_part_and_never_nothing(terms: dict[str, Any], budget: int, cap: int | None) -> None:
    assert LaneTerms(TALK, **terms).cap_of(budget) == cap


def test_a_table_has_each_name_once_and_a_lane_for_everybody() -> None:
    with pytest.raises(ValueError, match="one name"):
        LaneTable((LaneTerms(TALK), LaneTerms(TALK)))
    with pytest.raises(ValueError, match="ordinary"):
        LaneTable((LaneTerms(TALK, is_open=False), LaneTerms(LONG, above_tokens=1)))


def test_a_lane_that_is_not_in_the_table_has_ordinary_terms() -> None:
    assert STANDARD_ONLY.terms(BATCH) == LaneTerms(BATCH)
