"""What one attention layer keeps for each token: heads, latent rows, indexer keys, read from a config.

Where a width is missing, the class default has been put in by the reader; hidden size / heads is the rule of the classes
that have none. Query heads are read too although they cost nothing: a config without them is broken, and a naive figure
from the rest of it would look right.
"""

from collections.abc import Mapping
from typing import Final

from gateway.core.geometry.cells import CompressedCell, HeadCell, IndexerCell, KeyCell, LatentCell
from gateway.core.geometry.class_defaults import HEADS_ARE_KV_HEADS
from gateway.core.geometry.config_reader import ConfigReader
from gateway.core.geometry.groups import Kind, Layer, LayerCache
from gateway.core.geometry.layer_pattern import LayerWord, layers_of

_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "num_attention_groups")


def query_heads(reader: ConfigReader) -> int:
    return reader.size(*_HEADS)


def hidden_size(reader: ConfigReader) -> int:
    return reader.size(*_HIDDEN)


def kv_heads(reader: ConfigReader, model_type: str) -> int:
    """KV heads of a layer, all ranks together."""
    heads = query_heads(reader)
    found = reader.whole(*_KV_HEADS)
    if found is None:
        if model_type not in HEADS_ARE_KV_HEADS:
            raise reader.refuse("num_key_value_heads", "is not in the config, and nothing safe can be put in", "add it")
        return heads
    if found > heads or heads % found:
        raise reader.refuse("num_key_value_heads", f"{found} does not divide {heads} attention heads", "correct the config")
    return found


def head_dim(reader: ConfigReader, *keys: str) -> int:
    """Width of a head: under one of these keys, else hidden size / heads."""
    found = reader.whole(*(keys or ("head_dim",)))
    heads, hidden = query_heads(reader), reader.whole(*_HIDDEN)
    if found is not None:
        return found
    if hidden is None:
        raise reader.refuse("head_dim", "is not in the config, nor a hidden size to divide", "add it")
    # Falcon's 4544 / 71 and Kimi's 7168 / 96 are whole or not used; the classes divide downwards.
    return hidden // heads


def full_cell(reader: ConfigReader, model_type: str) -> HeadCell:
    """Keys and values of plain attention."""
    width = head_dim(reader)
    return HeadCell(kv_heads(reader, model_type), width, reader.whole("v_head_dim") or width)


def latent_cell(reader: ConfigReader) -> LatentCell:
    """The row of multi-head latent attention. num_key_value_heads says nothing there."""
    reader.understand("num_key_value_heads", "head_dim", "qk_head_dim", "q_lora_rank", "hidden_size")
    return LatentCell(
        reader.size("kv_lora_rank"),
        reader.size("qk_rope_head_dim"),
        heads=query_heads(reader),
        nope_dim=reader.whole("qk_nope_head_dim", at_least=0) or 0,
        v_dim=reader.whole("v_head_dim", at_least=0) or 0,
    )


def attention_layer(
    reader: ConfigReader, word: LayerWord, full: HeadCell | LatentCell, window: HeadCell | None = None
) -> tuple[LayerCache, ...]:
    """The attention part of a layer of this kind. window: the cell of windowed layers, where it differs."""
    local = window or full
    match word:
        case LayerWord.FULL | LayerWord.BOTH:
            return (LayerCache(Kind.FULL, full, tag="mla" if isinstance(full, LatentCell) else ""),)
        case LayerWord.WINDOW:
            return (LayerCache(Kind.WINDOW, local, window=reader.size("sliding_window", "sliding_window_size")),)
        case LayerWord.CHUNK:
            return (LayerCache(Kind.CHUNK, local, window=reader.size("attention_chunk_size")),)
        case LayerWord.STATE | LayerWord.NONE:
            return ()


def indexer_marks(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers of a sparse MLA model build an indexer of their own; the others share the one before.

    The rule of vLLM's DeepSeek code: from `index_skip_topk_offset` (default 2) on, every `index_topk_freq`-th layer.
    """
    freq = reader.whole("index_topk_freq") or 1
    offset = reader.whole("index_skip_topk_offset", at_least=0)
    offset = 2 if offset is None else offset
    pattern, types = reader.text("index_topk_pattern"), reader.items("indexer_types", length=layers)
    by_rule = tuple(max(place - offset + 1, 0) % freq == 0 for place in range(layers))
    if pattern is not None:
        if len(pattern) != layers:
            raise reader.refuse("index_topk_pattern", f"has {len(pattern)} letters for {layers} layers", "correct the config")
        return tuple(letter != "S" for letter in pattern)
    if types is None:
        return by_rule
    if set(types) - {"full", "shared"}:
        raise reader.refuse("indexer_types", "has words other than full and shared")
    return tuple(word == "full" for word in types)


def sparse_latent_layers(reader: ConfigReader, *, layers: int) -> tuple[Layer, ...]:
    """MLA with an indexer (DeepSeek V3.2, GLM 5)."""
    cell = latent_cell(reader)
    indexer = IndexerCell(reader.size("index_head_dim"))
    reader.understand("index_topk", "index_n_heads", "indexer_rope_interleave", "index_share_for_mtp_iteration", "layer_types")
    return tuple(
        (LayerCache(Kind.FULL, cell, tag="mla"), *((LayerCache(Kind.FULL, indexer, tag="indexer"),) if builds else ()))
        for builds in indexer_marks(reader, layers)
    )


def compressed_layers(reader: ConfigReader) -> tuple[Layer, ...]:
    """DeepSeek V4: a window in every layer, compressed rows by compress_ratios (0: none, 4: with an indexer, 128)."""
    layers, width, rope = layers_of(reader), reader.size("head_dim"), reader.size("qk_rope_head_dim")
    query_heads(reader)
    ratios = reader.wholes("compress_ratios") or _ratios_by_word(reader, layers)
    if ratios is None or len(ratios) < layers:
        raise reader.refuse("compress_ratios", f"must have an entry for each of {layers} layers", "correct the config")
    reader.understand(
        *("num_key_value_heads", "index_topk", "index_n_heads", "q_lora_rank", "o_lora_rank", "o_groups"),
        *("compress_rope_theta", "layer_types", "hidden_size"),
    )
    row, window = CompressedCell(width, rope), reader.size("sliding_window")
    built: list[Layer] = []
    for ratio in ratios[:layers]:  # what follows is the draft head's
        compressed: Layer
        match ratio:
            case 0:
                compressed = ()
            case 4:
                compressed = (
                    LayerCache(Kind.FULL, row, tokens_per_cell=4, tag="csa"),
                    LayerCache(Kind.FULL, IndexerCell(reader.size("index_head_dim")), tokens_per_cell=4, tag="indexer"),
                )
            case 128:
                compressed = (LayerCache(Kind.FULL, row, tokens_per_cell=128, tag="hca"),)
            case _:
                raise reader.refuse("compress_ratios", f"{ratio} is a ratio that is not known here")
        built.append((*compressed, LayerCache(Kind.WINDOW, row, window=window, tag="swa")))
    return tuple(built)


_RATIO_WORDS: Final[Mapping[str, str | None]] = {
    "sliding_attention": None,
    "compressed_sparse_attention": "compressed_sparse_attention",
    "heavily_compressed_attention": "heavily_compressed_attention",
}


def _ratios_by_word(reader: ConfigReader, layers: int) -> tuple[int, ...] | None:
    """The ratios as transformers writes them: a word for each layer, and the rate of each word."""
    words, rates = reader.items("layer_types", length=layers), reader.section("compress_rates")
    if words is None or rates is None:
        return None
    if set(words) - set(_RATIO_WORDS):
        raise reader.refuse("layer_types", "has a kind of layer that is not known here")
    return tuple(0 if (key := _RATIO_WORDS[word]) is None else rates.size(key) for word in words)


def indexed_head_layers(reader: ConfigReader, model_type: str) -> tuple[Layer, ...]:
    """MiniMax M3: plain heads, and on the sparse layers one index key beside them."""
    layers, cell = layers_of(reader), full_cell(reader, model_type)
    sparse = reader.section("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention"):
        return ((LayerCache(Kind.FULL, cell),),) * layers
    marks = sparse.wholes("sparse_attention_freq", length=layers)
    if marks is None or set(marks) - {0, 1}:
        raise sparse.refuse("sparse_attention_freq", "must be a list of 0 and 1, one for each layer", "correct the config")
    key = KeyCell(sparse.size("sparse_index_dim"))
    plain = LayerCache(Kind.FULL, cell)
    return tuple((plain, LayerCache(Kind.FULL, key, tag="indexer")) if mark else (plain,) for mark in marks)
