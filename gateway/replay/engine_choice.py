"""Which engine a replay runs: the profile that is named, what a log tells, or a default that is said to be one."""

from dataclasses import dataclass, replace

from gateway.replay.fit import Fit, fit_speeds
from gateway.replay.profiles import EngineProfile, find_engine, with_speed
from gateway.replay.trace import Trace

FIT = "fit"
_DEFAULT = "h100-8b"
_LEAST_CONTEXT = 1024


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
    return EngineChoice(profile, max_context, fit, tuple(assumed))


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
