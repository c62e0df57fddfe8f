"""Groups: the layers of a model sorted by what they keep, and the bytes of T tokens without any rounding to blocks.

A model is a tuple of layers in their order, for pipeline stages cut it; a layer is a tuple of caches, for some keep two
(latent rows and an indexer's keys). Layers that keep nothing (shared KV, MLP only) are empty tuples.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final

from gateway.core.geometry.cells import Cell, State
from gateway.core.geometry.precision import KvDtype
from gateway.core.geometry.rounding import ceil_div


class Kind(StrEnum):
    """How a layer's cache grows with the tokens."""

    FULL = "full"  # one cell for every token (or for every `tokens_per_cell`)
    WINDOW = "window"  # the last `window` tokens
    CHUNK = "chunk"  # the tokens of the present chunk of `window`
    STATE = "state"  # the same for any length
    CROSS = "cross"  # one cell for every position of the encoder


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One cache of one layer.

    cell: what a cached position takes; None for a state. state: None for cells. window: tokens of a window or chunk,
    positions of an encoder. tag: a word that tells caches of one kind apart.
    """

    kind: Kind
    cell: Cell | None = None
    state: State | None = None
    window: int | None = None
    tokens_per_cell: int = 1
    tag: str = ""


Layer = tuple[LayerCache, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """How caches are stored on one rank. model_bytes: bytes of one number of the model's own dtype. speculated: tokens that
    the engine drafts ahead, each of which widens a convolution's state by a row."""

    dtype: KvDtype
    tp: int = 1
    model_bytes: int = 2
    speculated: int = 0

    def cell_bytes(self, cache: LayerCache) -> int:
        """Bytes of one cached position; 0 for a state. Raises ValueError where these layers cannot be stored so."""
        return 0 if cache.cell is None else cache.cell.cell_bytes(self.dtype, self.tp)

    def state_bytes(self, cache: LayerCache) -> int:
        """Bytes of a state; 0 for cells."""
        if cache.state is None:
            return 0
        return cache.state.state_bytes(model_bytes=self.model_bytes, tp=self.tp, speculated=self.speculated)


@dataclass(frozen=True, slots=True)
class Model:
    """What a model keeps, as its config says. kv_auto: the KV dtype that the checkpoint asks for, None: the model's own.

    model_bytes: bytes of one number of its own dtype. context: positions it was made for, None where it is not said.
    draft_layers: layers of a draft head that the config names; they are no part of `layers`.
    assumptions: sentences for the operator.
    """

    model_type: str
    layers: tuple[Layer, ...]
    model_bytes: int
    kv_auto: str | None = None
    context: int | None = None
    draft_layers: int = 0
    is_encoder_decoder: bool = False
    assumptions: tuple[str, ...] = ()

    def with_state_dtype(self, name: str) -> "Model":
        """The same with recurrent parts in this dtype (a name of ITEM_BYTES), which the engine was told."""
        layers = tuple(
            tuple(
                cache if cache.state is None else replace(cache, state=replace(cache.state, state_dtype=name))
                for cache in layer
            )
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def with_drafts(self, layers: int) -> "Model":
        """The same with `layers` more of its last attention layer: a draft model in the same pool."""
        last = next((layer for layer in reversed(self.layers) if any(cache.kind is Kind.FULL for cache in layer)), ())
        full = tuple(cache for cache in last if cache.kind is Kind.FULL)
        return replace(self, layers=(*self.layers, *((full,) * layers)))


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of one kind and one size. cell_bytes, state_bytes: of one layer on one rank."""

    kind: Kind
    layers: int
    cell_bytes: int
    window: int | None = None
    state_bytes: int = 0
    tokens_per_cell: int = 1
    tag: str = ""

    def ideal_bytes(self, tokens: int) -> int:
        """Bytes of one sequence of `tokens` written tokens, were there no blocks."""
        match self.kind:
            case Kind.STATE:
                return self.layers * self.state_bytes
            case Kind.CROSS:
                return self.layers * self.cell_bytes * (self.window or 0)
            case Kind.FULL:
                return self.layers * self.cell_bytes * ceil_div(tokens, self.tokens_per_cell)
            case _:
                return self.layers * self.cell_bytes * min(tokens, self.window or 0)

    @property
    def rate(self) -> Fraction:
        """Bytes of one more token while no window is full; 0 for what does not grow."""
        grows = self.kind in (Kind.FULL, Kind.WINDOW, Kind.CHUNK)
        return Fraction(self.layers * self.cell_bytes, self.tokens_per_cell) if grows else Fraction(0)

    @property
    def words(self) -> str:
        """For operators."""
        tag = f" ({self.tag})" if self.tag else ""
        match self.kind:
            case Kind.STATE:
                return f"{self.layers} layers keep a state of {self.state_bytes:,} bytes each, whatever the length{tag}"
            case Kind.CROSS:
                return f"{self.layers} layers keep {self.window} positions of the encoder, {self.cell_bytes:,} bytes each{tag}"
            case Kind.WINDOW:
                how = f"the last {self.window:,} tokens"
            case Kind.CHUNK:
                how = f"the tokens of the present chunk of {self.window:,}"
            case Kind.FULL:
                how = "every token" if self.tokens_per_cell == 1 else f"one row for every {self.tokens_per_cell} tokens"
        return f"{self.layers} layers keep {how}, {self.cell_bytes:,} bytes each{tag}"


def group_layers(layers: Iterable[Layer], storage: Storage) -> tuple[Group, ...]:
    """The groups of these layers: what does not grow or stops growing first, then what grows.

    Raises ValueError where they cannot be stored so.
    """
    counts: dict[Group, int] = {}
    for layer in layers:
        for cache in layer:
            group = Group(
                cache.kind,
                1,
                storage.cell_bytes(cache),
                cache.window,
                storage.state_bytes(cache),
                cache.tokens_per_cell,
                cache.tag,
            )
            counts[group] = counts.get(group, 0) + 1
    groups = [
        Group(one.kind, count, one.cell_bytes, one.window, one.state_bytes, one.tokens_per_cell, one.tag)
        for one, count in counts.items()
    ]
    return tuple(sorted(groups, key=_order))


_KIND_ORDER: Final = (Kind.STATE, Kind.WINDOW, Kind.CHUNK, Kind.FULL, Kind.CROSS)
_TAG_ORDER: Final = ("csa", "mla", "", "indexer", "hca")


def _order(group: Group) -> tuple[int, int]:
    # A window that only completes compressed rows comes after them.
    if group.tag == "swa":
        return len(_KIND_ORDER), 0
    tag = _TAG_ORDER.index(group.tag) if group.tag in _TAG_ORDER else len(_TAG_ORDER)
    return _KIND_ORDER.index(group.kind), tag


def ideal_bytes(groups: Iterable[Group], tokens: int) -> int:
    """Bytes of one sequence of `tokens` written tokens on one rank, were there no blocks: no engine takes less."""
    return sum(group.ideal_bytes(tokens) for group in groups)


def bytes_per_token(groups: Iterable[Group], *, windows_full: bool) -> Fraction:
    """Bytes of one more token: once all windows are full, or before any is."""
    return sum(
        (group.rate for group in groups if group.kind is Kind.FULL or not windows_full),
        Fraction(0),
    )
