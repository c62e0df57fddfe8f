"""Of any model that the readers can build: need(T) is monotone, never below the ideal, and rounds up by a block a group.

The bound on rounding is the one that whole blocks allow: less than one block for each group that grows, beside the constant
of states and of windows, which keep what is in flight.
"""

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.geometry.engine_pools import ENGINE_POOLS, EngineSettings
from gateway.core.geometry.groups import Kind, Storage, bytes_per_token, group_layers, ideal_bytes
from gateway.core.geometry.model_config import read_model
from gateway.core.geometry.pools import NoPool, Pool
from gateway.core.geometry.precision import kv_dtype
from gateway.core.geometry.vllm_pages import StateMode, VllmSettings
from gateway.core.geometry.weighing import Weighing

Config = dict[str, Any]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Plain, windowed, chunked, latent, hybrid and state-only models of small and odd sizes."""
    layers = draw(st.integers(2, 40))
    kv = draw(st.sampled_from([1, 2, 4, 8]))
    base: Config = {
        "num_hidden_layers": layers,
        "num_attention_heads": kv * draw(st.sampled_from([1, 3, 4])),
        "num_key_value_heads": kv,
        "hidden_size": 512,
        "head_dim": draw(st.sampled_from([32, 64, 80, 128, 256])),
        "dtype": "bfloat16",
    }
    window = draw(st.integers(1, 5000))
    match draw(st.sampled_from(["plain", "windows", "chunks", "latent", "hybrid", "states", "two widths"])):
        case "plain":
            return {**base, "model_type": "llama"}
        case "windows":
            words = draw(st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=layers, max_size=layers))
            return {**base, "model_type": "gemma3_text", "sliding_window": window, "layer_types": words}
        case "chunks":
            return {**base, "model_type": "llama4_text", "attention_chunk_size": window}
        case "latent":
            return {**base, "model_type": "deepseek_v32", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
        case "hybrid":
            linear = {f"linear_num_{name}_heads": draw(st.integers(1, 8)) * 2 for name in ("key", "value")}
            widths = {f"linear_{name}_head_dim": draw(st.sampled_from([32, 64, 128])) for name in ("key", "value")}
            return {**base, **linear, **widths, "model_type": "qwen3_next", "full_attention_interval": draw(st.integers(1, 6))}
        case "states":
            return {
                "model_type": "mamba",
                "num_hidden_layers": layers,
                "hidden_size": 64,
                "expand": 2,
                "state_size": 16,
                "conv_kernel": 4,
            }
        case _:
            words = ["sliding_attention", "full_attention"] * layers
            wide = {
                "global_head_dim": draw(st.sampled_from([64, 128, 192, 512])),
                "num_global_key_value_heads": draw(st.integers(1, 4)),
            }
            return {**base, **wide, "model_type": "gemma4_text", "sliding_window": window, "layer_types": words[:layers]}


dtypes = st.sampled_from(["bf16", "fp8"])
context = st.integers(1, 60_000)


def pools(config: Config, engine: str, dtype: str, longest: int, mode: StateMode) -> tuple[Pool, ...]:
    vllm = VllmSettings(max_model_len=longest, state_mode=mode)
    settings = EngineSettings(vllm, max_context=longest)
    return ENGINE_POOLS[engine](read_model(config).layers, Storage(kv_dtype(dtype)), settings)


@given(configs(), dtypes, context, context, st.sampled_from(list(StateMode)))
@settings(max_examples=200, deadline=None)
def test_need_is_monotone_never_below_the_ideal_and_rounds_by_a_block_a_group(
    config: Config, dtype: str, one: int, other: int, mode: StateMode
) -> None:
    few, many = sorted((one, other))
    (pool,) = pools(config, "vllm", dtype, many, mode)
    layers, storage = read_model(config).layers, Storage(kv_dtype(dtype))
    groups = group_layers(layers, storage)
    assert pool.need(few) <= pool.need(many)
    for tokens in (few, many):
        held = pool.need(tokens) * pool.bytes_per_block
        assert held >= ideal_bytes(groups, tokens)
        # Additive: a block for each growing group above what its own tokens fill, and the constant.
        filled = Fraction(0)
        for group in pool.groups:
            if group.need.block_tokens is not None:
                grown = Fraction(tokens, group.need.block_tokens)
                filled += grown if group.need.most_blocks is None else min(grown, Fraction(group.need.most_blocks))
        growing = sum(1 for group in pool.groups if group.need.block_tokens is not None)
        constant = sum(group.need.fixed_blocks for group in pool.groups)
        assert filled + constant <= pool.need(tokens) < filled + constant + growing + (growing == 0)


@given(configs(), st.sampled_from(["sglang", "llama_cpp", "tensorrt_llm", "tgi"]), context, context)
@settings(max_examples=150, deadline=None)
def test_every_other_engine_is_monotone_and_never_below_the_ideal(config: Config, engine: str, one: int, other: int) -> None:
    few, many = sorted((one, other))
    try:
        found = pools(config, engine, "bf16", many, StateMode.ALIGN)
    except NoPool:
        return
    ideal = ideal_bytes(group_layers(read_model(config).layers, Storage(kv_dtype("bf16"))), many)
    held = 0
    for pool in found:
        assert pool.need(few) <= pool.need(many)
        held += pool.need(many) * pool.bytes_per_block
    assert held >= ideal


@given(configs(), dtypes, context, st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_weighing_agrees_with_the_pool_and_its_longest_sequence_fits_exactly(
    config: Config, dtype: str, tokens: int, many: int
) -> None:
    longest = 60_000
    (pool,) = pools(config, "vllm", dtype, longest, StateMode.ALIGN)
    weighing = Weighing(pool.block_tokens, longest, pools=(pool.needs(),))
    blocks = weighing.sequence_blocks(tokens)
    assert blocks == max(1, pool.need(tokens - 1))
    found = weighing.tokens_within(blocks * many, many)
    assert found >= tokens
    assert weighing.sequence_blocks(found) <= blocks
    assert found == longest or weighing.sequence_blocks(found + 1) > blocks


@given(configs(), dtypes)
@settings(max_examples=60, deadline=None)
def test_a_rate_is_what_two_lengths_differ_by(config: Config, dtype: str) -> None:
    groups = group_layers(read_model(config).layers, Storage(kv_dtype(dtype)))
    far = 10**7
    assert ideal_bytes(groups, far + 128) - ideal_bytes(groups, far) == 128 * bytes_per_token(groups, windows_full=True)
    assert all(group.kind is not Kind.CROSS for group in groups)
