"""Fitted geometry: a model's config held against what the engine says of its own cache, before anything is weighed with it.

It promises:
* a config is weighed with only where the engine's figures can have come from it, or where the engine has none, and then
  that is an assumption in print; where they contradict it nothing is weighed with it, and the numbers are told;
* what a config cannot know (blocks of a state, tokens in flight beside a window) is taken from the engine's figures: the
  setting under which they come out to the block. Of several, the one that holds most.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from gateway.backends.engines.engine import EngineReport
from gateway.core.geometry import PoolNeed
from gateway.core.geometry.engine_pools import ENGINE_NAMES, Pools
from gateway.core.geometry.groups import Kind, Model
from gateway.core.geometry.plan import Plan, PlanSettings, choose_dtype, make_plan, parse_stages
from gateway.core.geometry.pools import Pool
from gateway.core.geometry.precision import ITEM_BYTES, kv_dtype
from gateway.core.geometry.stages import cut
from gateway.core.geometry.vllm_figures import FullLengthNeed, full_length_need
from gateway.core.geometry.vllm_pages import DEFAULT_IN_FLIGHT_TOKENS, StateMode

_CELLS: Final = frozenset(("llama_cpp",))
_MOST_SPECULATED: Final = 8


@dataclass(frozen=True, slots=True)
class GivenGeometry:
    """What the operator said of a backend's model. stages: as `parse_stages` reads it."""

    model: Model
    kv_dtype: str = "auto"
    tp: int = 1
    stages: str = "1"


@dataclass(frozen=True, slots=True)
class GivenMemory:
    """What the operator said of the memory of one card, in bytes. weights_are_estimate: from an index of weights."""

    total_bytes: int
    weights_bytes: int
    runtime_bytes: int = 0
    weights_are_estimate: bool = False

    @property
    def available_bytes(self) -> int:
        return max(self.total_bytes - self.weights_bytes - self.runtime_bytes, 0)


@dataclass(frozen=True, slots=True)
class FittedGeometry:
    """The geometry of a backend.

    pools: needs to weigh with; empty where the plain formula says the same. full_length_blocks: of one sequence of full
    length. is_proved: the engine's own figures come out of it to the block. bytes_per_block: on each pipeline stage.
    """

    plan: Plan
    pools: tuple[PoolNeed, ...]
    block_tokens: int
    full_length_blocks: int | None
    is_proved: bool
    bytes_per_block: tuple[int, ...]
    reserved_blocks: int = 0
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def blocks_within(self, available_bytes: int) -> int:
        """Usable blocks of so much memory on each card: the smallest over the stages."""
        return max(min(available_bytes // size for size in self.bytes_per_block) - self.reserved_blocks, 0)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why the config cannot be weighed with here. warnings: sentences for the operator."""

    warnings: tuple[str, ...]
    assumptions: tuple[str, ...] = ()


def fit(
    report: EngineReport, given: GivenGeometry, *, block_tokens: int | None, max_context: int | None
) -> FittedGeometry | Misfit:
    """The geometry of this backend, as far as its figures bear it out."""
    try:
        settings, said = _settings(report, given, block_tokens, max_context)
        partition = parse_stages(given.stages, len(given.model.layers))
        plan = make_plan(_as_run(given.model, report), settings)
    except ValueError as error:
        return Misfit((f"the config is not weighed with: {error}",))
    if plan.no_pool:
        return Misfit((f"the config is not weighed with: {plan.no_pool}",))
    if report.engine in _CELLS:
        return _fit_cells(plan, said)
    need = _told_need(report)
    if need is None:
        return _unproved(plan, said, partition, max_context)
    for candidate in _candidates(plan, report, need):
        if need.fewest <= _startup(candidate) <= need.most:
            return _proved(candidate, said, partition)
    return Misfit(_why_not(plan, report, need), said)


def _as_run(model: Model, report: EngineReport) -> Model:
    """The model with what the engine was told otherwise about its states."""
    if report.state_dtype in (None, "auto"):
        return model
    name = kv_dtype(report.state_dtype or "").name
    return model.with_state_dtype(name) if name in ITEM_BYTES else model


def _settings(
    report: EngineReport, given: GivenGeometry, block_tokens: int | None, max_context: int | None
) -> tuple[PlanSettings, tuple[str, ...]]:
    asked = given.kv_dtype
    said: tuple[str, ...] = ()
    if asked == "auto" and report.kv_dtype not in (None, "auto"):
        asked = report.kv_dtype or asked
        said = (f"KV dtype {asked}: the engine says so",)
    dtype, assumed = choose_dtype(given.model, asked)
    engine = ENGINE_NAMES.get(report.engine, "vllm")
    mode = report.state_mode if report.state_mode in tuple(StateMode) else StateMode.ALIGN
    settings = PlanSettings(
        engine=engine,
        dtype=dtype,
        tp=given.tp,
        block_tokens=None if engine == "llama_cpp" else block_tokens,
        max_context=max_context,
        state_mode=StateMode(mode),
    )
    return settings, (*said, *assumed)


def _told_need(report: EngineReport) -> FullLengthNeed | None:
    """Blocks of a full-length request by the engine's own figures, None where it has none."""
    if report.total_blocks is None or report.cache_tokens is None or report.max_context is None:
        return None
    return full_length_need(report.total_blocks, report.cache_tokens, report.max_context)


def _candidates(plan: Plan, report: EngineReport, need: FullLengthNeed) -> Iterator[Plan]:
    """The same model under every setting that the engine may have: as told first, then as its figures may say."""
    model, settings = plan.model, plan.settings
    kinds = {group.kind for group in plan.groups}
    modes = [settings.state_mode]
    if Kind.STATE in kinds and report.state_mode is None:
        modes += [mode for mode in StateMode if mode is not settings.state_mode]
    hybrids = (None, False) if kinds & {Kind.WINDOW} else (None, True) if Kind.CHUNK in kinds else (None,)
    depths = range(_MOST_SPECULATED + 1) if Kind.STATE in kinds else range(1)
    for drafts in range(model.draft_layers + 1):
        drafted = model.with_drafts(drafts) if drafts else model
        for hybrid in hybrids:
            for mode in modes:
                for depth in depths:
                    tried = replace(settings, state_mode=mode, speculated=depth, hybrid=hybrid)
                    try:
                        made = make_plan(drafted, tried)
                    except ValueError:
                        continue
                    yield _in_flight(made, need) if kinds & {Kind.WINDOW, Kind.CHUNK} else made


def _in_flight(plan: Plan, need: FullLengthNeed) -> Plan:
    """The plan with the most tokens in flight that the engine's figure allows: its need grows with them, so by halving."""
    low, high = 0, plan.settings.max_context or 1
    while low < high:
        middle = (low + high + 1) // 2
        if _startup(_flying(plan, middle)) <= need.most:
            low = middle
        else:
            high = middle - 1
    return _flying(plan, low)


def _flying(plan: Plan, tokens: int) -> Plan:
    return replace(plan, settings=replace(plan.settings, in_flight_tokens=tokens))


def _startup(plan: Plan) -> int:
    return plan.pools(plan.settings.max_context or 1)[0].startup_blocks


def _proved(plan: Plan, said: tuple[str, ...], partition: tuple[int, ...]) -> FittedGeometry:
    longest = plan.settings.max_context or 1
    (pool,) = plan.pools(longest)
    found = [
        f"weighed by the model's config, which the engine's own figures bear out: {pool.startup_blocks} blocks a full length"
    ]
    if plan.settings.in_flight_tokens != DEFAULT_IN_FLIGHT_TOKENS and any(group.kind is Kind.WINDOW for group in plan.groups):
        found.append(f"its windows keep up to {plan.settings.in_flight_tokens} tokens in flight, by the engine's figures")
    if plan.settings.speculated:
        found.append(
            f"its states hold {plan.settings.speculated} block(s) more than mode {plan.settings.state_mode} needs (drafted"
            " tokens or checkpoints), by the engine's figures"
        )
    return FittedGeometry(
        plan=plan,
        pools=_pools_to_weigh(pool),
        block_tokens=pool.block_tokens,
        full_length_blocks=pool.startup_blocks,
        is_proved=True,
        bytes_per_block=_stage_bytes(plan, partition),
        reserved_blocks=pool.reserved_blocks,
        assumptions=(*said, *found),
    )


def _unproved(plan: Plan, said: tuple[str, ...], partition: tuple[int, ...], max_context: int | None) -> FittedGeometry:
    longest = max_context or plan.model.context or 2**20
    pools = plan.pools(longest)
    sentence = "weighed by the model's config: the engine has no figure to hold it against"
    return FittedGeometry(
        plan=plan,
        pools=_several(pools) if len(pools) > 1 else _pools_to_weigh(pools[0]),
        block_tokens=pools[0].block_tokens,
        full_length_blocks=pools[0].startup_blocks if max_context is not None else None,
        is_proved=False,
        bytes_per_block=_stage_bytes(plan, partition),
        reserved_blocks=pools[0].reserved_blocks,
        assumptions=(*said, sentence, *plan.assumptions),
    )


def _fit_cells(plan: Plan, said: tuple[str, ...]) -> FittedGeometry:
    """llama.cpp takes all its caches at the start, so a sequence needs its tokens as cells and nothing else."""
    pools = plan.pools(plan.settings.max_context or 1)
    return FittedGeometry(
        plan=plan,
        pools=(),
        block_tokens=1,
        full_length_blocks=None,
        is_proved=False,
        bytes_per_block=(sum(pool.bytes_per_block for pool in pools if pool.unit == "cell") or 1,),
        assumptions=(*said, "windows and states were allocated whole at its start: cells are weighed as tokens"),
    )


def _pools_to_weigh(pool: Pool) -> tuple[PoolNeed, ...]:
    """Nothing where the plain formula says the same, which costs less."""
    need = pool.needs()
    alone = need.groups[0] if len(need.groups) == 1 else None
    is_plain = (
        alone is not None
        and alone.groups == 1
        and alone.block_tokens == pool.block_tokens
        and alone.most_blocks is None
        and not alone.fixed_blocks
    )
    return () if is_plain else (need,)


def _several(pools: Pools) -> tuple[PoolNeed, ...]:
    """Needs in the first pool's blocks: what another pool gives is scaled by budget / pool, whatever the memory is."""
    whole = 2**40
    first = pools[0].usable_blocks(whole)
    scaled = []
    for pool in pools:
        if pool.for_each_block is not None:
            scaled.append(pool.needs(scaled=(pool.for_each_block.denominator, pool.for_each_block.numerator)))
        elif blocks := pool.usable_blocks(whole):
            scaled.append(pool.needs(scaled=(first, blocks) if pool is not pools[0] else (1, 1)))
    return tuple(scaled)


def _stage_bytes(plan: Plan, partition: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of a block on each pipeline stage. A stage holds its part of every group, so its block is as much smaller."""
    layers = plan.model.layers
    counts = list(partition or (len(layers),))
    counts[-1] += len(layers) - sum(counts)  # a draft's layers lie on the last stage
    sizes: list[int] = []
    for part in cut(layers, tuple(counts)):
        if any(part):
            stage = make_plan(replace(plan.model, layers=part), plan.settings)
            sizes.append(stage.pools(plan.settings.max_context or 1)[0].bytes_per_block)
    return tuple(sizes)


def _why_not(plan: Plan, report: EngineReport, need: FullLengthNeed) -> tuple[str, ...]:
    longest = plan.settings.max_context or 1
    (pool,) = plan.pools(longest)
    told = f"{need.fewest}" if need.fewest == need.most else f"{need.fewest} to {need.most}"
    causes = ["another model's config", "a draft model in the same pool", "a KV connector that turns groups off"]
    if report.block_tokens != pool.block_tokens:
        causes.insert(
            0, f"KVGATE_KV_DTYPE or KVGATE_TP (its blocks are {report.block_tokens} tokens, ours {pool.block_tokens})"
        )
    sentence = (
        f"the config contradicts the engine: a request of {report.max_context} tokens takes {told} blocks by its figures and"
        f" {pool.startup_blocks} by the config, so the config is not weighed with; likely causes: {'; '.join(causes)}"
    )
    return (sentence,)
