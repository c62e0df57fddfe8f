"""Pools: the engine's currency. A pool gives out blocks of one size; groups of layers draw from it.

What a sequence takes is a vector over pools, and in each pool a sum over groups. Two figures must be kept apart: what a
running sequence holds (`need`), and what an engine reckons with for one of full length when it starts (`startup_blocks`);
for windows the second can be a block larger for each group.
"""

from dataclasses import dataclass
from fractions import Fraction

from gateway.core.geometry.groups import Kind
from gateway.core.geometry.weighing import GroupNeed, PoolNeed


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Layers that share one block table. block_tokens: tokens of its block (of a state: of the pool's block).

    startup_blocks: what the engine reckons for a sequence of full length.
    """

    kind: Kind
    layers: int
    block_tokens: int
    need: GroupNeed
    startup_blocks: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks of one size.

    name, unit: for operators. bytes_per_block: on one rank, all layers together. reserved_blocks: never given to anybody.
    memory_share: the part of the cache's memory that it gets, where pools divide it. for_each_block: blocks of this pool
    for each block of the first one, where its size follows from that; None for pools of their own.
    """

    name: str
    unit: str
    block_tokens: int
    bytes_per_block: int
    groups: tuple[PoolGroup, ...]
    reserved_blocks: int = 0
    memory_share: Fraction = Fraction(1)
    for_each_block: Fraction | None = None

    def need(self, tokens: int) -> int:
        """Blocks that one sequence of `tokens` written tokens holds at most."""
        return sum(group.need.blocks(tokens) for group in self.groups)

    @property
    def startup_blocks(self) -> int:
        """Blocks that the engine reckons for one sequence of full length."""
        return sum(group.startup_blocks for group in self.groups)

    def usable_blocks(self, available_bytes: int) -> int:
        """Blocks that can hold tokens in so much memory on one rank; 0 where there is none."""
        return max(int(available_bytes * self.memory_share) // self.bytes_per_block - self.reserved_blocks, 0)

    def needs(self, *, scaled: tuple[int, int] = (1, 1)) -> PoolNeed:
        """For weighing: like groups together. scaled: the first pool's budget and this one's."""
        counts: dict[GroupNeed, int] = {}
        for group in self.groups:
            counts[group.need] = counts.get(group.need, 0) + group.need.groups
        alike = tuple(
            GroupNeed(count, need.block_tokens, need.most_blocks, need.fixed_blocks) for need, count in counts.items()
        )
        return PoolNeed(alike, *scaled)


def usable_blocks(pools: tuple[Pool, ...], available_bytes: int) -> tuple[int, ...]:
    """Blocks of each pool in so much memory on one rank."""
    first = pools[0].usable_blocks(available_bytes)
    return tuple(
        pool.usable_blocks(available_bytes) if pool.for_each_block is None else int(first * pool.for_each_block)
        for pool in pools
    )


def share_one_memory(pools: tuple[Pool, ...]) -> bool:
    """Whether there are several and none has a part of the memory to itself, so that only their bytes can be added."""
    return sum(pool.memory_share == 1 and pool.for_each_block is None for pool in pools) > 1


class NoPool(ValueError):
    """This engine's blocks for this model are not known here. One sentence for the operator."""
