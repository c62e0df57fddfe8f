"""BookSnapshot: the whole book at one instant, as frozen records for the console, the metrics and the tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.decisions import Mode
from gateway.core.names import BackendName, LaneName, PoolName


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend. Blocks throughout.

    budget_blocks, reserve_blocks, limit_blocks: None while no capacity is known. limit_blocks: what may be charged in all.
    free_blocks: limit - charged - foreign; negative after a shrink, a growth or an alone grant.
    seats: None if unlimited or unknown. is_alone: one request is held there and takes more
    than the limit, or more seats than there are, so that nothing is granted beside it.
    """

    serving: bool
    budget_blocks: int | None
    reserve_blocks: int | None
    limit_blocks: int | None
    foreign_blocks: int
    charged_blocks: int
    worst_blocks: int
    free_blocks: int
    seats: int | None
    seats_held: int
    in_flight: int
    is_alone: bool


@dataclass(frozen=True, slots=True)
class LineSnapshot:
    """One lane's line: tickets, the blocks that they would be charged, when the oldest arrived (None: empty), and how often
    its head has been passed."""

    requests: int
    blocks: int
    oldest_arrived: float | None
    head_passes: int


@dataclass(frozen=True, slots=True)
class BookSnapshot:
    """drain_blocks_per_s: per pool, blocks released per second while somebody waits; None until it is known."""

    mode: Mode
    draining: bool
    backends: Mapping[BackendName, BackendSnapshot]
    pools: Mapping[PoolName, Mapping[LaneName, LineSnapshot]]
    drain_blocks_per_s: Mapping[PoolName, float | None]
