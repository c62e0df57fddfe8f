"""The pool: the null block stays out of it, and no block is owned twice."""

import pytest

from gateway.simulator.block_pool import BlockPool, OutOfBlocks


def test_the_null_block_holds_nothing() -> None:
    pool = BlockPool(65, 32)
    blocks = pool.take(64)
    assert pool.usable == 64
    assert 0 not in blocks
    assert len(set(blocks)) == 64
    assert repr(pool) == "64 of 64 blocks of 32 tokens in use"


def test_more_blocks_than_are_free_cannot_be_taken() -> None:
    pool = BlockPool(4, 16)
    pool.take(2)
    with pytest.raises(OutOfBlocks):
        pool.take(2)
    assert pool.free == 1


def test_a_block_that_is_free_already_cannot_be_given_back() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.take(1)
    again = list(blocks)
    pool.give_back(blocks)
    with pytest.raises(ValueError, match="was free already"):
        pool.give_back(again)
    assert pool.free == 3


def test_giving_back_empties_the_owners_list() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.take(3)
    pool.give_back(blocks)
    assert blocks == []
    assert pool.used == 0


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (32, 1), (33, 2), (512, 16), (513, 17)])
def test_tokens_are_rounded_up_to_blocks(tokens: int, blocks: int) -> None:
    assert BlockPool(65, 32).blocks_for(tokens) == blocks
