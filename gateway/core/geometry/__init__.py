"""Geometry: what a request of T tokens takes from a KV cache, and how many blocks there are. Integers only.

Five concepts carry all of it. A *group* is a set of layers that share one block table (`groups.py`); a *shard* says how its
bytes fall on one tensor-parallel rank (`cells.py`); a *stage* is the part of the layers that one pipeline rank holds
(`stages.py`); a *pool* is the engine's currency, blocks of so many bytes (`pools.py` and one file for each engine); the
*demand* is the tokens to be held (`core/demand.py`). need(T) is a sum over groups of rounded-up blocks plus a constant,
never a rate times T. Rounding happens here, upwards, once.

`weighing.py` is what admission uses of it. `model_config.py` reads a model's config.json and fails closed.
"""

from gateway.core.geometry.rounding import ceil_div
from gateway.core.geometry.weighing import GroupNeed, PoolNeed, Weighing

__all__ = ["GroupNeed", "PoolNeed", "Weighing", "ceil_div"]
