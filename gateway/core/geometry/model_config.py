"""From a model's config.json to what it keeps: the door to geometry, and it fails closed.

It promises: a config is understood whole or refused. Every key that hints at a structure (latent rows, windows, states,
sharing, sparse or compressed attention ...) must have been read by the reader of its family; one that was not, of whatever
name, refuses the config with that name. A model_type that is not known is taken for plain attention only where nothing at
all in its config speaks of attention, caches or kinds of layers. Nothing is keyed by a model's name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.core.geometry.cells import GivenCell, State
from gateway.core.geometry.class_defaults import NESTED_TYPES, class_defaults
from gateway.core.geometry.config_reader import ConfigReader, ConfigRefused
from gateway.core.geometry.families import FAMILIES, heads
from gateway.core.geometry.groups import Kind, Layer, LayerCache, Model
from gateway.core.geometry.layer_pattern import all_full

OWN_GROUPS: Final = "kvgate_groups"

# Where a wrapper keeps its text model, in the order in which it is looked for.
_NESTS: Final = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"), ("llm",))

# A key with one of these words speaks of what layers keep. Broad on purpose: a wrong refusal costs a line of config, a
# wrong figure costs preemptions.
_SIGNS: Final = re.compile(
    r"kv_|_kv|latent|lora_rank|compress|mamba|ssm|conv_|_conv|linear_|_linear|kda|delta_net|gdn|window|sliding|swa_|chunk"
    r"|layer_types|layers_type|block_type|hybrid|pattern|attn_layer|attn_type|attention_type|attn_config|full_att|global_"
    r"|local_|block_configs|index_|indexer|sparse_att|sparse_index|blocksparse|cla_|cross_att|cross_layer|state_size|recurren"
    r"|rwkv|retention|wkv|nope_lay|no_rope|multi_query|query_group|head_dim|num_heads|_heads$|heads_per|v_head|qk_|memory_"
    r"|encoder_decoder|every_n_layer|layer_group|per_layer_(att|config)|sink_tokens"
)
# For a type that nobody here knows, any word about attention or caches is one too many.
_WIDE_SIGNS: Final = re.compile(_SIGNS.pattern + r"|attn|attention|cache|state|linear|conv|memor|block|pattern|sparse|layer")

# Keys that have such a word and change nothing that is kept.
_HARMLESS: Final = re.compile(
    r"q_lora_rank|o_lora_rank|activation_.*|chunk_size_feed_forward|attention_(bias|dropout|probs_dropout_prob|multiplier|value_scale)"
    r"|attention_(in|out)_(bias|multiplier)|attn_(dropout|pdrop|bias|logit_softcapping|scale|output_gate|temperature_tuning)"
    r"|attn_(implementation|implementation_internal|res_block_size)|_attn_implementation(_internal|_autoset)?"
    r"|attention_(output_gate|softmax_in_fp32|logit_cap|dropout_prob|scaling|scale)|add_swa_attention_sink_bias"
    r"|add_full_attention_sink_bias|attn_logit_.*|use_cache|layer_norm.*|(rms|input|post)_?layer_?norm.*|layernorm.*|norm_.*"
    r"|num_hidden_layers|first_k_dense_replace|moe_layer_.*|mlp_layer_types|.*mlp_only_layers|decoder_sparse_step"
    r"|interleave_moe_layer_step|moe_layers|num_nextn_predict_layers|mtp_.*|num_mtp_.*|use_mtp|router_.*|mup_.*"
    r"|swa_rope_theta|rope_local_base_freq|local_rope_theta|global_rope_theta|rope_.*|.*_rope_(theta|scaling|parameters)"
    r"|use_qk_norm|qk_norm.*|qk_layernorm.*|use_qkv_bias|qkv_bias|qk_l2_norm|mla_use_.*|latent_moe_.*|moe_latent_size"
    r"|no_rope_.*|linear_(a_log|dt|allow)_.*|num_hash_layers|(num_)?key_value_heads|max_window_layers|use_bidirectional_attention|per_layer_.*input.*"
    r"|hidden_size_per_layer_input|vocab_size_per_layer_input|cross_attention_hidden_size|add_cross_attention"
    r"|compression_config|full_attn_mod|tie_encoder_decoder|encoder_no_repeat_ngram_size|scale_attention_softmax_in_fp32"
    r"|scale_attn_.*|reorder_and_upcast_attn|use_.*attention_layernorm|use_flash_attention|use_flash_attn"
    r"|mamba_(chunk_size|conv_bias|proj_bias|hidden_act|dt_rank|rms_norm|norm_before_gate|use_mlp|num_groups_extra)"
    r"|use_mamba_kernels|use_conv_bias|conv_bias|conv_use_xavier_init|conv_dim_out|chunk_size|ssm_(in|out)_multiplier"
    r"|ssm_multipliers|block_(auto_adjust_ff_dim|ff_dim|dim|ffn_dim_multiplier|mlp_init_scale|multiple_of|norm_eps|out_.*)"
    r"|block_use_.*|use_long_context|num_mem_blocks|use_mem_.*|use_shared_.*|adapter_rank|attention_hidden_size"
    r"|(num_)?experts?_per_.*|.*experts.*|pruned_heads|num_(query|attention)_heads|output_attentions|router_layer.*"
    r"|layer_scale.*|layerdrop|decoder_layerdrop|encoder_layerdrop|decoder_ffn_dim|encoder_ffn_dim|.*dropout.*|.*_act"
    r"|median_filter_width|embedding_multiplier|residual_.*|logits_.*|lm_head_.*|key_multiplier|scale_depth|dim_model_base"
    r"|hc_.*|sinkhorn_.*|partial_rotary_factor|layers_per_stage|laurel_rank|altup_.*|activation_sparsity_pattern"
    r"|attention_other_setting_doc|sep_token_id|num_hidden_layers_override|linear_attn_norm_.*|.*_norm_eps|alibi.*"
    r"|(full_attn|linear_attn|mlp)_(alpha|beta)_factor|postnorm"
)


def read_model(config: Mapping[str, Any], *, quant_config: Mapping[str, Any] | None = None) -> Model:
    """What the model of this config.json keeps.

    quant_config: a hf_quant_config.json from beside it. Raises ConfigRefused (a ValueError) with a sentence that names the
    key and says what to set instead.
    """
    if not isinstance(config, Mapping):
        raise ConfigRefused("config", "is no JSON object", "give a model's config.json")
    if config.get(OWN_GROUPS) is not None:
        return _own_groups(config)
    outer = ConfigReader(config)
    text, path = _text_part(config)
    outer_type = outer.text("model_type") or ""
    # A nested part may leave its type to the wrapper: the one that belongs inside, else the wrapper's own.
    model_type = text.get("model_type") or NESTED_TYPES.get(outer_type, outer_type)
    if not isinstance(model_type, str) or not model_type:
        raise ConfigRefused(f"{path}model_type", "is not in the config, so its class is not known", "add it")
    if path:
        model_type = NESTED_TYPES.get(model_type, model_type)
    reader = ConfigReader(text, path=path, defaults=class_defaults(model_type, nested=bool(path)))
    family = FAMILIES.get(model_type)
    said: list[str] = []
    if family is None:
        family = heads(all_full)
        said.append(f"model_type {model_type!r} is not known: plain attention is taken, for nothing in its config says other")
    layers = family(reader, model_type)
    _refuse_signs(reader, model_type, known=model_type in FAMILIES)
    if not any(layers):
        raise ConfigRefused(
            f"{path}model_type", f"no layer of {model_type!r} keeps anything", "give the config of a text model"
        )
    said += [f"{reader.name(key)} is not in the config: {value} by its class" for key, value in reader.defaulted.items()]
    model_bytes, dtype_said = _own_dtype(config, text)
    drafts = reader.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", at_least=0) or 0
    if drafts:
        said.append(f"its {drafts} draft layer(s) are not counted: an engine that drafts with them needs --draft-layers")
    return Model(
        model_type=model_type,
        layers=layers,
        model_bytes=model_bytes,
        kv_auto=_asked_dtype(config, text, quant_config),
        context=reader.whole(
            "max_position_embeddings",
            "max_sequence_length",
            "seq_length",
            "n_positions",
            "max_seq_len",
            "max_target_positions",
            "model_max_length",
        ),
        draft_layers=drafts,
        is_encoder_decoder=any(cache.kind is Kind.CROSS for layer in layers for cache in layer),
        assumptions=(*said, *dtype_said),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the text model: itself, or what a wrapper has inside."""
    return _text_part(config)[0]


def _text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    for nest in _NESTS:
        inner: Any = config
        for key in nest:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping) and inner:
            return inner, "".join(f"{key}." for key in nest)
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigRefused(".".join(nest), "is no object", "correct the config")
    return config, ""


def _refuse_signs(reader: ConfigReader, model_type: str, *, known: bool) -> None:
    signs = _SIGNS if known else _WIDE_SIGNS
    for key, value in reader.left_over():
        if signs.search(key) is None or _HARMLESS.fullmatch(key) is not None:
            continue
        if not known and key in ("num_attention_heads", "head_dim", "num_key_value_heads"):
            continue
        told = f"{value!r}" if len(repr(value)) < 40 else "what it holds"
        whose = f"of the type {model_type!r}" if known else f"of {model_type!r}, a type that is not known here,"
        raise reader.refuse(key, f"{told} {whose} is a structure that this version does not understand")


def _own_dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Bytes of one number of the model's own dtype, as an engine runs it, and what is assumed there."""
    word = next((found for part in (text, config) for key in ("dtype", "torch_dtype") if (found := part.get(key))), None)
    if word is None:
        return 2, ("its dtype is not in the config: 2 bytes are taken",)
    if not isinstance(word, str):
        raise ConfigRefused("torch_dtype", f"{word!r} is no text", "correct the config")
    match word.removeprefix("torch."):
        case "bfloat16" | "float16" | "half" | "bf16" | "fp16":
            return 2, ()
        case "float32" | "float":
            return 2, ("its dtype is float32, which engines run in 2 bytes by default",)
        case other:
            raise ConfigRefused("torch_dtype", f"{other!r} is no dtype known here", "correct the config")


def _asked_dtype(config: Mapping[str, Any], text: Mapping[str, Any], quant_config: Mapping[str, Any] | None) -> str | None:
    """The KV dtype that the checkpoint asks for where the engine is left at `auto`; None: the model's own."""
    for part in (config, text):
        for key in ("quantization_config", "compression_config"):
            asked = _scheme(part.get(key))
            if asked is not None:
                return asked
    return None if quant_config is None else _scheme(quant_config.get("quantization"))


def _scheme(quantization: object) -> str | None:
    if not isinstance(quantization, Mapping):
        return None
    scheme, algorithm = quantization.get("kv_cache_scheme"), quantization.get("kv_cache_quant_algo")
    if isinstance(scheme, Mapping):
        # Engines take only this one from a checkpoint; what else stands there they refuse or ignore.
        if scheme.get("num_bits") == 8 and scheme.get("type") == "float":
            return "fp8"
        return "unknown"
    if isinstance(algorithm, str) and algorithm:
        return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(algorithm.lower(), "unknown")
    return None


def _own_groups(config: Mapping[str, Any]) -> Model:
    """Groups that the operator describes: [{"kind", "layers", "bytes_per_token_per_layer", ...}], bytes on one rank."""
    entries = ConfigReader(config).items(OWN_GROUPS) or ()
    layers: list[Layer] = []
    for place, entry in enumerate(entries):
        reader = ConfigReader(entry if isinstance(entry, Mapping) else {}, path=f"{OWN_GROUPS}[{place}].")
        kind = reader.text("kind")
        if kind not in tuple(Kind):
            raise reader.refuse("kind", f"{kind!r} is none of {', '.join(Kind)}", "correct it")
        tag = reader.text("tag") or ""
        if kind == Kind.STATE:
            size = reader.size("state_bytes_per_layer")
            cache = LayerCache(Kind.STATE, state=State(0, 0, 0, given_bytes=size), tag=tag)
        else:
            window = None if kind == Kind.FULL else reader.size("window")
            cell = GivenCell(reader.size("bytes_per_token_per_layer"))
            cache = LayerCache(Kind(kind), cell, window=window, tokens_per_cell=reader.whole("tokens_per_cell") or 1, tag=tag)
        layers += [(cache,)] * reader.size("layers")
        reader.understand("bytes_per_token_per_layer")
        left = next(reader.left_over(), None)
        if left is not None:
            raise reader.refuse(left[0], "is no part of a group", "leave it away")
    return Model(
        model_type="given",
        layers=tuple(layers),
        model_bytes=2,
        context=ConfigReader(config).whole("max_position_embeddings"),
        assumptions=("its groups are given, in bytes on one rank: KV dtype and ranks change nothing",),
    )


def plain_model(*, layers: int, kv_heads: int, head_dim: int, bytes_per_value: int = 2) -> Model:
    """The model of the bare dimensions: full keys and values of so many heads in every layer."""
    model = read_model(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "num_attention_heads": kv_heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "dtype": "bfloat16",
        }
    )
    return replace(model, model_type="bare dimensions", model_bytes=bytes_per_value)
