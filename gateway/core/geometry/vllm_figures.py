"""vLLM's own figures of its cache: what the printed tokens and the printed concurrency say, and what they do not.

Three generations of "GPU KV cache size: N tokens" and "Maximum concurrency for M tokens per request: C.CCx":
* up to 0.8.5: N = blocks x block tokens, C = N / M;
* 0.9 to 0.20.0: N = blocks // groups x the smallest block's tokens, C = blocks / blocks of one request of M tokens;
* from 0.20.2: N = int(blocks / blocks of one request x M), C as before.
So N is a capacity only for models of one group. What can be trusted is the block count, and a self-test: whatever was
printed, it must have come from a whole number of blocks. Where no number gives the figures, the geometry is wrong.
"""

import math
from dataclasses import dataclass
from enum import Enum

from gateway.core.geometry.pools import Pool
from gateway.core.geometry.rounding import ceil_div


class Generation(Enum):
    """How a version computes the tokens that it prints."""

    BLOCKS = "up to 0.8.5"
    GROUPS = "0.9 to 0.20.0"
    CONCURRENCY = "from 0.20.2"


def generation_of(version: str | None) -> Generation | None:
    """The generation of a version; None where it cannot be told (0.20.1 was not seen)."""
    numbers = (version or "").split("+")[0].split(".")[:3]
    if not numbers or not all(number.isdigit() for number in numbers):
        return None
    release = tuple(int(number) for number in numbers)
    if release < (0, 9):
        return Generation.BLOCKS
    if release < (0, 20, 1):
        return Generation.GROUPS
    return Generation.CONCURRENCY if release >= (0, 20, 2) else None


def printed_tokens(blocks: int, pool: Pool, max_model_len: int, generation: Generation) -> int:
    """The tokens that this version prints for a pool of `blocks`, the null block among them."""
    match generation:
        case Generation.BLOCKS:
            return blocks * pool.block_tokens
        case Generation.GROUPS:
            return blocks // len(pool.groups) * min(group.block_tokens for group in pool.groups)
        case Generation.CONCURRENCY:
            # As the engine computes it, in floating point.
            return int(blocks / pool.startup_blocks * max_model_len)


def printed_concurrency(blocks: int, pool: Pool, max_model_len: int, generation: Generation) -> str:
    """The concurrency that this version prints, two decimals."""
    if generation is Generation.BLOCKS:
        return f"{blocks * pool.block_tokens / max_model_len:.2f}"
    return f"{blocks / pool.startup_blocks:.2f}"


def blocks_behind(
    tokens: int, pool: Pool, max_model_len: int, generation: Generation, *, concurrency: float | None = None
) -> tuple[int, ...]:
    """Every block count that prints exactly these figures; none: the geometry, or the generation, is not the engine's."""
    match generation:
        case Generation.BLOCKS:
            about, reach = tokens // pool.block_tokens, 1
        case Generation.GROUPS:
            groups = len(pool.groups)
            about, reach = tokens // min(group.block_tokens for group in pool.groups) * groups, groups
        case Generation.CONCURRENCY:
            about, reach = math.floor(tokens * pool.startup_blocks / max_model_len), 2
    return tuple(
        blocks
        for blocks in range(max(about - reach, 1), about + reach + 1)
        if printed_tokens(blocks, pool, max_model_len, generation) == tokens
        and (concurrency is None or printed_concurrency(blocks, pool, max_model_len, generation) == f"{concurrency:.2f}")
    )


def blocks_in(memory_gib: float, pool: Pool) -> tuple[int, int]:
    """The fewest and the most blocks in a memory figure that was printed with two decimals."""
    low, high = ((memory_gib + half) * 2**30 for half in (-0.005, 0.005))
    return int(low) // pool.bytes_per_block, int(high) // pool.bytes_per_block


@dataclass(frozen=True, slots=True)
class FullLengthNeed:
    """What the engine's own figures say that one request of full length takes: from `fewest` to `most` blocks."""

    fewest: int
    most: int


def full_length_need(blocks: int, cache_tokens: int, max_model_len: int) -> FullLengthNeed:
    """The blocks of one full-length request, from cache_tokens = int(blocks / need x max_model_len)."""
    # need is in (blocks x M / (tokens + 1), blocks x M / tokens].
    most = blocks * max_model_len // cache_tokens
    fewest = blocks * max_model_len // (cache_tokens + 1) + 1
    exact = [need for need in range(max(fewest - 1, 1), most + 2) if int(blocks / need * max_model_len) == cache_tokens]
    if exact:
        return FullLengthNeed(exact[0], exact[-1])
    rounded = ceil_div(blocks * max_model_len, cache_tokens)
    return FullLengthNeed(rounded, rounded)
