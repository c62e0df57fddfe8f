"""Families: which model_type keeps what. A table of readers by the type's name; never by a model's name.

A reader takes the text part of a config and gives the layers, built from the parts in attention_cells, state_layers and
layer_pattern. A type that is not in the table may still be plain attention: `model_config.py` decides, and is strict.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gateway.core.geometry.attention_cells import (
    attention_layer,
    compressed_layers,
    full_cell,
    head_dim,
    indexed_head_layers,
    kv_heads,
    latent_cell,
    query_heads,
    sparse_latent_layers,
)
from gateway.core.geometry.cells import HeadCell, State
from gateway.core.geometry.config_reader import ConfigReader
from gateway.core.geometry.groups import Kind, Layer, LayerCache
from gateway.core.geometry.layer_pattern import (
    LayerWord,
    WordsReader,
    all_full,
    bamba_words,
    full_by_list,
    jamba_words,
    kimi_words,
    layers_of,
    lfm2_words,
    llama4_words,
    mimo_v2_words,
    nemotron_h_words,
    states_every,
    typed_words,
    windows_every,
    windows_from_layer,
    windows_if_set,
    windows_if_used,
)
from gateway.core.geometry.state_layers import (
    bamba_state,
    delta_net_state,
    jamba_state,
    kimi_state,
    lightning_state,
    mamba2_state,
    mamba_state,
    nemotron_h_state,
    short_conv_state,
    zamba2_state,
)

LayersReader = Callable[[ConfigReader, str], tuple[Layer, ...]]


def heads(words: WordsReader) -> LayersReader:
    """One head count and width for every layer that attends."""

    def read(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
        kinds, cell = words(reader), full_cell(reader, model_type)
        if any(kind in (LayerWord.STATE, LayerWord.BOTH) for kind in kinds):
            raise reader.refuse("layer_types", f"has recurrent layers, which are not known of the type {model_type!r}")
        return tuple(attention_layer(reader, kind, cell) for kind in kinds)

    return read


def hybrid(words: WordsReader, state: Callable[[ConfigReader], State], *, width_keys: tuple[str, ...] = ()) -> LayersReader:
    """Attention in some layers and a recurrent state in others, or both in one. width_keys: where a head's width stands."""

    def read(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
        kinds = words(reader)
        kept = LayerCache(Kind.STATE, state=state(reader))
        cell = None
        reader.understand("num_attention_heads", "num_key_value_heads", "head_dim", *width_keys)
        if any(kind not in (LayerWord.STATE, LayerWord.NONE) for kind in kinds):
            width = head_dim(reader, *width_keys)
            cell = HeadCell(kv_heads(reader, model_type), width, width)
        built: list[Layer] = []
        for kind in kinds:
            attention = attention_layer(reader, kind, cell) if cell is not None else ()
            built.append((kept, *attention) if kind in (LayerWord.STATE, LayerWord.BOTH) else attention)
        return tuple(built)

    return read


def _states_only(state: Callable[[ConfigReader], State]) -> LayersReader:
    def read(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
        return ((LayerCache(Kind.STATE, state=state(reader)),),) * layers_of(reader)

    return read


def _latent(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """MLA; the small DeepSeek V2 wrappers switch it off and then keep plain heads."""
    if not reader.flag("use_mla", default=True) and not reader.has("kv_lora_rank"):
        reader.understand("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        width = head_dim(reader)
        return ((LayerCache(Kind.FULL, HeadCell(kv_heads(reader, model_type), width, width)),),) * layers_of(reader)
    cell = latent_cell(reader)
    return ((LayerCache(Kind.FULL, cell, tag="mla"),),) * layers_of(reader)


def _latent_twice(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """LongCat-Flash: two MLA layers in each decoder layer."""
    cell = latent_cell(reader)
    reader.understand("num_hidden_layers")
    return ((LayerCache(Kind.FULL, cell, tag="mla"), LayerCache(Kind.FULL, cell, tag="mla")),) * reader.size("num_layers")


def _sparse_latent(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    return sparse_latent_layers(reader, layers=layers_of(reader))


def _kimi(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Kimi Linear: MLA and delta attention."""
    kinds, cell = kimi_words(reader), latent_cell(reader)
    kept = LayerCache(Kind.STATE, state=kimi_state(reader)) if LayerWord.STATE in kinds else None
    return tuple(
        (kept,) if kept is not None and kind is LayerWord.STATE else attention_layer(reader, kind, cell) for kind in kinds
    )


def _compressed(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    return compressed_layers(reader)


def _shared_tail(words: WordsReader, *, wide_full: bool) -> LayersReader:
    """Gemma 3n and 4: the last num_kv_shared_layers use the caches of earlier ones. wide_full: full layers have their own
    heads and width."""

    def read(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
        kinds, local = words(reader), full_cell(reader, model_type)
        full = local
        if wide_full:
            width = reader.whole("global_head_dim") or local.k_dim
            full = HeadCell(reader.whole("num_global_key_value_heads") or local.heads, width, width)
        reader.understand("attention_k_eq_v")  # keys and values are cached both, equal or not
        wide = _wide_layers(reader) if wide_full else {}
        shared = reader.whole("num_kv_shared_layers", at_least=0) or 0
        if shared >= len(kinds):
            raise reader.refuse("num_kv_shared_layers", f"{shared} of {len(kinds)} layers leaves none", "correct the config")
        own = len(kinds) - shared
        layers = [attention_layer(reader, kind, full, local) for kind in kinds[:own]]
        for place, width in wide.items():
            if place < own:
                layers[place] = attention_layer(reader, kinds[place], replace(full, k_dim=width, v_dim=width))
        return (*layers, *(((),) * shared))

    return read


def _wide_layers(reader: ConfigReader) -> dict[int, int]:
    """Layer -> width of its heads, where a newer file says so for each layer by itself."""
    section = reader.section("per_layer_config")
    if section is None:
        return {}
    widths: dict[int, int] = {}
    for place in section.names():
        inner = section.section(place)
        if not place.isdigit() or inner is None:
            raise section.refuse(place, "is no layer's number with an object", "correct the config")
        widths[int(place)] = inner.size("head_dim")
        left = next(inner.left_over(), None)
        if left is not None:
            raise inner.refuse(left[0], "is a setting of one layer that is not known here")
    return widths


def _mimo_v2(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Windowed layers have heads and widths of their own; keys and values differ in width."""
    kinds, full = mimo_v2_words(reader), full_cell(reader, model_type)
    reader.understand("sliding_window_size", "swa_num_attention_heads", "swa_rope_theta")
    width = reader.whole("swa_head_dim") or full.k_dim
    local = HeadCell(reader.whole("swa_num_key_value_heads") or full.heads, width, reader.whole("swa_v_head_dim") or full.v_dim)
    return tuple(attention_layer(reader, kind, full, local) for kind in kinds)


def _step(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Step 3.5: windowed layers may have a setting of their own; layer_types may reach into the draft head."""
    layers, full = layers_of(reader), full_cell(reader, model_type)
    words = reader.items("layer_types")
    if words is None or len(words) < layers or set(words) - {"full_attention", "sliding_attention"}:
        raise reader.refuse("layer_types", f"must name {layers} layers as full or sliding attention", "correct the config")
    reader.understand("num_sliding_attention_heads")
    other, local = reader.section("attention_other_setting"), full
    if other is not None:
        other.understand("num_attention_heads", "attention_type", "true_head_dim")
        width = other.whole("head_dim") or full.k_dim
        local = HeadCell(other.whole("num_attention_groups", "num_key_value_heads") or full.heads, width, width)
    kinds = tuple(LayerWord.WINDOW if word == "sliding_attention" else LayerWord.FULL for word in words[:layers])
    return tuple(attention_layer(reader, kind, full, local) for kind in kinds)


def _laguna(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Query heads differ from layer to layer, KV heads do not."""
    reader.understand("num_attention_heads_per_layer")
    return heads(typed_words)(reader, model_type)


def _nas(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Nemotron-NAS: each block says how many query heads share a KV head, or that it does not attend."""
    layers, query, width = layers_of(reader), query_heads(reader), head_dim(reader)
    reader.understand("num_key_value_heads")
    if reader.items("block_configs", length=layers) is None:
        raise reader.refuse("block_configs", "is not in the config", "add it")
    built: list[Layer] = []
    for place, block in enumerate(reader.items("block_configs") or ()):
        entry = ConfigReader(block if isinstance(block, Mapping) else {}, path=reader.name(f"block_configs[{place}]."))
        attention = entry.section("attention")
        if attention is None:
            raise entry.refuse("attention", "is not there", "correct the config")
        for key in ("window_length", "num_sink_tokens", "sparsify", "unshifted_sink"):
            if attention.get(key):
                raise attention.refuse(key, "is a kind of attention that is not known here")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            built.append(())
            continue
        sharing = attention.size("n_heads_in_group")
        if query % sharing:
            raise attention.refuse("n_heads_in_group", f"{sharing} does not divide {query} heads", "correct the config")
        built.append((LayerCache(Kind.FULL, HeadCell(query // sharing, width, width)),))
    return tuple(built)


def _openelm(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """OpenELM: a KV head count for each layer."""
    layers, width = reader.size("num_transformer_layers", "num_hidden_layers"), reader.size("head_dim")
    counts = reader.wholes("num_kv_heads", length=layers, at_least=1)
    if counts is None:
        raise reader.refuse("num_kv_heads", "must list the KV heads of each layer", "correct the config")
    reader.understand("num_query_heads", "num_gqa_groups", "qkv_multipliers")
    return tuple((LayerCache(Kind.FULL, HeadCell(count, width, width)),) for count in counts)


def _multi_query(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Falcon, GPT-BigCode: one KV head where multi_query says so, unless the newer architecture counts them."""
    layers, width, query = layers_of(reader), head_dim(reader), query_heads(reader)
    if reader.flag("new_decoder_architecture"):
        reader.understand("multi_query")
        count = reader.whole("n_head_kv", "num_kv_heads") or query
    else:
        reader.understand("num_kv_heads", "n_head_kv")  # the class fills it with the query heads
        count = 1 if reader.flag("multi_query") else query
    return ((LayerCache(Kind.FULL, HeadCell(count, width, width)),),) * layers


def _chatglm(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    layers, query = layers_of(reader), query_heads(reader)
    width = head_dim(reader, "kv_channels")
    count = reader.size("multi_query_group_num") if reader.flag("multi_query_attention") else query
    reader.understand("multi_query_group_num")
    return ((LayerCache(Kind.FULL, HeadCell(count, width, width)),),) * layers


def _qwen1(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    width = head_dim(reader, "kv_channels", "head_dim")
    return ((LayerCache(Kind.FULL, HeadCell(query_heads(reader), width, width)),),) * layers_of(reader)


def _attn_config(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """DBRX, MPT: the KV heads stand in attn_config."""
    layers, width, query = layers_of(reader), head_dim(reader), query_heads(reader)
    inner, count = reader.section("attn_config"), query
    if inner is not None:
        kind = inner.text("attn_type")
        count = 1 if kind == "multiquery_attention" else inner.whole("kv_n_heads") or query
    return ((LayerCache(Kind.FULL, HeadCell(count, width, width)),),) * layers


def _minicpm3(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """MLA by name, but engines keep whole heads of nope + rope, values padded to the same."""
    width = reader.size("qk_nope_head_dim") + reader.size("qk_rope_head_dim")
    reader.understand("kv_lora_rank", "q_lora_rank", "v_head_dim", "qk_head_dim", "num_key_value_heads", "head_dim")
    return ((LayerCache(Kind.FULL, HeadCell(query_heads(reader), width, width)),),) * layers_of(reader)


def _cross_layer(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Hunyuan: with use_cla only the first of every cla_share_factor layers keeps keys and values."""
    layers, own = layers_of(reader), LayerCache(Kind.FULL, full_cell(reader, model_type))
    factor = reader.size("cla_share_factor") if reader.flag("use_cla") else 1
    reader.understand("cla_share_factor", "attention_head_dim")
    return tuple((own,) if place % factor == 0 else () for place in range(layers))


def _encoder_decoder(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """Whisper: each decoder layer keeps its own tokens and all positions of the encoder."""
    layers = reader.size("decoder_layers")
    count, hidden = reader.size("decoder_attention_heads"), reader.size("d_model")
    cell = HeadCell(count, hidden // count, hidden // count)
    cross = LayerCache(Kind.CROSS, cell, window=reader.size("max_source_positions"), tag="cross")
    reader.understand("is_encoder_decoder", "encoder_attention_heads", "encoder_layers", "num_hidden_layers")
    return ((LayerCache(Kind.FULL, cell), cross),) * layers


def _lightning_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    layers = layers_of(reader)
    marks = reader.wholes("attn_type_list", length=layers)
    if marks is None:
        return typed_words(reader)
    if set(marks) - {0, 1}:
        raise reader.refuse("attn_type_list", "must be made of 0 (linear) and 1 (full)", "correct the config")
    return tuple(LayerWord.FULL if mark else LayerWord.STATE for mark in marks)


def _falcon_h1_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    return (LayerWord.BOTH,) * layers_of(reader)


def _indexed_heads(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    return indexed_head_layers(reader, model_type)


def _types(reader: LayersReader, *names: str) -> dict[str, LayersReader]:
    return dict.fromkeys(names, reader)


_PLAIN: Final = (
    "apertus", "aquila", "arcee", "arctic", "baichuan", "bitnet", "bloom", "codegen", "cohere", "dbrx_text", "deepseek",
    "ernie4_5", "ernie4_5_moe", "ernie4_5_moe_vl", "ernie4_5_vl_moe_text", "exaone", "flex_olmo", "gemma", "glm", "glm4",
    "glm4_moe", "glm4v_text", "glm4v_moe_text", "glm_ocr_text", "gpt2", "gpt_neox", "gptj", "granite", "granitemoe",
    "granitemoeshared", "grok-1", "helium", "internlm", "internlm2", "internlm3", "jais", "llama", "minicpm", "nemotron",
    "olmo", "olmo2", "olmoe", "opt", "orion", "persimmon", "phi", "phimoe", "qwen2_5_omni_text", "qwen2_vl_text",
    "qwen2_5_vl_text", "qwen3_omni_moe_text", "qwen3_vl_text", "qwen3_vl_moe_text", "seed_oss", "solar_open", "stablelm",
    "step3_text", "telechat", "voxtral_text", "xverse",
)  # fmt: skip

FAMILIES: Final[Mapping[str, LayersReader]] = {
    **_types(heads(all_full), *_PLAIN),
    **_types(
        heads(windows_if_set), "mistral", "mixtral", "ministral", "ministral3", "phi3", "starcoder2", "voxtral_realtime_text"
    ),
    **_types(heads(windows_if_used), "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "qwen2_vl", "qwen2_5_vl", "mimo"),
    **_types(heads(windows_every(2)), "gemma2", "gpt_oss"),
    **_types(heads(windows_every(4)), "cohere2", "cohere2_moe", "olmo3", "exaone4", "exaone_moe", "afmoe"),
    **_types(heads(windows_every(6)), "gemma3_text"),
    **_types(heads(windows_from_layer), "dots1"),
    **_types(heads(full_by_list), "minimax_m2"),
    **_types(_laguna, "laguna"),
    **_types(heads(llama4_words), "llama4_text"),
    **_types(_shared_tail(windows_every(5), wide_full=False), "gemma3n_text"),
    **_types(_shared_tail(windows_every(6), wide_full=True), "gemma4_text", "gemma4_unified_text"),
    **_types(_mimo_v2, "mimo_v2_flash", "mimo_v2"),
    **_types(_step, "step3p5", "step3p7"),
    **_types(_latent, "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe", "axk1"),
    **_types(_latent_twice, "longcat_flash"),
    **_types(_sparse_latent, "deepseek_v32", "glm_moe_dsa"),
    **_types(_compressed, "deepseek_v4"),
    **_types(_kimi, "kimi_linear"),
    **_types(_indexed_heads, "minimax_m3"),
    **_types(hybrid(states_every(4), delta_net_state), "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"),
    **_types(hybrid(nemotron_h_words, nemotron_h_state, width_keys=("head_dim", "attention_head_dim")), "nemotron_h"),
    **_types(hybrid(jamba_words, jamba_state), "jamba"),
    **_types(hybrid(bamba_words, bamba_state), "bamba"),
    **_types(hybrid(typed_words, bamba_state), "granitemoehybrid"),
    **_types(hybrid(_falcon_h1_words, bamba_state), "falcon_h1"),
    **_types(hybrid(typed_words, zamba2_state, width_keys=("attention_head_dim",)), "zamba2"),
    **_types(hybrid(lfm2_words, short_conv_state), "lfm2", "lfm2_moe"),
    **_types(hybrid(_lightning_words, lightning_state), "minimax", "minimax_text_01"),
    **_types(_states_only(mamba_state), "mamba", "falcon_mamba"),
    **_types(_states_only(mamba2_state), "mamba2"),
    **_types(_nas, "nemotron-nas", "decilm"),
    **_types(_openelm, "openelm"),
    **_types(_multi_query, "falcon", "gpt_bigcode", "RefinedWeb", "RefinedWebModel"),
    **_types(_chatglm, "chatglm"),
    **_types(_qwen1, "qwen"),
    **_types(_attn_config, "dbrx", "mpt"),
    **_types(_minicpm3, "minicpm3"),
    **_types(_cross_layer, "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan"),
    **_types(_encoder_decoder, "whisper"),
}
