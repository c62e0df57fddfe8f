"""Every policy ranks tickets by what it knows when they join, and bears being told of any end."""

import pytest

from gateway.core.policies import POLICIES
from support.tickets import ticket


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_ranks_can_be_compared_and_do_not_change_by_asking(name: str) -> None:
    policy = POLICIES[name]()
    first, second = ticket(1, 4, arrived=1.0), ticket(2, 9, arrived=2.0)
    ranks = [policy.rank(first), policy.rank(second)]
    assert sorted(ranks)
    assert [policy.rank(first), policy.rank(second)] == ranks


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_grant_and_a_goodbye_are_taken_note_of(name: str) -> None:
    policy = POLICIES[name]()
    policy.granted(ticket(1))
    policy.left(ticket(2))
    assert policy.rank(ticket(3))
