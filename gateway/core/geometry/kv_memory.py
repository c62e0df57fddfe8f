"""The seed arithmetic: bytes of a plain KV cache, what memory leaves for it, and how many sessions that is.

kv_bytes = 2 x tokens x layers x kv_heads x head_dim x bytes_per_value: keys and values of every token in every layer.
It is right for models whose layers all keep full keys and values; `model_config.py` knows the others.
"""

from gateway.core.geometry.rounding import is_whole


def kv_bytes(tokens: int, layers: int, kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes that `tokens` take. Raises ValueError for anything that is no whole number above 0; True and 8.0 are none."""
    sizes = {
        "tokens": tokens,
        "layers": layers,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "bytes_per_value": bytes_per_value,
    }
    for name, size in sizes.items():
        if not is_whole(size, at_least=1):
            raise ValueError(f"{name} must be a whole number above 0, not {size!r}")
    return 2 * tokens * layers * kv_heads * head_dim * bytes_per_value


def kv_budget_bytes(*, total_bytes: int, weights_bytes: int, runtime_bytes: int, reserve_bytes: int = 0) -> int:
    """Bytes left for the KV cache, never below 0. Memory of the host is no part of it, and must not be added.

    Raises ValueError for anything that is no whole number from 0 on.
    """
    parts = {
        "total_bytes": total_bytes,
        "weights_bytes": weights_bytes,
        "runtime_bytes": runtime_bytes,
        "reserve_bytes": reserve_bytes,
    }
    for name, size in parts.items():
        if not is_whole(size, at_least=0):
            raise ValueError(f"{name} must be a whole number from 0 on, not {size!r}")
    return max(total_bytes - weights_bytes - runtime_bytes - reserve_bytes, 0)


def sessions_within(available: int, per_session: int) -> int:
    """Sessions of `per_session` bytes or blocks that fit `available`: whole ones, never below 0."""
    if not is_whole(per_session, at_least=1):
        raise ValueError(f"per_session must be a whole number above 0, not {per_session!r}")
    return max(available, 0) // per_session
