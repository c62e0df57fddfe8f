"""Every commitment charges at least a block, never more than the worst, and never lets in more than budget - reserve."""

import pytest

from gateway.core.commitment import COMMITMENTS, Commitment, Ending, Evidence
from gateway.core.geometry import Weighing
from gateway.core.ticket import Need
from support.tickets import A, ticket


@pytest.fixture(params=sorted(COMMITMENTS))
def commitment(request: pytest.FixtureRequest) -> Commitment:
    """Each of the table, before an engine that shows what it preempts, and with answers of ten tokens seen."""
    commitment = COMMITMENTS[request.param](Evidence())
    commitment.has_budget(A, 64)
    commitment.read_engine(A, 0, overrun_fails_all=False, now=0.0)
    for number in range(200):
        commitment.learn(ticket(number), 10, Ending.FINISHED)
    return commitment


def test_a_charge_lies_between_a_block_and_the_worst(commitment: Commitment) -> None:
    for worst_blocks in (1, 7, 1_000):
        for weighing in (None, Weighing(16, 16_000)):
            need = Need(worst_blocks, prompt_tokens=3, output_tokens=15_000, weighing=weighing)
            for output_tokens in (0, 50, 100_000):
                assert 1 <= commitment.charge(ticket(1, worst_blocks), A, need, output_tokens) <= worst_blocks


def test_the_limit_leaves_the_reserve(commitment: Commitment) -> None:
    assert commitment.limit_blocks(A, 64, 4) <= 60


def test_what_begins_ends_and_leaves_nothing_charged_for_others(commitment: Commitment) -> None:
    need = Need(40, prompt_tokens=3, output_tokens=600, weighing=Weighing(16, 16_000))
    before = commitment.charge(ticket(1, needs={A: need}), A, need, 0)
    for number in range(20):
        one = ticket(number, needs={A: need})
        assert commitment.begin(one, A, need) == commitment.charge(one, A, need, 0)
        commitment.moved(one, A, need, commitment.charge(one, A, need, 30), 30)
        commitment.ended(one)
    assert commitment.charge(ticket(1, needs={A: need}), A, need, 0) == before


def test_strict_charges_the_worst_until_the_end() -> None:
    strict = COMMITMENTS["strict"](Evidence())
    assert [strict.charge(ticket(1, 9), A, Need(9), tokens) for tokens in (0, 500)] == [9, 9]
    assert strict.limit_blocks(A, 64, 4) == 60
