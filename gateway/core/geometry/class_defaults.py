"""What a model's class puts in where its released config is silent: a table by model_type, with sources.

Two kinds. *Structure* (head widths, windows, patterns) holds wherever the key is missing: files of these types are released
without it. *Sizes* (layers, heads) hold only inside a nested text config, where releases leave them out; at the top of a
file a missing size is a broken file and is refused.

Sources: the configuration classes of transformers 5.19.0 (`configuration_<type>.py`), read value by value; where vLLM
0.32 reads a key with a default of its own, that one is named.
"""

from collections.abc import Mapping
from typing import Any, Final

STRUCTURE: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3": {"head_dim": 128},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
    "qwen3_5_text": {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
    "qwen3_5_moe_text": {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
    "qwen3_vl_text": {"head_dim": 128},
    "qwen3_vl_moe_text": {"head_dim": 128},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {"head_dim": 256, "sliding_window": 4096},
    "gemma3n_text": {"head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15},
    "gemma4_text": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
    "gemma4_unified_text": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 1024},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "cohere2": {"sliding_window": 4096},
    "cohere2_moe": {"sliding_window": 4096},
    "olmo3": {"sliding_window": 4096},
    "exaone4": {"sliding_window": 4096},
    "exaone_moe": {"sliding_window": 4096},
    "afmoe": {"head_dim": 128, "sliding_window": 1024},
    "llama4_text": {"head_dim": 128, "attention_chunk_size": 8192},
    "deepseek_v2": {"qk_rope_head_dim": 64},
    "deepseek_v3": {"qk_rope_head_dim": 64},
    "deepseek_v32": {"qk_rope_head_dim": 64, "index_head_dim": 128},
    "glm_moe_dsa": {"qk_rope_head_dim": 64, "index_head_dim": 128},
    "deepseek_v4": {"qk_rope_head_dim": 64, "index_head_dim": 128, "sliding_window": 128},
    "glm": {"head_dim": 128},
    "glm4": {"head_dim": 128},
    "nemotron_h": {"mamba_ssm_cache_dtype": "float32"},  # vLLM: DEFAULT_MAMBA_SSM_CACHE_DTYPE
    "seed_oss": {"head_dim": 128},
    "ernie4_5": {"head_dim": 128},
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2},
    "lfm2": {"conv_L_cache": 3},
    "lfm2_moe": {"conv_L_cache": 3},
    "granitemoehybrid": {"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1},
    "bamba": {"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1},
    "falcon_h1": {"mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_n_groups": 1},
    "falcon": {"multi_query": True},
    "gpt_bigcode": {"multi_query": True},
    "whisper": {"max_source_positions": 1500},
}

# hidden size, layers, heads, KV heads.
_SIZES: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "llama": (4096, 32, 32, 32),
    "mistral": (4096, 32, 32, 8),
    "mixtral": (4096, 32, 32, 8),
    "qwen2": (4096, 32, 32, 32),
    "qwen2_vl_text": (8192, 80, 64, 8),
    "qwen2_5_vl_text": (8192, 80, 64, 8),
    "qwen2_5_omni_text": (3584, 28, 28, 4),
    "qwen3": (4096, 32, 32, 32),
    "qwen3_vl_text": (4096, 32, 32, 32),
    "gemma2": (2304, 26, 8, 4),
    "gemma3_text": (2304, 26, 8, 4),
    "gemma3n_text": (2048, 35, 8, 2),
    "gemma4_text": (2304, 30, 8, 4),
    "cohere2": (8192, 40, 64, 64),
    "llama4_text": (5120, 48, 40, 8),
    "phi3": (3072, 32, 32, 32),
    "glm4v_text": (4096, 40, 32, 2),
    "mllama_text_model": (4096, 40, 32, 8),
}

# Without num_key_value_heads these keep as many KV heads as heads: their classes say so, or know no other number.
HEADS_ARE_KV_HEADS: Final = frozenset(
    (
        "apertus", "aquila", "arcee", "baichuan", "bloom", "codegen", "cohere", "cohere2", "cohere2_moe", "deepseek", "exaone",
        "exaone4", "falcon", "gemma", "gpt2", "gpt_neo", "gpt_neox", "gptj", "granite", "granitemoe", "internlm", "internlm2",
        "llama", "minicpm", "minicpm3", "mpt", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "orion", "persimmon",
        "phi", "phi3", "qwen", "qwen2", "qwen2_moe", "qwen3", "stablelm", "xverse", "zamba", "zamba2", "whisper",
    )
)  # fmt: skip

# The text model inside a wrapper whose nested config does not name its own type.
NESTED_TYPES: Final[Mapping[str, str]] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "voxtral": "llama",
}


def class_defaults(model_type: str, *, nested: bool) -> dict[str, Any]:
    """What the class of this type puts in. nested: the config stands inside another one."""
    defaults = dict(STRUCTURE.get(model_type, {}))
    if nested and model_type in _SIZES:
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        defaults |= dict(zip(names, _SIZES[model_type], strict=True))
    return defaults
