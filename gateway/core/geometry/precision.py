"""KV dtypes: how many bytes the values of one cached position take. A table, and the few rows that are no multiple of it.

A dtype stores `bytes_per_unit` bytes for every `values_per_unit` values, and some store scales with each head. Sources:
vLLM 0.33 (`kv_cache_interface.py`) for the first part, ggml's block sizes for the quantised ones of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.geometry.rounding import ceil_div

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class KvDtype:
    """One way to store keys and values. head_scale_bytes: kept with each head's key, and again with its value."""

    name: str
    bytes_per_unit: int
    values_per_unit: int = 1
    head_scale_bytes: int = 0

    def row_bytes(self, heads: int, dim: int) -> int:
        """Bytes of one token's keys (or values): `heads` heads of `dim` values."""
        return ceil_div(heads * dim, self.values_per_unit) * self.bytes_per_unit + heads * self.head_scale_bytes


_DTYPES: Final = (
    KvDtype("bf16", 2),
    KvDtype("fp16", 2),
    KvDtype("fp32", 4),
    KvDtype("fp8", 1),
    KvDtype("int8", 1),
    KvDtype("fp8_per_token_head", 1, head_scale_bytes=4),
    KvDtype("int8_per_token_head", 1, head_scale_bytes=4),
    KvDtype("nvfp4", 9, 16),  # 16 values of 4 bits and one fp8 scale
    # Opaque rows of sparse MLA; what is no latent row keeps fp8 beside them.
    KvDtype("fp8_ds_mla", 1),
    KvDtype("nvfp4_ds_mla", 1),
    KvDtype("q8_0", 34, 32),
    KvDtype("q5_1", 24, 32),
    KvDtype("q5_0", 22, 32),
    KvDtype("q4_1", 20, 32),
    KvDtype("q4_0", 18, 32),
    KvDtype("iq4_nl", 18, 32),
)
_ALIASES: Final[Mapping[str, str]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp8_ds": "fp8_ds_mla",
}
KV_DTYPES: Final[Mapping[str, KvDtype]] = {dtype.name: dtype for dtype in _DTYPES}

# Bytes of one number of a recurrent state or a model's own dtype.
ITEM_BYTES: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2, "fp32": 4}


def kv_dtype(text: str) -> KvDtype:
    """The dtype of this name, as engines spell it. Raises ValueError with the names there are."""
    word = text.strip().lower().removeprefix("torch.")
    found = KV_DTYPES.get(_ALIASES.get(word, word))
    if found is None:
        raise ValueError(f"{text!r} is not a KV dtype known here: one of {', '.join(KV_DTYPES)}, or auto")
    return found
