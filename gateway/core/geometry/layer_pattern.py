"""Which layer is of which kind: the lists, letters, intervals and class defaults by which configs say it.

The outcome is one LayerWord for each layer. A word that is not in the table here is refused: what an unknown kind of layer
keeps cannot be known.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from gateway.core.geometry.config_reader import ConfigReader


class LayerWord(Enum):
    FULL = "full attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    STATE = "recurrent state"
    BOTH = "attention and a recurrent state"
    NONE = "keeps nothing"


_WORDS: Final[Mapping[str, LayerWord]] = {
    "full_attention": LayerWord.FULL,
    "attention": LayerWord.FULL,
    "global_attention": LayerWord.FULL,
    "global": LayerWord.FULL,
    "full": LayerWord.FULL,
    "indexed_attention": LayerWord.FULL,  # MLA with an indexer; whoever reads it knows
    "sliding_attention": LayerWord.WINDOW,
    "sliding_window": LayerWord.WINDOW,
    "sliding": LayerWord.WINDOW,
    "local_attention": LayerWord.WINDOW,
    "local": LayerWord.WINDOW,
    "chunked_attention": LayerWord.CHUNK,
    "linear_attention": LayerWord.STATE,
    "mamba": LayerWord.STATE,
    "mamba2": LayerWord.STATE,
    "conv": LayerWord.STATE,
    "short_conv": LayerWord.STATE,
    "hybrid": LayerWord.BOTH,
    "moe": LayerWord.NONE,
    "mlp": LayerWord.NONE,
}
_LETTERS: Final[Mapping[str, LayerWord]] = {
    "M": LayerWord.STATE,
    "*": LayerWord.FULL,
    "-": LayerWord.NONE,
    "E": LayerWord.NONE,
}


def layers_of(reader: ConfigReader) -> int:
    """The number of layers, under whichever name."""
    return reader.size("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def read_words(reader: ConfigReader, key: str, *, layers: int | None) -> tuple[LayerWord, ...] | None:
    """The layers as a list of words; None where there is no such list."""
    listed = reader.items(key)
    if listed is None:
        return None
    if layers is not None and len(listed) != layers:
        raise reader.refuse(key, f"has {len(listed)} entries for {layers} layers", "correct the config")
    for word in listed:
        if not isinstance(word, str) or word not in _WORDS:
            raise reader.refuse(key, f"{word!r} is a kind of layer that is not known here")
    reader.understand("sliding_window", "attention_chunk_size")  # the list decides; the layers that have one read it
    return tuple(_WORDS[word] for word in listed)


def read_letters(reader: ConfigReader, key: str, *, layers: int | None) -> tuple[LayerWord, ...] | None:
    """The layers as one text of letters (Nemotron-H)."""
    letters = reader.text(key)
    if letters is None:
        return None
    if layers is not None and len(letters) != layers:
        raise reader.refuse(key, f"has {len(letters)} letters for {layers} layers", "correct the config")
    for letter in letters:
        if letter not in _LETTERS:
            raise reader.refuse(key, f"{letter!r} is a kind of layer that is not known here")
    return tuple(_LETTERS[letter] for letter in letters)


def every(layers: int, period: int, special: LayerWord, rest: LayerWord, *, offset: int | None = None) -> tuple[LayerWord, ...]:
    """Every `period`-th layer is special: the last of each period, or the one at `offset`."""
    at = period - 1 if offset is None else offset
    return tuple(special if place % period == at else rest for place in range(layers))


def listed(reader: ConfigReader, key: str, places: tuple[int, ...], layers: int, *, first: int) -> frozenset[int]:
    """Layer numbers, counted from `first`, as places from 0; refused if one is out of range or comes twice."""
    found = frozenset(place - first for place in places)
    if len(found) != len(places) or any(not 0 <= place < layers for place in found):
        raise reader.refuse(key, f"names a layer twice, or one that is not among the {layers}", "correct the config")
    return found


WordsReader = Callable[[ConfigReader], tuple[LayerWord, ...]]


def all_full(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Full attention in every layer, unless the config says otherwise in so many words."""
    layers = layers_of(reader)
    return read_words(reader, "layer_types", layers=layers) or (LayerWord.FULL,) * layers


def full_by_list(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Full attention in every layer; attn_type_list, where it is there, must say 1 for each (MiniMax M2)."""
    words = all_full(reader)
    marks = reader.wholes("attn_type_list", length=len(words)) or ()
    if set(marks) - {1}:
        raise reader.refuse("attn_type_list", "has layers that are not full attention, which are not known of this type")
    return words


def windows_if_set(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """One window for all layers where `sliding_window` is set (Mistral, Phi-3, Mixtral, StarCoder 2)."""
    layers = layers_of(reader)
    words = read_words(reader, "layer_types", layers=layers)
    if words is not None:
        return words
    return (LayerWord.WINDOW if reader.whole("sliding_window") is not None else LayerWord.FULL,) * layers


def windows_if_used(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Windows from layer `max_window_layers` on, where `use_sliding_window` says so (Qwen 2 and 3)."""
    layers = layers_of(reader)
    reader.understand("sliding_window", "max_window_layers")
    words = read_words(reader, "layer_types", layers=layers)
    if not reader.flag("use_sliding_window"):
        if words is not None and LayerWord.WINDOW in words:
            raise reader.refuse("layer_types", "has sliding layers, but use_sliding_window does not say true")
        return words or (LayerWord.FULL,) * layers
    if words is not None:
        return words
    first = reader.whole("max_window_layers", at_least=0)
    if first is None:
        raise reader.refuse("max_window_layers", "is not in the config, but use_sliding_window is true", "add it")
    return tuple(LayerWord.WINDOW if place >= first else LayerWord.FULL for place in range(layers))


def windows_from_layer(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Windows from layer `max_window_layers` on where a window is set, unless layer_types says otherwise (dots.llm1)."""
    layers = layers_of(reader)
    first = reader.whole("max_window_layers", at_least=0)
    is_set = reader.whole("sliding_window") is not None
    words = read_words(reader, "layer_types", layers=layers)
    if words is not None or not is_set:
        return words or (LayerWord.FULL,) * layers
    if first is None:
        raise reader.refuse("max_window_layers", "is not in the config, but sliding_window is set", "add it")
    return tuple(LayerWord.WINDOW if place >= first else LayerWord.FULL for place in range(layers))


def windows_every(period: int) -> WordsReader:
    """Windows but for every `period`-th layer, unless layer_types or a pattern says otherwise."""

    def read(reader: ConfigReader) -> tuple[LayerWord, ...]:
        layers = layers_of(reader)
        words = read_words(reader, "layer_types", layers=layers)
        reader.understand("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
        if words is not None:
            reader.understand("prefix_dense_sliding_window_pattern")
            return words
        pattern = reader.get("sliding_window_pattern")
        if pattern is None:
            pattern = reader.get("_sliding_window_pattern")
        if isinstance(pattern, str):
            # EXAONE 4 spells it as letters, repeated: L for a window, G for all tokens; its last layer is always global.
            if not pattern or set(pattern) - {"L", "G"}:
                raise reader.refuse("sliding_window_pattern", f"{pattern!r} is not made of L and G")
            spelt = [LayerWord.FULL if pattern[place % len(pattern)] == "G" else LayerWord.WINDOW for place in range(layers)]
            return (*spelt[:-1], LayerWord.FULL)
        given = reader.whole("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
        return every(layers, given or period, LayerWord.FULL, LayerWord.WINDOW)

    return read


def states_every(period: int | None) -> WordsReader:
    """States but for every full_attention_interval-th layer (Qwen3-Next, Qwen 3.5)."""

    def read(reader: ConfigReader) -> tuple[LayerWord, ...]:
        layers = layers_of(reader)
        interval = reader.whole("full_attention_interval") or period
        words = read_words(reader, "layer_types", layers=layers)
        if words is not None:
            return words
        if interval is None:
            raise reader.refuse("layer_types", "is not in the config, nor an interval of full attention", "add it")
        return every(layers, interval, LayerWord.FULL, LayerWord.STATE)

    return read


def jamba_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Attention at attn_layer_offset of every attn_layer_period layers."""
    layers = layers_of(reader)
    period, offset = reader.size("attn_layer_period"), reader.whole("attn_layer_offset", at_least=0)
    if offset is None or offset >= period:
        raise reader.refuse("attn_layer_offset", f"must be from 0 to below the period of {period}", "correct the config")
    words = every(layers, period, LayerWord.FULL, LayerWord.STATE, offset=offset)
    given = read_words(reader, "layers_block_type", layers=layers) or read_words(reader, "layer_types", layers=layers)
    if given is not None and given != words:
        raise reader.refuse("attn_layer_period", "contradicts the list of layer types", "correct the config")
    return words


def bamba_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Mamba but for the layers of attn_layer_indices."""
    layers = layers_of(reader)
    places = reader.wholes("attn_layer_indices") or ()
    attention = listed(reader, "attn_layer_indices", places, layers, first=0)
    given = read_words(reader, "layers_block_type", layers=layers) or read_words(reader, "layer_types", layers=layers)
    if given is not None:
        return given
    return tuple(LayerWord.FULL if place in attention else LayerWord.STATE for place in range(layers))


def typed_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """The list must be there: layer_types or layers_block_type."""
    layers = layers_of(reader)
    words = read_words(reader, "layer_types", layers=layers) or read_words(reader, "layers_block_type", layers=layers)
    if words is None:
        raise reader.refuse("layer_types", "is not in the config, and these models mix kinds of layers", "add it")
    return words


def nemotron_h_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """A text of letters, or a list of words; newer files do not count their layers elsewhere."""
    layers = reader.whole("num_hidden_layers")
    words = read_letters(reader, "hybrid_override_pattern", layers=layers)
    words = words or read_words(reader, "layers_block_type", layers=layers)
    words = words or read_words(reader, "layer_types", layers=layers)
    if words is None:
        raise reader.refuse("hybrid_override_pattern", "is not in the config, nor layers_block_type", "add it")
    reader.understand("layers_block_type", "layer_types", "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    return words


def lfm2_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Short convolutions but for the layers of full_attn_idxs."""
    layers = layers_of(reader)
    words = read_words(reader, "layer_types", layers=layers)
    places = reader.wholes("full_attn_idxs")
    if places is None:
        if words is None:
            raise reader.refuse("layer_types", "is not in the config, nor full_attn_idxs", "add it")
        return words
    attention = listed(reader, "full_attn_idxs", places, layers, first=0)
    return words or tuple(LayerWord.FULL if place in attention else LayerWord.STATE for place in range(layers))


def kimi_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """linear_attn_config lists both kinds, counted from 1."""
    layers = layers_of(reader)
    linear = reader.section("linear_attn_config")
    words = read_words(reader, "layer_types", layers=layers)
    if linear is None:
        return words or (LayerWord.FULL,) * layers
    states = listed(linear, "kda_layers", linear.wholes("kda_layers") or (), layers, first=1)
    full = listed(linear, "full_attn_layers", linear.wholes("full_attn_layers") or (), layers, first=1)
    if states & full or len(states) + len(full) != layers:
        raise linear.refuse("kda_layers", f"and full_attn_layers do not name each of the {layers} layers once", "correct them")
    return tuple(LayerWord.STATE if place in states else LayerWord.FULL for place in range(layers))


def llama4_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """Chunked attention but for every 4th layer; no_rope_layers says which (0: global)."""
    layers = layers_of(reader)
    words = read_words(reader, "layer_types", layers=layers)
    marks = reader.wholes("no_rope_layers", length=layers) if reader.get("no_rope_layers") else None
    interval = reader.whole("no_rope_layer_interval") or 4
    chunked = reader.whole("attention_chunk_size") is not None
    if words is not None:
        return words
    local = LayerWord.CHUNK if chunked else LayerWord.FULL
    if marks is not None:
        return tuple(local if mark else LayerWord.FULL for mark in marks)
    return every(layers, interval, LayerWord.FULL, local)


def mimo_v2_words(reader: ConfigReader) -> tuple[LayerWord, ...]:
    """hybrid_layer_pattern: 1 is a window."""
    layers = layers_of(reader)
    reader.understand("attention_chunk_size")  # the class deletes it: no layer is chunked
    marks = reader.wholes("hybrid_layer_pattern", length=layers)
    if marks is None or set(marks) - {0, 1}:
        raise reader.refuse("hybrid_layer_pattern", "must be a list of 0 (all tokens) and 1 (window)", "correct the config")
    return tuple(LayerWord.WINDOW if mark else LayerWord.FULL for mark in marks)
