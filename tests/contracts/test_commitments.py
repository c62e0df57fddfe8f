"""Every commitment charges at least a block, never more than the worst, and never lets in more than budget - reserve."""

import pytest

from gateway.core.commitment import COMMITMENTS
from support.tickets import A, ticket


@pytest.mark.parametrize("name", sorted(COMMITMENTS))
def test_a_charge_lies_between_a_block_and_the_worst(name: str) -> None:
    commitment = COMMITMENTS[name]()
    for worst_blocks in (1, 7, 1_000):
        for output_tokens in (0, 50, 100_000):
            assert 1 <= commitment.charge(ticket(1, worst_blocks), A, worst_blocks, output_tokens) <= worst_blocks


@pytest.mark.parametrize("name", sorted(COMMITMENTS))
def test_the_limit_leaves_the_reserve(name: str) -> None:
    assert COMMITMENTS[name]().limit_blocks(A, 64, 4) <= 60


def test_strict_charges_the_worst_until_the_end() -> None:
    strict = COMMITMENTS["strict"]()
    assert [strict.charge(ticket(1, 9), A, 9, tokens) for tokens in (0, 500)] == [9, 9]
    assert strict.limit_blocks(A, 64, 4) == 60
