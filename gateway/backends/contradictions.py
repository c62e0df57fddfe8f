"""Contradictions: two budgets of one backend that cannot both be true, with the numbers and the likely cause.

A budget computed from memory is arithmetic and an engine's is a fact, so a tenth of difference is not worth a word. More
than that has a cause, and the causes leave marks: a factor of two is a KV dtype, a layer's share is a draft model.
"""

from collections.abc import Mapping
from typing import Final

from gateway.backends.fitted_geometry import FittedGeometry, GivenMemory

_ENGINE: Final = "engine"
_MEMORY: Final = "memory"
_GIVEN: Final = "KVGATE_KV_BLOCKS"
_WORTH_A_WORD_PERCENT: Final = 10


def contradictions(budgets: Mapping[str, int], memory: GivenMemory | None, geometry: FittedGeometry | None) -> tuple[str, ...]:
    """One sentence for each pair of budgets that are too far apart."""
    computed = budgets.get(_MEMORY)
    if computed is None or memory is None or geometry is None:
        return ()
    said: list[str] = []
    told, given = budgets.get(_ENGINE), budgets.get(_GIVEN)
    if told is not None and _apart(told, computed):
        said.append(
            f"the engine has {told} blocks, but memory ({_gib(memory.available_bytes)} on a card at"
            f" {max(geometry.bytes_per_block)} bytes a block) makes {computed}: {_cause(told, computed, geometry)}"
        )
    if given is not None and told is None and given > computed and _apart(given, computed):
        said.append(
            f"KVGATE_KV_BLOCKS={given}, but memory ({_gib(memory.available_bytes)} on a card) holds {computed} blocks only"
        )
    return tuple(said)


def _apart(one: int, other: int) -> bool:
    return 100 * abs(one - other) > _WORTH_A_WORD_PERCENT * max(one, other)


def _near(one: int, other: int) -> bool:
    return 20 * abs(one - other) <= max(one, other)


def _cause(told: int, computed: int, geometry: FittedGeometry) -> str:
    """What the numbers look like."""
    if _near(told, 2 * computed):
        return "it looks as if it stores keys and values in half the bytes (a checkpoint's 8-bit scheme?): set KVGATE_KV_DTYPE"
    if _near(2 * told, computed):
        return "it looks as if it stores keys and values in twice the bytes: set KVGATE_KV_DTYPE"
    drafts = geometry.plan.model.draft_layers
    layers = len(geometry.plan.model.layers)
    if told < computed and drafts and _near(told * (layers + drafts), computed * layers):
        return f"it looks as if {drafts} draft layer(s) lie in the same pool"
    if told < computed:
        return (
            "another tenant on the card, a draft model, graphs and activations that KVGATE_RUNTIME does not hold, or an engine"
            " that was given a part of the memory only (gpu_memory_utilization)"
        )
    return "KVGATE_WEIGHTS or KVGATE_RUNTIME are larger than what the engine really took, or KVGATE_TP is smaller"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
