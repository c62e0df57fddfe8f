"""Which engine a replay runs: the profile that is named, what a log tells, or a default that is said to be one."""

from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gateway.core.geometry import Weighing
from gateway.replay.fit import Fit, fit_speeds
from gateway.replay.profiles import EngineProfile, find_engine, with_speed
from gateway.replay.trace import Trace

FIT: Final = "fit"
_DEFAULT: Final = "h100-8b"
_LEAST_CONTEXT: Final = 1024
_LOOKED_AT: Final = 2000
_GPU_SPARE_BLOCKS: Final = 1
_MOST_SPARE_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class EngineWish:
    """What an operator said of the engine; None: nothing."""

    name: str | None = None
    speed: str | None = None
    step_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    max_context: int | None = None
    seats: int | None = None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """max_context: tokens. fit: of its speeds, where they come from a log. assumed: what was taken for granted."""

    profile: EngineProfile
    max_context: int
    fit: Fit | None
    assumed: tuple[str, ...]


def choose_engine(trace: Trace, wish: EngineWish) -> EngineChoice:
    """The engine of a replay of that trace. Raises ValueError, with a sentence, where it cannot be told."""
    assumed: list[str] = []
    fit: Fit | None = None
    if wish.name is not None and wish.name.strip().lower() != FIT:
        profile = find_engine(wish.name)
    else:
        profile = find_engine(_DEFAULT)
        if wish.step_tokens is not None:
            profile = replace(profile, step_tokens=wish.step_tokens)
        fit = fit_speeds(trace, step_tokens=profile.step_tokens) if trace.is_log else None
        if fit is not None:
            profile = _fitted(profile, fit)
        elif wish.name is not None:
            raise ValueError("too few requests in it tell how fast the engine was: name one with --engine, or give --speed")
        elif wish.speed is None:
            assumed.append(
                f"nothing tells how fast the engine is: taken for {_DEFAULT} ({profile.name}); see --engine and --speed"
            )
        if wish.seats is None or wish.step_tokens is None:
            assumed.append(
                f"the engine is taken to run {wish.seats or profile.max_running:,} sequences at once and to compute"
                f" {wish.step_tokens or profile.step_tokens:,} tokens a step; see --seats and --step-tokens"
            )
        if trace.is_log and wish.kv_blocks is None:
            raise ValueError("a log does not tell how large the cache was: give --kv-blocks (`kvgate check` prints it)")
        if wish.kv_blocks is None:
            assumed.append(
                f"the cache is taken to have {profile.blocks:,} blocks of {profile.block_tokens} tokens; see --kv-blocks"
            )
    if wish.speed is not None:
        profile = with_speed(profile, wish.speed)
    block_tokens = wish.block_tokens or profile.block_tokens
    pool_tokens = profile.blocks * profile.block_tokens
    profile = replace(
        profile,
        blocks=wish.kv_blocks or max(pool_tokens // block_tokens, 1),
        block_tokens=block_tokens,
        step_tokens=wish.step_tokens or profile.step_tokens,
        max_running=wish.seats or profile.max_running,
    )
    max_context = wish.max_context
    if max_context is None:
        longest = trace.longest_tokens
        max_context = max(1 << (longest - 1).bit_length(), _LEAST_CONTEXT)
        assumed.append(f"the context is taken to be {max_context} tokens: the longest request has {longest}; see --max-context")
    if trace.is_log:
        spare_blocks = _spare_blocks(trace, block_tokens, max_context)
        if spare_blocks is None:
            assumed.append(
                f"blocks in the log are not ceil((prompt + cap - 1) / {block_tokens}): check --block-tokens; models that"
                " are weighed otherwise are replayed by that formula all the same"
            )
        else:
            profile = replace(profile, spare_blocks=spare_blocks)
    return EngineChoice(profile, max_context, fit, tuple(assumed))


def _spare_blocks(trace: Trace, block_tokens: int, max_context: int) -> int | None:
    """Blocks that the gateway held for a sequence beside the formula, by what its log says of requests with a cap. The log's
    bounds are what it was weighed by. None where its figures are not of that form."""
    found: set[int] = set()
    weighing = Weighing(block_tokens, max_context)
    for index, request in islice(trace.rows(), _LOOKED_AT):
        recorded = trace.recorded(index)
        if recorded is not None and recorded.blocks is not None and request.cap_tokens is not None and request.sequences == 1:
            counted = request.counted_tokens or request.prompt_tokens
            found.add(recorded.blocks - weighing.sequence_blocks(counted + request.cap_tokens))
    if not found:
        return _GPU_SPARE_BLOCKS
    return found.pop() if len(found) == 1 and 0 <= min(found) <= _MOST_SPARE_BLOCKS else None


def _fitted(profile: EngineProfile, fit: Fit) -> EngineProfile:
    return replace(
        profile,
        name="fitted from the log",
        fixed_s=fit.fixed_s,
        sequence_s=fit.sequence_s,
        prompt_token_s=fit.prompt_token_s,
        weights_s=0.0,
        token_s=0.0,
        cache_token_s=0.0,
        attention_s=0.0,
    )
