"""From tokens to blocks. Rounding happens here, upwards, once.

The plain formula is ceil(tokens / block_tokens) for each sequence, where tokens = prompt + output - 1: the last token's
KV is never written (measured on vLLM 0.32: 4 x (200 + 313) on 64 blocks of 32 ran without a preemption, 4 x (200 + 314)
did not). Where an engine's own figures disagree with the formula, every sequence is weighed as one whole context.
"""

from dataclasses import dataclass

from gateway.core.demand import Demand


def ceil_div(amount: int, unit: int) -> int:
    """amount / unit, rounded up. amount >= 0, unit >= 1."""
    return -(-amount // unit)


@dataclass(frozen=True, slots=True)
class Weighing:
    """How a backend turns tokens into blocks.

    block_tokens: tokens in one block. max_context: tokens that one sequence can have at most, None if unknown.
    whole_context_blocks: blocks of one max-length request, where the plain formula cannot be trusted and every sequence
    is weighed as that; None where the formula holds. spare_blocks: see EngineRules.
    """

    block_tokens: int
    max_context: int | None = None
    whole_context_blocks: int | None = None
    spare_blocks: int = 0

    @property
    def words(self) -> str:
        """How it weighs, for operators."""
        spare = f" + {self.spare_blocks} spare" if self.spare_blocks else ""
        if self.whole_context_blocks is not None:
            return f"whole contexts: {self.whole_context_blocks} blocks{spare} a sequence"
        return f"plain: ceil((prompt + output - 1) / {self.block_tokens}) blocks{spare} a sequence"

    def sequence_blocks(self, total_tokens: int) -> int:
        """Blocks of one sequence of `total_tokens` = prompt + output, cut at the context."""
        if self.whole_context_blocks is not None:
            return self.whole_context_blocks + self.spare_blocks
        if self.max_context is not None:
            total_tokens = min(total_tokens, self.max_context)
        return max(1, ceil_div(max(total_tokens - 1, 0), self.block_tokens)) + self.spare_blocks

    def blocks(self, demand: Demand) -> int:
        """Blocks of a whole demand: each sequence rounded up for itself."""
        return sum(group.samples * self.sequence_blocks(group.prompt_tokens + group.output_tokens) for group in demand.groups)

    def tokens_within(self, blocks: int, sequences: int) -> int:
        """The largest prompt + output that each of `sequences` equal sequences can have within `blocks`; 0 if none can."""
        each = blocks // sequences - self.spare_blocks
        if self.whole_context_blocks is not None:
            fits = each >= self.whole_context_blocks and self.max_context is not None
            return self.max_context or 0 if fits else 0
        if each < 1:
            return 0
        tokens = each * self.block_tokens + 1
        return tokens if self.max_context is None else min(tokens, self.max_context)
