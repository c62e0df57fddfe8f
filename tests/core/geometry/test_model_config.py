"""Configs in the shapes in which they are released, and configs that must be refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.core.geometry.config_reader import ConfigRefused
from gateway.core.geometry.groups import Storage, group_layers
from gateway.core.geometry.model_config import plain_model, read_model
from gateway.core.geometry.precision import kv_dtype
from gateway.core.geometry.report import groups_report
from gateway.core.geometry.vllm_pages import VllmSettings, vllm_pool

CONFIGS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "cases.json").read_text())["configs"]
Config = dict[str, Any]

LLAMA: Config = CONFIGS["llama-3.1-8b"]
KIMI_K3: Config = {
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "hidden_size": 7168,
        "num_hidden_layers": 93,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93],
            "kda_layers": [layer for layer in range(1, 93) if layer % 4],
            "head_dim": 128,
            "num_heads": 96,
            "short_conv_kernel_size": 4,
        },
    },
}
GLM_52: Config = {**CONFIGS["glm-5"], "head_dim": 192, "index_topk_freq": 4, "index_skip_topk_offset": 3}


def groups(config: Config, *, dtype: str = "bf16", tp: int = 1) -> list[dict[str, Any]]:
    return groups_report(group_layers(read_model(config).layers, Storage(kv_dtype(dtype), tp)))


def mebibytes(config: Config, tokens: int) -> int:
    """What vLLM's whole blocks hold for one sequence, as the published table rounds it."""
    pool = vllm_pool(read_model(config).layers, Storage(kv_dtype("bf16")), VllmSettings(max_model_len=tokens))
    return round(pool.startup_blocks * pool.bytes_per_block / 2**20)


def test_kimi_delta_attention_keeps_a_state_in_32_bits_beside_latent_rows() -> None:
    state, rows = groups(KIMI_K3)
    assert (state["layers"], state["state_bytes_per_layer"]) == (69, 3 * 3 * 96 * 128 * 2 + 96 * 128 * 128 * 4)
    assert rows == {"kind": "full", "layers": 24, "bytes_per_token_per_layer": 1152, "tag": "mla"}
    assert [mebibytes(KIMI_K3, tokens) for tokens in (4096, 32768, 131072)] == [1063, 1822, 4404]


def test_only_some_layers_of_a_sparse_model_build_an_indexer() -> None:
    assert [(group["tag"], group["layers"]) for group in groups(GLM_52)] == [("mla", 78), ("indexer", 21)]
    listed = {**GLM_52, "indexer_types": ["full" if layer in (0, 1, 2) or layer % 4 == 2 else "shared" for layer in range(78)]}
    assert groups(listed) == groups(GLM_52)
    assert [mebibytes(GLM_52, tokens) for tokens in (4096, 32768, 131072)] == [362, 2895, 11578]


def test_whisper_keeps_the_encoders_positions_whatever_the_length() -> None:
    config = {"model_type": "whisper", "d_model": 1280, "decoder_layers": 32, "decoder_attention_heads": 20}
    model = read_model(config)
    assert model.is_encoder_decoder
    full, cross = groups(config)
    assert (full["kind"], cross["kind"], cross["window"]) == ("full", "cross", 1500)
    assert full["bytes_per_token_per_layer"] == cross["bytes_per_token_per_layer"] == 2 * 1280 * 2


def test_a_nested_config_takes_what_its_class_puts_in() -> None:
    gemma = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024},
    }
    assert groups(gemma) == groups(CONFIGS["gemma-3-4b"])
    model = read_model({"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2", "use_sliding_window": False}})
    assert len(model.layers) == 32
    assert any("num_hidden_layers is not in the config: 32 by its class" in said for said in model.assumptions)


def test_a_missing_size_at_the_top_of_a_file_is_no_class_default() -> None:
    with pytest.raises(ConfigRefused, match="num_hidden_layers"):
        read_model({"model_type": "qwen2", "num_attention_heads": 32, "hidden_size": 4096})


@pytest.mark.parametrize("nest", [("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config")])
def test_a_text_model_is_found_inside_its_wrapper(nest: tuple[str, ...]) -> None:
    wrapped: Config = dict(LLAMA)
    for key in reversed(nest):
        wrapped = {key: wrapped}
    assert groups({"model_type": "some_wrapper", **wrapped}) == groups(LLAMA)


def test_a_type_that_nobody_knows_is_plain_only_while_nothing_says_other() -> None:
    plain = {**LLAMA, "model_type": "brand_new", "rope_theta": 1.0, "attention_bias": False, "use_cache": True}
    assert groups(plain) == groups(LLAMA)
    assert any("brand_new" in said for said in read_model(plain).assumptions)
    for sign in ("layer_group_size", "linear_silu", "attention_pattern", "kv_lora_rank", "memory_slots", "ssm_cfg"):
        with pytest.raises(ConfigRefused, match=sign):
            read_model({**plain, sign: 8})


def test_the_checkpoint_may_ask_for_another_kv_dtype() -> None:
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert read_model({**LLAMA, "quantization_config": scheme}).kv_auto == "fp8"
    assert read_model(LLAMA, quant_config={"quantization": {"kv_cache_quant_algo": "NVFP4"}}).kv_auto == "nvfp4"
    assert read_model(LLAMA).kv_auto is None


def test_groups_can_be_given_where_a_model_is_not_understood() -> None:
    given = [
        {"kind": "full", "layers": 16, "bytes_per_token_per_layer": 4096},
        {"kind": "window", "layers": 8, "bytes_per_token_per_layer": 2048, "window": 512},
        {"kind": "state", "layers": 4, "state_bytes_per_layer": 65536},
    ]
    found = groups({"kvgate_groups": given})
    assert sorted(group["layers"] for group in found) == [4, 8, 16]
    with pytest.raises(ConfigRefused, match=r"kvgate_groups\[0\].layers"):
        read_model({"kvgate_groups": [{"kind": "full", "bytes_per_token_per_layer": 4096}]})


def test_bare_dimensions_are_plain_attention() -> None:
    model = plain_model(layers=32, kv_heads=8, head_dim=128)
    assert groups_report(group_layers(model.layers, Storage(kv_dtype("bf16")))) == groups(LLAMA)


def test_per_head_scales_and_four_bits_are_counted() -> None:
    assert groups(LLAMA, dtype="fp8_per_token_head")[0]["bytes_per_token_per_layer"] == 8 * 2 * (128 + 4)
    assert groups(LLAMA, dtype="nvfp4")[0]["bytes_per_token_per_layer"] == 8 * 2 * (64 + 8)
    assert groups(CONFIGS["deepseek-v3"], dtype="nvfp4_ds_mla")[0]["bytes_per_token_per_layer"] == 352


def test_ranks_that_cannot_share_the_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="8 KV heads"):
        groups(LLAMA, tp=3)


def without(key: str) -> Callable[[Config], Config]:
    return lambda config: {name: value for name, value in config.items() if name != key}


def having(**values: Any) -> Callable[[Config], Config]:
    return lambda config: {**config, **values}


def inside(change: Callable[[Config], Config]) -> Callable[[Config], Config]:
    return lambda config: {**config, "text_config": change(config["text_config"])}


MUTATED: list[tuple[str, Callable[[Config], Config], str]] = [
    ("llama-3.1-8b", without("num_attention_heads"), "num_attention_heads"),
    ("llama-3.1-8b", without("num_hidden_layers"), "num_hidden_layers"),
    ("llama-3.1-8b", without("model_type"), "model_type"),
    ("llama-3.1-8b", having(num_key_value_heads=-8), "num_key_value_heads"),
    ("llama-3.1-8b", having(num_key_value_heads="8"), "num_key_value_heads"),
    ("llama-3.1-8b", having(num_key_value_heads=True), "num_key_value_heads"),
    ("llama-3.1-8b", having(num_key_value_heads=7), "num_key_value_heads"),
    ("llama-3.1-8b", having(head_dim=128.0), "head_dim"),
    ("llama-3.1-8b", having(num_hidden_layers=0), "num_hidden_layers"),
    ("llama-3.1-8b", having(kv_lora_rank=512), "kv_lora_rank"),
    ("llama-3.1-8b", having(kv_lora_rank_v2=512), "kv_lora_rank_v2"),
    ("llama-3.1-8b", having(mamba_d_state=16), "mamba_d_state"),
    ("llama-3.1-8b", having(sliding_window=4096), "sliding_window"),
    ("llama-3.1-8b", having(layer_types=["full_attention"] * 31 + ["holographic_attention"]), "layer_types"),
    ("llama-3.1-8b", having(torch_dtype="float3"), "torch_dtype"),
    ("qwen3-32b", having(use_sliding_window="no"), "use_sliding_window"),
    ("qwen3-32b", having(use_sliding_window=True), "max_window_layers"),
    ("deepseek-v3", lambda config: having(kv_lora_rank2=512)(without("kv_lora_rank")(config)), "kv_lora_rank"),
    ("deepseek-v3", having(index_topk=2048), "index_topk"),
    ("deepseek-v4-flash", having(compress_ratios=[8] * 44), "compress_ratios"),
    ("gpt-oss-20b", having(layer_types=["sliding_attention"] * 23), "layer_types"),
    ("gpt-oss-20b", without("num_key_value_heads"), "num_key_value_heads"),
    ("gemma-3-4b", having(sliding_window=-1), "sliding_window"),
    ("gemma-3-4b", having(sliding_window_pattern="LLX"), "sliding_window_pattern"),
    ("gemma-3n-e4b", having(num_kv_shared_layers=35), "num_kv_shared_layers"),
    ("mimo-v2-flash", without("hybrid_layer_pattern"), "hybrid_layer_pattern"),
    ("nemotron-3-nano-30b", having(hybrid_override_pattern="MEMZ" * 13), "hybrid_override_pattern"),
    ("nemotron-3-nano-30b", without("ssm_state_size"), "ssm_state_size"),
    ("jamba-1.5-mini", having(attn_layer_offset=8), "attn_layer_offset"),
    ("lfm2-350m", having(full_attn_idxs=[2, 2, 8]), "full_attn_idxs"),
    ("minimax-m3", having(sparse_attention_config={"use_sparse_attention": True}), "sparse_attention_freq"),
    ("nemotron-super-49b-nas", without("block_configs"), "block_configs"),
    ("qwen3.5-27b", inside(having(mamba_ssm_dtype="int3")), "mamba_ssm_dtype"),
    ("qwen3.5-27b", inside(without("linear_num_value_heads")), "linear_num_value_heads"),
    ("gemma-4-31b", inside(having(per_layer_attention_kind="new")), "per_layer_attention_kind"),
    ("llama-4-scout", inside(having(attention_chunk_size="8k")), "attention_chunk_size"),
]


@pytest.mark.parametrize(("name", "change", "key"), MUTATED, ids=[f"{name}-{key}" for name, _, key in MUTATED])
def test_a_config_that_is_not_understood_is_refused_with_the_key_and_a_cure(
    name: str, change: Callable[[Config], Config], key: str
) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_model(change(CONFIGS[name]))
    assert refused.value.key.rpartition(".")[2] == key
    assert key in str(refused.value)
    assert ";" in str(refused.value)  # what to do instead


@pytest.mark.parametrize("nonsense", [None, [], "config", 5, {"text_config": 5}])
def test_what_is_no_config_at_all_is_refused(nonsense: Any) -> None:
    with pytest.raises(ConfigRefused):
        read_model(nonsense)
