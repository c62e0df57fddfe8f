"""Which pools an engine keeps for a model: one function for each engine, and the table of them.

vLLM's is a file of its own. The others count tokens, in pages or padded, and keep windows, states and heads apart in pools
of their own or not at all. Sources: SGLang 0.5.23 (`pool_configurator.py`), TGI at its end of life, llama.cpp 0c1e570,
TensorRT-LLM's PyTorch runtime.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from gateway.core.geometry.cells import HeadCell, LatentCell
from gateway.core.geometry.groups import Kind, Layer, LayerCache, Storage
from gateway.core.geometry.pools import NoPool, Pool, PoolGroup
from gateway.core.geometry.rounding import ceil_div, round_up
from gateway.core.geometry.vllm_pages import VllmSettings, vllm_pool
from gateway.core.geometry.weighing import GroupNeed

_LLAMA_PAD: Final = 256


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine was started. vllm: for vLLM. block_tokens: None for the engine's own.

    chunk_tokens: the prefill chunk that a window keeps beside itself. slots, is_unified: llama.cpp's parallel slots, and
    whether they share their cells.
    """

    vllm: VllmSettings
    block_tokens: int | None = None
    max_context: int | None = None
    chunk_tokens: int = 8192
    slots: int = 1
    is_unified: bool = True


Pools = tuple[Pool, ...]


def _vllm(layers: tuple[Layer, ...], storage: Storage, settings: EngineSettings) -> Pools:
    return (vllm_pool(layers, storage, settings.vllm),)


# SGLang: sliding slots for each full one, and the memory of states to that of tokens.
_SLIDING_RATIO: Final = Fraction(4, 5)
_STATE_SHARE: Final = Fraction(9, 19)
_STATE_SLOTS: Final = 5  # reserved for a running request with prefix caching (four held, one in exchange), measured


def _sglang(layers: tuple[Layer, ...], storage: Storage, settings: EngineSettings) -> Pools:
    """Token slots, in pages; a second pool for windows, a third for states."""
    caches = [cache for layer in layers for cache in layer]
    _refuse_compressed(caches)
    page = settings.block_tokens or 1
    grows = [cache for cache in caches if cache.kind is Kind.FULL]
    local = [cache for cache in caches if cache.kind in (Kind.WINDOW, Kind.CHUNK)]
    states = [cache for cache in caches if cache.kind is Kind.STATE]
    if not grows:
        grows, local = local, []  # nothing but windows: the mask is all that is done about them
    pools: list[Pool] = []
    if grows:
        cell = sum(storage.cell_bytes(cache) for cache in grows)
        sliding = sum(storage.cell_bytes(cache) for cache in local)
        combined = ceil_div(cell * _SLIDING_RATIO.denominator + sliding * _SLIDING_RATIO.numerator, _SLIDING_RATIO.denominator)
        share = 1 - _STATE_SHARE if states else Fraction(1)
        pools.append(
            Pool("tokens", "page", page, combined * page, (_growing(Kind.FULL, len(grows), page, settings),), 0, share)
        )
        if local:
            most = ceil_div(max(cache.window or 0 for cache in local) + settings.chunk_tokens, page)
            need = GroupNeed(1, page, most)
            group = PoolGroup(local[0].kind, len(local), page, need, need.blocks(settings.max_context or most * page))
            pools.append(Pool("sliding tokens", "page", page, sliding * page, (group,), for_each_block=_SLIDING_RATIO))
    if states:
        # Its default state is float32 where vLLM takes the model's own dtype.
        size = sum(storage.state_bytes(_state_in_float32(cache)) for cache in states)
        need = GroupNeed(1, None, fixed_blocks=_STATE_SLOTS)
        group = PoolGroup(Kind.STATE, len(states), 1, need, _STATE_SLOTS)
        pools.append(Pool("states", "slot", 1, size, (group,), 0, _STATE_SHARE if grows else Fraction(1)))
    return tuple(pools)


def _state_in_float32(cache: LayerCache) -> LayerCache:
    state = cache.state
    return cache if state is None or state.state_dtype is not None else replace(cache, state=replace(state, state_dtype="fp32"))


def _tgi(layers: tuple[Layer, ...], storage: Storage, settings: EngineSettings) -> Pools:
    """Equal layers only; latent rows are kept as whole heads, values as wide as keys; windows are not used."""
    block = settings.block_tokens or 1
    cells: set[HeadCell] = set()
    for cache in (cache for layer in layers for cache in layer):
        cell = cache.cell.decompressed(padded=True) if isinstance(cache.cell, LatentCell) else cache.cell
        if not isinstance(cell, HeadCell) or cache.kind not in (Kind.FULL, Kind.WINDOW, Kind.CHUNK):
            raise NoPool("TGI keeps plain heads only, alike in every layer: this model it cannot serve from its block cache")
        cells.add(cell)
    if len(cells) != 1:
        raise NoPool("TGI keeps one head count and one head width for all layers: this model has several")
    count = sum(1 for layer in layers if layer)
    size = count * next(iter(cells)).cell_bytes(storage.dtype, storage.tp) * block
    # Block 0 is its health check's.
    return (Pool("cache", "block", block, size, (_growing(Kind.FULL, count, block, settings),), reserved_blocks=1),)


def _llama_cpp(layers: tuple[Layer, ...], storage: Storage, settings: EngineSettings) -> Pools:
    """Cells of one token, all taken at the start; a second cache for windows, a row for each slot's state.

    A sequence needs as many cells as tokens and must fit its slot: n_ctx where the slots share them, its part where not.
    """
    caches = [cache for layer in layers for cache in layer]
    _refuse_compressed(caches)
    grows = [cache for cache in caches if cache.kind is Kind.FULL]
    local = [cache for cache in caches if cache.kind in (Kind.WINDOW, Kind.CHUNK)]
    states = [cache for cache in caches if cache.kind is Kind.STATE]
    pools: list[Pool] = []
    if grows:
        cell = sum(storage.cell_bytes(cache) for cache in grows)
        pools.append(Pool("cells", "cell", 1, cell, (_growing(Kind.FULL, len(grows), 1, settings),)))
    if local:
        window = max(cache.window or 0 for cache in local)
        most = window + settings.chunk_tokens
        cell = sum(storage.cell_bytes(cache) for cache in local)
        need = GroupNeed(1, 1, most)
        pools.append(Pool("sliding cells", "cell", 1, cell, (PoolGroup(Kind.WINDOW, len(local), 1, need, most),)))
    if states:
        in_float32 = replace(storage, model_bytes=4)
        size = sum(in_float32.state_bytes(_state_in_float32(cache)) for cache in states)
        need = GroupNeed(1, None, fixed_blocks=1)
        pools.append(Pool("states", "slot", 1, size, (PoolGroup(Kind.STATE, len(states), 1, need, 1),)))
    return tuple(pools)


def llama_cpp_cells(n_ctx: int, *, window: int | None, slots: int, is_unified: bool, ubatch: int) -> int:
    """Cells of one of llama.cpp's caches at start, over all slots. window: of the sliding cache; None: of the other one."""
    if is_unified:
        cells = round_up(n_ctx, _LLAMA_PAD)
        if window is None:
            return cells
        return round_up(min(cells, window * slots + ubatch), _LLAMA_PAD)
    cells = round_up(ceil_div(n_ctx, slots), _LLAMA_PAD)
    if window is None:
        return cells * slots
    return round_up(min(cells, window + ubatch), _LLAMA_PAD) * slots


def _tensorrt(layers: tuple[Layer, ...], storage: Storage, settings: EngineSettings) -> Pools:
    """Blocks of 32 tokens; the memory is cut into equal shares, one for each window length there is; states apart."""
    caches = [cache for layer in layers for cache in layer]
    _refuse_compressed(caches)
    block = settings.block_tokens or 32
    windows = sorted({cache.window or 0 for cache in caches if cache.kind is not Kind.STATE})  # 0: no window
    pools: list[Pool] = []
    for window in windows:
        mine = [cache for cache in caches if cache.kind is not Kind.STATE and (cache.window or 0) == window]
        size = sum(storage.cell_bytes(cache) for cache in mine) * block
        most = ceil_div(window, block) + 1 if window else None
        need = GroupNeed(1, block, most)
        group = PoolGroup(mine[0].kind, len(mine), block, need, need.blocks(settings.max_context or 0))
        name = f"window {window}" if window else "all tokens"
        pools.append(Pool(name, "block", block, size, (group,), memory_share=Fraction(1, len(windows))))
    pools.sort(key=lambda pool: pool.groups[0].kind is not Kind.FULL)
    states = [cache for cache in caches if cache.kind is Kind.STATE]
    if states:
        size = sum(storage.state_bytes(cache) for cache in states)
        need = GroupNeed(1, None, fixed_blocks=1)
        # Its manager takes its own memory before the blocks do; none of theirs is its.
        pools.append(Pool("states", "slot", 1, size, (PoolGroup(Kind.STATE, len(states), 1, need, 1),), 0, Fraction(0)))
    return tuple(pools)


def _growing(kind: Kind, layers: int, block: int, settings: EngineSettings) -> PoolGroup:
    return PoolGroup(kind, layers, block, GroupNeed(1, block), ceil_div(settings.max_context or 0, block))


def _refuse_compressed(caches: list[LayerCache]) -> None:
    if any(cache.tokens_per_cell > 1 for cache in caches):
        raise NoPool("compressed attention (DeepSeek V4) is not modelled for this engine: take its own figures")


PoolsOf = Callable[[tuple[Layer, ...], Storage, EngineSettings], Pools]
ENGINE_POOLS: Final[Mapping[str, PoolsOf]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tgi": _tgi,
    "llama_cpp": _llama_cpp,
    "tensorrt_llm": _tensorrt,
}
ENGINE_NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in ENGINE_POOLS},
    "any": "vllm",
    "dynamo": "vllm",
    "llama.cpp": "llama_cpp",
    "tensorrt-llm": "tensorrt_llm",
    "trtllm": "tensorrt_llm",
}
