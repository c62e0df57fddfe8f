"""Plan: what one model takes on one engine, at a list of lengths, and how many sequences fit a memory. Arithmetic only.

A plan is made for the pipeline rank that holds most: capacity is the smallest over ranks, so that one decides. All bytes
are of one rank; where there is one rank only, that is the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from gateway.core.geometry.engine_pools import ENGINE_POOLS, EngineSettings, Pools
from gateway.core.geometry.groups import Group, Kind, Model, Storage, bytes_per_token, group_layers, ideal_bytes
from gateway.core.geometry.pools import NoPool, share_one_memory, usable_blocks
from gateway.core.geometry.precision import AUTO, KvDtype, kv_dtype
from gateway.core.geometry.rounding import is_whole
from gateway.core.geometry.stages import cut, even_partition
from gateway.core.geometry.vllm_pages import StateMode, VllmSettings

LENGTHS: Final = (4096, 32768, 131072)
_UBATCH_TOKENS: Final = 512
PROMISE: Final = (
    "this is arithmetic, not a promise for a card: fragmentation, graphs and libraries take memory of their own",
    "the peak of a prefill need not show in steady samples of a card's memory: leave it in --runtime",
)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How the engine is, or would be, started.

    engine: a name of ENGINE_POOLS. partition: layers of each pipeline stage, empty for one stage. max_context: None: each
    length is planned as if it were the longest.
    """

    engine: str = "vllm"
    dtype: KvDtype = field(default_factory=lambda: kv_dtype("bf16"))
    tp: int = 1
    partition: tuple[int, ...] = ()
    block_tokens: int | None = None
    max_context: int | None = None
    in_flight_tokens: int = 8192
    state_mode: StateMode = StateMode.ALIGN
    speculated: int = 0
    hybrid: bool | None = None


def choose_dtype(model: Model, text: str) -> tuple[KvDtype, tuple[str, ...]]:
    """The KV dtype of this name, `auto` as the checkpoint asks, and what is assumed.

    Raises ValueError for a name that is not known, and for a checkpoint that asks for one.
    """
    if text.strip().lower() != AUTO:
        return kv_dtype(text), ()
    if model.kv_auto == "unknown":
        raise ValueError("the checkpoint asks for a KV dtype that is not known here: give it (--kv-dtype, KVGATE_KV_DTYPE)")
    if model.kv_auto is not None:
        return kv_dtype(model.kv_auto), (f"KV dtype auto is {model.kv_auto} here: the checkpoint's quantisation asks for it",)
    return kv_dtype("bf16" if model.model_bytes == 2 else "fp32"), ("KV dtype auto is taken as the model's own",)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank takes. stages: groups of each pipeline stage; `groups` are those of the one that holds most."""

    model: Model
    settings: PlanSettings
    stages: tuple[tuple[Group, ...], ...]
    groups: tuple[Group, ...]
    layers: tuple[tuple[Any, ...], ...]
    no_pool: str
    assumptions: tuple[str, ...]

    @property
    def rate(self) -> Fraction:
        """Bytes of one more token on this rank once all windows are full."""
        return bytes_per_token(self.groups, windows_full=True)

    def pools(self, longest: int) -> Pools:
        """The engine's pools where `longest` is its longest sequence; empty where they are not known."""
        return () if self.no_pool else _pools(self.layers, self.model, self.settings, longest)

    def pools_at(self, tokens: int) -> Pools:
        """The pools as the engine would have them for a sequence of this length."""
        return self.pools(self.settings.max_context or tokens)

    def bytes_at(self, tokens: int) -> int:
        """Bytes of one sequence without rounding to blocks."""
        return ideal_bytes(self.groups, tokens)

    def blocks_at(self, tokens: int) -> tuple[int, ...]:
        """Blocks of one sequence in each pool."""
        return tuple(pool.need(tokens) for pool in self.pools_at(tokens))

    def sessions(self, tokens: int, available_bytes: int) -> int:
        """Sequences of this length that fit so much memory on this rank, whole ones; the pool that runs out first decides."""
        pools = self.pools_at(tokens)
        if not pools:
            return available_bytes // max(self.bytes_at(tokens), 1)
        if share_one_memory(pools):
            return available_bytes // sum(pool.need(tokens) * pool.bytes_per_block for pool in pools)
        blocks = usable_blocks(pools, available_bytes)
        return min(
            (
                have // need
                for pool, have in zip(pools, blocks, strict=True)
                if pool.memory_share and (need := pool.need(tokens))
            ),
            default=0,
        )


def make_plan(model: Model, settings: PlanSettings) -> Plan:
    """The plan. Raises ValueError where the layers cannot be stored or divided so."""
    storage = _storage(model, settings)
    partition = settings.partition or (len(model.layers),)
    parts = cut(model.layers, partition)
    stages = tuple(group_layers(part, storage) for part in parts)
    heaviest = max(
        range(len(stages)),
        key=lambda place: (bytes_per_token(stages[place], windows_full=True), ideal_bytes(stages[place], LENGTHS[-1])),
    )
    no_pool = ""
    try:
        _pools(parts[heaviest], model, settings, settings.max_context or LENGTHS[0])
    except NoPool as error:
        no_pool = str(error)
    return Plan(
        model=model,
        settings=settings,
        stages=stages,
        groups=stages[heaviest],
        layers=parts[heaviest],
        no_pool=no_pool,
        assumptions=(*model.assumptions, *_said(model, settings, stages[heaviest]), *((no_pool,) if no_pool else ())),
    )


def parse_stages(text: str, layers: int) -> tuple[int, ...]:
    """`4` (even stages, as vLLM cuts them) or `16+32`, also `16,32` (layers of each). Raises ValueError."""
    parts = [part.strip() for part in text.replace(",", "+").split("+")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is neither a number of stages nor the layers of each, like 16+32")
    if len(parts) == 1:
        return () if int(parts[0]) == 1 else even_partition(layers, int(parts[0]))
    counts = tuple(int(part) for part in parts)
    if sum(counts) != layers:
        raise ValueError(f"the stages {text} hold {sum(counts)} layers together, and the model has {layers}")
    return counts


def naive_rate(config: Mapping[str, Any], dtype: KvDtype, *, layers: int) -> Fraction | None:
    """What 2 x layers x KV heads x head width x bytes says of this config; None where it lacks what that needs."""

    def first(*keys: str) -> int | None:
        return next((value for key in keys if is_whole(value := config.get(key), at_least=1)), None)

    count = first("num_hidden_layers", "n_layer", "n_layers", "num_layers") or layers
    heads = first("num_attention_heads", "n_head", "n_heads")
    kv_heads = first("num_key_value_heads") or heads
    hidden = first("hidden_size", "n_embd", "d_model")
    width = first("head_dim") or (hidden // heads if hidden and heads else None)
    if kv_heads is None or width is None:
        return None
    return Fraction(2 * count * dtype.row_bytes(kv_heads, width))


def _storage(model: Model, settings: PlanSettings) -> Storage:
    return Storage(settings.dtype, settings.tp, model.model_bytes, settings.speculated)


def _pools(layers: tuple[Any, ...], model: Model, settings: PlanSettings, longest: int) -> Pools:
    vllm = VllmSettings(
        block_tokens=settings.block_tokens,
        max_model_len=longest,
        in_flight_tokens=settings.in_flight_tokens,
        state_mode=settings.state_mode,
        speculated=settings.speculated,
        hybrid=settings.hybrid,
    )
    # llama.cpp keeps a micro-batch beside a window, and makes those much smaller than others make their batches.
    chunk = min(settings.in_flight_tokens, _UBATCH_TOKENS) if settings.engine == "llama_cpp" else settings.in_flight_tokens
    engine = EngineSettings(vllm, settings.block_tokens, longest, chunk)
    return ENGINE_POOLS[settings.engine](layers, _storage(model, settings), engine)


def _said(model: Model, settings: PlanSettings, groups: tuple[Group, ...]) -> list[str]:
    kinds = {group.kind for group in groups}
    tags = {group.tag for group in groups}
    said: list[str] = []
    if settings.max_context is None:
        said.append("each length is planned as the longest that the engine takes; --max-context sets one for all")
    if settings.engine == "vllm" and Kind.WINDOW in kinds:
        said.append(f"windows keep {settings.in_flight_tokens} tokens in flight beside their own (max_num_batched_tokens)")
    if settings.engine == "vllm" and Kind.STATE in kinds:
        held = {StateMode.NONE: "one block", StateMode.ALIGN: "two blocks", StateMode.ALL: "a block for each of tokens"}
        why = "prefix caching is on" if settings.state_mode is not StateMode.NONE else "prefix caching is off"
        said.append(f"{why}: a state holds {held[settings.state_mode]} (mamba_cache_mode {settings.state_mode})")
    if settings.engine == "vllm" and Kind.CHUNK in kinds:
        said.append("chunked layers are allocated as full ones, as vLLM does by default")
    if "indexer" in tags and "mla" in tags and settings.dtype.name == "fp8":
        said.append("latent rows are taken as 576 bytes; where FlashMLA-sparse keeps 656, say --kv-dtype fp8_ds_mla")
    if model.is_encoder_decoder:
        said.append("an encoder-decoder model can be planned, not served: its cross attention is held whatever the length")
    if settings.engine == "tensorrt_llm":
        said.append("TensorRT-LLM can be planned, not served: its pools are cut into equal shares of memory")
    if settings.tp > 1 and any(group.tag in ("mla", "indexer", "csa", "hca") for group in groups):
        said.append(f"latent rows are whole on each of {settings.tp} ranks: tensor parallelism does not make them smaller")
    return said
