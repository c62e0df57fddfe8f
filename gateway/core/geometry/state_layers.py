"""What recurrent layers keep for a sequence: Mamba 1 and 2, gated delta nets, Kimi's delta attention, short convolutions.

Shapes are those of vLLM 0.32 (`mamba_utils.py`). The convolution keeps kernel - 1 rows in the model's own dtype. The
recurrent part has a dtype of its own where the config or the engine's class says so.
"""

from gateway.core.geometry.attention_cells import head_dim, hidden_size, query_heads
from gateway.core.geometry.cells import State
from gateway.core.geometry.config_reader import ConfigReader
from gateway.core.geometry.precision import ITEM_BYTES, kv_dtype


def _state_dtype(reader: ConfigReader, *keys: str) -> str | None:
    """The dtype of the recurrent part under one of these keys; None: the model's own."""
    for key in keys:
        word = reader.text(key)
        if word is None or word == "auto":
            continue
        try:
            name = kv_dtype(word).name
        except ValueError:
            name = ""
        if name not in ITEM_BYTES:
            raise reader.refuse(key, f"{word!r} is no dtype of a state", "correct the config")
        return name
    return None


def _mamba2(
    *, intermediate: int, groups: int, heads: int, width: int, state_size: int, kernel: int, state_dtype: str | None
) -> State:
    return State(
        conv_dim=intermediate + 2 * groups * state_size,
        conv_rows=kernel - 1,
        recurrent=heads * width * state_size,
        state_dtype=state_dtype,
        conv_groups=groups,
        group_values=2 * state_size,
    )


def nemotron_h_state(reader: ConfigReader) -> State:
    """Mamba 2 as Nemotron-H names it."""
    heads, width = reader.size("mamba_num_heads"), reader.size("mamba_head_dim")
    reader.understand(
        "mamba_hidden_act", "mamba_proj_bias", "use_mamba_kernels", "mamba_chunk_size", "expand", "time_step_rank"
    )
    return _mamba2(
        intermediate=heads * width,
        groups=reader.size("n_groups"),
        heads=heads,
        width=width,
        state_size=reader.size("ssm_state_size"),
        kernel=reader.size("conv_kernel"),
        state_dtype=_state_dtype(reader, "mamba_ssm_cache_dtype"),
    )


def bamba_state(reader: ConfigReader) -> State:
    """Mamba 2 as Bamba, Granite 4 and Falcon-H1 name it. mamba_d_head may be `auto`: what expand and heads leave."""
    given = reader.whole("mamba_d_ssm")
    intermediate = given if given is not None else reader.size("mamba_expand") * hidden_size(reader)
    heads = reader.size("mamba_n_heads")
    width = intermediate // heads if reader.get("mamba_d_head") in ("auto", None) else reader.size("mamba_d_head")
    if width * heads != intermediate:
        raise reader.refuse("mamba_d_head", f"{width} x {heads} heads is not {intermediate}", "correct the config")
    reader.understand("mamba_expand")
    return _mamba2(
        intermediate=intermediate,
        groups=reader.size("mamba_n_groups"),
        heads=heads,
        width=width,
        state_size=reader.size("mamba_d_state"),
        kernel=reader.size("mamba_d_conv"),
        state_dtype=None,
    )


def zamba2_state(reader: ConfigReader) -> State:
    """Mamba 2 as Zamba 2 names it."""
    intermediate = reader.size("mamba_expand") * hidden_size(reader)
    heads = reader.size("n_mamba_heads")
    reader.understand("hybrid_layer_ids", "kv_channels", "num_query_groups")
    return _mamba2(
        intermediate=intermediate,
        groups=reader.size("mamba_ngroups"),
        heads=heads,
        width=reader.whole("mamba_headdim") or intermediate // heads,
        state_size=reader.size("mamba_d_state"),
        kernel=reader.size("mamba_d_conv"),
        state_dtype=None,
    )


def mamba2_state(reader: ConfigReader) -> State:
    """A model of Mamba 2 layers only."""
    heads = reader.size("num_heads")
    return _mamba2(
        intermediate=reader.size("expand") * hidden_size(reader),
        groups=reader.size("n_groups"),
        heads=heads,
        width=reader.size("head_dim"),
        state_size=reader.size("state_size"),
        kernel=reader.size("conv_kernel"),
        state_dtype=None,
    )


def jamba_state(reader: ConfigReader) -> State:
    """Mamba 1 as Jamba names it."""
    inner = reader.size("mamba_expand") * hidden_size(reader)
    return State(inner, reader.size("mamba_d_conv") - 1, inner * reader.size("mamba_d_state"))


def mamba_state(reader: ConfigReader) -> State:
    """A model of Mamba 1 layers only."""
    inner = reader.whole("intermediate_size", "d_inner") or reader.size("expand") * hidden_size(reader)
    reader.understand("expand")
    return State(inner, reader.size("conv_kernel", "d_conv") - 1, inner * reader.size("state_size", "d_state"))


def delta_net_state(reader: ConfigReader) -> State:
    """Gated delta net (Qwen3-Next, Qwen 3.5)."""
    key, value = reader.size("linear_key_head_dim"), reader.size("linear_value_head_dim")
    keys, values = reader.size("linear_num_key_heads"), reader.size("linear_num_value_heads")
    return State(
        conv_dim=2 * keys * key + values * value,
        conv_rows=reader.size("linear_conv_kernel_dim") - 1,
        recurrent=values * key * value,
        state_dtype=_state_dtype(reader, "mamba_ssm_dtype"),
    )


def kimi_state(reader: ConfigReader) -> State:
    """Kimi's delta attention: three convolutions, a recurrent state in float32."""
    linear = reader.section("linear_attn_config")
    if linear is not None:
        heads, width, kernel = linear.size("num_heads"), linear.size("head_dim"), linear.size("short_conv_kernel_size")
    else:
        heads, width = reader.size("linear_num_heads"), reader.size("linear_head_dim")
        kernel = reader.size("linear_conv_kernel_dim")
    return State(3 * heads * width, kernel - 1, heads * width * width, "fp32")


def short_conv_state(reader: ConfigReader) -> State:
    """A short convolution (LFM 2)."""
    return State(reader.whole("conv_dim") or hidden_size(reader), reader.size("conv_L_cache") - 1, 0)


def lightning_state(reader: ConfigReader) -> State:
    """Lightning attention (MiniMax-Text-01): one matrix for each head."""
    return State(0, 0, query_heads(reader) * head_dim(reader) ** 2)
