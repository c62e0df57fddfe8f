"""Tokens to blocks: the plain formula at its edges, and weighing by whole contexts."""

import pytest

from gateway.core.demand import Demand, SequenceDemand
from gateway.core.geometry import Weighing


def demand(prompt: int, output: int, samples: int = 1) -> Demand:
    return Demand((SequenceDemand(prompt, output, samples),))


@pytest.mark.parametrize(
    ("prompt", "output", "blocks"),
    [(10, 22, 1), (10, 23, 1), (10, 24, 2), (32, 33, 2), (100, 92, 6), (100, 93, 6), (500, 100, 19), (1, 1, 1), (1, 0, 1)],
)
def test_blocks_of_one_sequence_are_what_vllm_was_seen_to_take(prompt: int, output: int, blocks: int) -> None:
    assert Weighing(block_tokens=32).blocks(demand(prompt, output)) == blocks


@pytest.mark.parametrize(
    ("count", "prompt", "output", "fits"),
    [(4, 200, 313, True), (4, 200, 314, False), (8, 100, 157, True), (8, 100, 158, False)],
)
def test_the_edge_at_which_vllm_preempts_is_the_edge_of_the_budget(count: int, prompt: int, output: int, fits: bool) -> None:
    weighing = Weighing(block_tokens=32, max_context=1024)
    assert (sum(weighing.blocks(demand(prompt, output)) for _ in range(count)) <= 64) is fits


def test_every_sequence_is_rounded_up_for_itself() -> None:
    assert Weighing(block_tokens=16).blocks(demand(10, 10, samples=4)) == 8


def test_a_sequence_never_outgrows_the_context() -> None:
    assert Weighing(block_tokens=16, max_context=64).blocks(demand(60, 10_000)) == 4


def test_whole_context_weighing_ignores_the_length() -> None:
    weighing = Weighing(block_tokens=16, max_context=1024, whole_context_blocks=70)
    assert weighing.blocks(demand(1, 1)) == weighing.blocks(demand(900, 100)) == 70


def test_spare_blocks_are_added_once_a_sequence() -> None:
    assert Weighing(block_tokens=16, spare_blocks=1).blocks(demand(16, 1, samples=3)) == 6


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 7, 64, 65])
def test_tokens_within_is_the_largest_demand_that_weighs_no_more(blocks: int, sequences: int, spare: int) -> None:
    weighing = Weighing(block_tokens=16, spare_blocks=spare)
    tokens = weighing.tokens_within(blocks, sequences)
    if tokens:
        assert weighing.blocks(demand(1, tokens - 1, sequences)) <= blocks
    assert weighing.blocks(demand(1, tokens, sequences)) > blocks
