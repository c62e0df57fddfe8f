"""Weighing: how a backend turns the tokens of a sequence into blocks. This is all that admission knows of geometry.

Tokens = prompt + output - 1: the last token's KV is never written (measured on vLLM 0.32: 4 x (200 + 313) on 64 blocks of
32 ran without a preemption, 4 x (200 + 314) did not). There are three ways to weigh:
* plain: ceil(tokens / block_tokens), for models of one kind of layer;
* exact: a sum over groups of layers, from the model's config. Where an engine keeps several pools, the pool that runs out
  first decides: each pool's need is scaled to the first one's blocks;
* whole contexts: where neither is known to be true, every sequence is weighed as one of full length.
All are monotone in the tokens.
"""

from dataclasses import dataclass

from gateway.core.demand import Demand
from gateway.core.geometry.rounding import ceil_div

# What "as long as it likes" means where neither a context nor a growing group sets an end.
_ENDLESS_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """`groups` block tables that are alike: each takes min(ceil(tokens / block_tokens), most_blocks) + fixed_blocks.

    block_tokens: None for a group that does not grow (a state, a cross attention). most_blocks: None for no end.
    """

    groups: int
    block_tokens: int | None
    most_blocks: int | None = None
    fixed_blocks: int = 0

    def blocks(self, tokens: int) -> int:
        """Blocks of all of them for one sequence of which `tokens` are written."""
        grown = 0
        if self.block_tokens is not None:
            grown = ceil_div(tokens, self.block_tokens)
            if self.most_blocks is not None:
                grown = min(grown, self.most_blocks)
        return self.groups * (grown + self.fixed_blocks)


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """What one pool of the engine gives to a sequence.

    numerator / denominator: blocks of the first pool for one block of this one, budget / pool; 1/1 for the first.
    """

    groups: tuple[GroupNeed, ...]
    numerator: int = 1
    denominator: int = 1

    def blocks(self, tokens: int) -> int:
        """Blocks in the first pool's currency for one sequence of which `tokens` are written."""
        return ceil_div(sum(group.blocks(tokens) for group in self.groups) * self.numerator, self.denominator)


@dataclass(frozen=True, slots=True)
class Weighing:
    """How a backend turns tokens into blocks.

    block_tokens: tokens in one block, as the engine tells it. max_context: tokens that one sequence can have at most, None
    if unknown. whole_context_blocks: blocks of one max-length request, where the formula cannot be trusted and every
    sequence is weighed as that; None where it holds. spare_blocks: see EngineRules. pools: the exact geometry; empty for
    the plain formula.
    """

    block_tokens: int
    max_context: int | None = None
    whole_context_blocks: int | None = None
    spare_blocks: int = 0
    pools: tuple[PoolNeed, ...] = ()

    @property
    def words(self) -> str:
        """How it weighs, for operators."""
        spare = f" + {self.spare_blocks} spare" if self.spare_blocks else ""
        if self.whole_context_blocks is not None:
            return f"whole contexts: {self.whole_context_blocks} blocks{spare} a sequence"
        if self.pools:
            several = f", the fuller of {len(self.pools)} pools" if len(self.pools) > 1 else ""
            return f"exact: {' + '.join(_words(group) for group in self.pools[0].groups)}{several}{spare} a sequence"
        return f"plain: ceil((prompt + output - 1) / {self.block_tokens}) blocks{spare} a sequence"

    def sequence_blocks(self, total_tokens: int) -> int:
        """Blocks of one sequence of `total_tokens` = prompt + output, cut at the context."""
        if self.whole_context_blocks is not None:
            return self.whole_context_blocks + self.spare_blocks
        if self.max_context is not None and total_tokens > self.max_context:
            total_tokens = self.max_context
        written_tokens = total_tokens - 1
        if self.pools:
            return max(1, self._written_blocks(max(0, written_tokens))) + self.spare_blocks
        return (-(-written_tokens // self.block_tokens) if written_tokens > 0 else 1) + self.spare_blocks

    def blocks(self, demand: Demand) -> int:
        """Blocks of a whole demand: each sequence rounded up for itself."""
        blocks = 0
        for group in demand.groups:
            blocks += group.samples * self.sequence_blocks(group.prompt_tokens + group.output_tokens)
        return blocks

    def tokens_within(self, blocks: int, sequences: int) -> int:
        """The largest prompt + output that each of `sequences` equal sequences can have within `blocks`; 0 if none can."""
        each = blocks // sequences - self.spare_blocks
        if self.whole_context_blocks is not None:
            fits = each >= self.whole_context_blocks and self.max_context is not None
            return self.max_context or 0 if fits else 0
        if each < 1:
            return 0
        if self.pools:
            return self._longest(each)
        tokens = each * self.block_tokens + 1
        return tokens if self.max_context is None else min(tokens, self.max_context)

    def _written_blocks(self, tokens: int) -> int:
        if self.pools:
            return max(pool.blocks(tokens) for pool in self.pools)
        return ceil_div(tokens, self.block_tokens)

    def _longest(self, each: int) -> int:
        """The largest prompt + output whose blocks, without spare ones, are at most `each`: by halving, for it is monotone."""
        low, high = 0, self.max_context or _ENDLESS_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if max(1, self._written_blocks(middle - 1)) <= each:
                low = middle
            else:
                high = middle - 1
        return low


def _words(group: GroupNeed) -> str:
    times = f"{group.groups} x " if group.groups > 1 else ""
    if group.block_tokens is None:
        return f"{times}{group.fixed_blocks}"
    grown = f"ceil(tokens / {group.block_tokens})"
    if group.most_blocks is not None:
        grown = f"min({grown}, {group.most_blocks})"
    return f"{times}{grown}" if not group.fixed_blocks else f"{times}({grown} + {group.fixed_blocks})"
