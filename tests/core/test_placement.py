"""Placement: the same start of a prompt meets the same backend, unless that one is much fuller than the emptiest."""

from collections import Counter

import pytest

from gateway.core.commitment.strict import StrictCommitment
from gateway.core.ledger import BackendLedger, Budget
from gateway.core.names import BackendName
from gateway.core.placement import choose, least_bad


def backend(name: str, taken: int = 0, budget: int | None = 100, *, serving: bool = True) -> BackendLedger:
    page = BackendLedger(BackendName(name), StrictCommitment())
    page.budget = None if budget is None else Budget(budget)
    page.serving = serving
    page.charged_blocks = taken
    return page


def test_the_same_affinity_names_the_same_backend_in_any_order() -> None:
    pages = [backend(name) for name in "abcd"]
    for affinity in (b"one", b"two", b"three"):
        assert choose(affinity, pages) is choose(affinity, pages[::-1])


def test_affinities_spread_and_a_backend_that_goes_moves_only_its_own() -> None:
    pages = [backend(name) for name in "abcd"]
    affinities = [str(number).encode() for number in range(400)]
    before = {affinity: choose(affinity, pages).name for affinity in affinities}
    assert min(Counter(before.values()).values()) > 60
    moved = [affinity for affinity in affinities if choose(affinity, pages[:3]).name != before[affinity]]
    assert {before[affinity] for affinity in moved} == {"d"}


@pytest.mark.parametrize(("taken", "stays"), [(20, True), (21, False), (90, False)])
def test_a_favourite_more_than_a_fifth_fuller_than_the_emptiest_is_left_alone(taken: int, stays: bool) -> None:
    favourite = choose(b"session", [backend("a"), backend("b")]).name
    pages = [backend(name, taken if name == favourite else 0) for name in "ab"]
    assert (choose(b"session", pages).name == favourite) is stays


def test_fullness_is_a_share_of_each_budget_and_foreign_blocks_count() -> None:
    small, large = backend("small", 30, 60), backend("large", 40, 1000)
    assert choose(b"", [small, large]) is large
    large.foreign_blocks = 600
    assert choose(b"", [small, large]) is small


def test_exactly_a_fifth_is_not_more_whatever_floats_say() -> None:
    favourite = choose(b"session", [backend("a"), backend("b")]).name  # 0.9 - 0.7 > 0.2 in floats
    pages = [backend(name, 9 if name == favourite else 7, 10) for name in "ab"]
    assert choose(b"session", pages).name == favourite


def test_without_affinity_the_emptiest_is_taken() -> None:
    assert choose(b"", [backend("a", 5), backend("b", 4), backend("c", 6)]).name == "b"


def test_where_nothing_fits_serving_counts_before_a_budget_and_that_before_emptiness() -> None:
    pages = [backend("down", 0, serving=False), backend("unknown", 0, None), backend("full", 100), backend("fuller", 200)]
    assert least_bad(pages).name == "full"
    assert least_bad(pages[:2]).name == "unknown"
    assert least_bad(pages[:1]).name == "down"
