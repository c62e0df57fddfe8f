"""vLLM's pool: pages, groups and blocks, as its planner makes them (0.9 to 0.33).

One pool of equal blocks; a block belongs to one group at a time, so a sequence needs the sum over groups. The steps:
* models with recurrent states grow the attention block until its page covers a state, which is then padded to it;
* layers that are all of one kind are one group, however different their sizes: a block is the sum of all their pages;
* else pages are made alike, smaller ones by more tokens to a block where that divides and by padding where not; the kinds
  are cut into groups of equal layers, and a block is one group's pages;
* one block of the pool, the null block, never holds tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.geometry.cells import LatentCell
from gateway.core.geometry.groups import Kind, Layer, LayerCache, Storage
from gateway.core.geometry.pools import NoPool, Pool, PoolGroup
from gateway.core.geometry.rounding import ceil_div
from gateway.core.geometry.weighing import GroupNeed

DEFAULT_BLOCK_TOKENS: Final = 16
LATENT_BLOCK_TOKENS: Final = 64  # FlashMLA's
_LATENT_HYBRID_ALIGN: Final = 128
DEFAULT_IN_FLIGHT_TOKENS: Final = 8192


class StateMode(StrEnum):
    """mamba_cache_mode: how many blocks a state holds. `align` is what prefix caching switches on."""

    NONE = "none"
    ALIGN = "align"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How the engine was started, as far as it changes blocks.

    block_tokens: --block-size, None for the engine's own choice. in_flight_tokens: max_num_batched_tokens times the batches
    that run at once; windows keep them. speculated: drafted tokens, each of which holds a state. hybrid: whether layers
    of several kinds get tables of their own; None: as the engine chooses, which is not where layers are chunked.
    """

    block_tokens: int | None = None
    max_model_len: int | None = None
    in_flight_tokens: int = DEFAULT_IN_FLIGHT_TOKENS
    state_mode: StateMode = StateMode.ALIGN
    speculated: int = 0
    hybrid: bool | None = None


@dataclass(frozen=True, slots=True)
class _Spec:
    """What makes two caches the same to the planner, and the page that one block takes."""

    kind: Kind
    page_bytes: int
    block_tokens: int
    window: int | None


def vllm_pool(layers: tuple[Layer, ...], storage: Storage, settings: VllmSettings) -> Pool:
    """The pool of one rank that holds these layers.

    Raises NoPool where this version's planner is not modelled, and ValueError where the layers cannot be stored so.
    """
    caches = [cache for layer in layers for cache in layer]
    if any(cache.tokens_per_cell > 1 for cache in caches):
        raise NoPool(
            "compressed attention (DeepSeek V4) packs pages of several sizes into one block, which is not modelled: take the"
            " engine's own figures, or describe the groups as kvgate_groups"
        )
    hybrid = settings.hybrid
    if hybrid is None:
        hybrid = not any(cache.kind is Kind.CHUNK for cache in caches)
    block_tokens = _block_tokens(caches, storage, settings)
    specs = _count(_spec(cache, storage, block_tokens, hybrid=hybrid) for cache in caches)
    if _is_one_kind(specs):
        page = sum(spec.page_bytes * count for spec, count in specs.items())
        group = _group(specs, sum(specs.values()), next(iter(specs)), settings)
        return Pool("cache", "block", group.block_tokens, page, (group,), reserved_blocks=1)
    page = max(spec.page_bytes for spec in specs)
    alike = _unify(specs, page)
    size = _group_size(alike.values())
    groups = [
        _group(alike, share, spec, settings) for spec in sorted(alike, key=_order) for share in _shares(alike[spec], size)
    ]
    return Pool("cache", "block", block_tokens, size * page, tuple(groups), reserved_blocks=1)


def _block_tokens(caches: list[LayerCache], storage: Storage, settings: VllmSettings) -> int:
    """Tokens of the attention block: as given, or grown to cover a state."""
    latent = any(isinstance(cache.cell, LatentCell) for cache in caches)
    given = settings.block_tokens or (LATENT_BLOCK_TOKENS if latent else DEFAULT_BLOCK_TOKENS)
    state_bytes = max((storage.state_bytes(cache) for cache in caches), default=0)
    cells = [storage.cell_bytes(cache) for cache in caches if cache.kind is Kind.FULL]
    if not state_bytes or not cells:
        return given
    # The planner aligns to the larger of the kernel's block and the one that was set; latent kernels want 128.
    align = max(given, _LATENT_HYBRID_ALIGN) if latent else given
    return max(given, align * ceil_div(state_bytes, align * cells[0]))


def _spec(cache: LayerCache, storage: Storage, block_tokens: int, *, hybrid: bool) -> _Spec:
    kind, cell = cache.kind, storage.cell_bytes(cache)
    if kind is Kind.STATE:
        return _Spec(kind, storage.state_bytes(cache), block_tokens, None)
    if kind in (Kind.WINDOW, Kind.CHUNK) and not hybrid:
        kind = Kind.FULL
    return _Spec(kind, cell * block_tokens, block_tokens, cache.window if kind is not Kind.FULL else None)


def _count(specs: Iterable[_Spec]) -> dict[_Spec, int]:
    counts: dict[_Spec, int] = {}
    for spec in specs:
        counts[spec] = counts.get(spec, 0) + 1
    return counts


def _is_one_kind(specs: dict[_Spec, int]) -> bool:
    """One table for all layers: all full, or all windows of one length, or all states of one size."""
    kinds = {(spec.kind, spec.window) for spec in specs}
    if len(kinds) != 1:
        return False
    return next(iter(specs)).kind is not Kind.STATE or len(specs) == 1


def _unify(specs: dict[_Spec, int], page: int) -> dict[_Spec, int]:
    """The same layers with pages of one size."""
    alike: dict[_Spec, int] = {}
    for spec, count in specs.items():
        tokens = spec.block_tokens
        if spec.kind is not Kind.STATE and page % spec.page_bytes == 0:
            tokens *= page // spec.page_bytes
        unified = _Spec(spec.kind, page, tokens, spec.window)
        alike[unified] = alike.get(unified, 0) + count
    return alike


def _group_size(counts: Iterable[int]) -> int:
    """Layers of one group: those of the smallest kind, or of the largest if it is not much larger."""
    few, many = min(counts), max(counts)
    return many if 2 * many < 3 * few else few


def _shares(layers: int, size: int) -> list[int]:
    """Layers of each group of one kind, dealt out in turn."""
    groups = ceil_div(layers, size)
    return [layers // groups + (1 if place < layers % groups else 0) for place in range(groups)]


_KIND_ORDER: Final = (Kind.STATE, Kind.WINDOW, Kind.CHUNK, Kind.FULL, Kind.CROSS)


def _order(spec: _Spec) -> tuple[int, int]:
    return _KIND_ORDER.index(spec.kind), spec.window or 0


def _group(specs: Iterable[_Spec], layers: int, spec: _Spec, settings: VllmSettings) -> PoolGroup:
    tokens, longest = spec.block_tokens, settings.max_model_len
    in_flight = settings.in_flight_tokens
    most: int | None = None
    match spec.kind:
        case Kind.STATE:
            need = _state_need(tokens, settings)
            startup = need.blocks(longest or 0)
        case Kind.CROSS:
            need = GroupNeed(1, None, fixed_blocks=ceil_div(spec.window or 0, tokens))
            startup = need.fixed_blocks
        case Kind.WINDOW:
            held = (spec.window or 1) - 1 + in_flight
            most = ceil_div(held if longest is None else min(held, longest), tokens) + 1
            need, startup = GroupNeed(1, tokens, most), most
        case Kind.CHUNK:
            held = (spec.window or 1) + in_flight
            most = ceil_div(held if longest is None else min(held, longest), tokens)
            need, startup = GroupNeed(1, tokens, most), most
        case Kind.FULL:
            need, startup = GroupNeed(1, tokens), ceil_div(longest or 0, tokens)
    return PoolGroup(spec.kind, layers, tokens, need, startup)


def _state_need(block_tokens: int, settings: VllmSettings) -> GroupNeed:
    match settings.state_mode:
        case StateMode.NONE:
            return GroupNeed(1, None, fixed_blocks=1 + settings.speculated)
        case StateMode.ALIGN:
            # One until the first block boundary, two from then on; the engine reckons with two, and so do we.
            return GroupNeed(1, None, fixed_blocks=2 + settings.speculated)
        case StateMode.ALL:
            return GroupNeed(1, block_tokens, fixed_blocks=settings.speculated)
