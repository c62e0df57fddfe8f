"""BookSnapshot: the whole book at one instant, as frozen records for the console, the metrics and the tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.decisions import Mode
from gateway.core.names import BackendName, LaneName, PoolName, TenantName


@dataclass(frozen=True, slots=True)
class CommitmentSnapshot:
    """What is in force on one backend: strict, or forecast with so much headroom, and why.

    last_preemption: monotonic seconds, None: none was seen. cold_blocks: charged by a guess without evidence.
    """

    is_forecast: bool = False
    headroom: float = 0.0
    why: str = "set by the operator"
    last_preemption: float | None = None
    cold_blocks: int = 0


@dataclass(frozen=True, slots=True)
class GuardSnapshot:
    """The compute guards of one backend; None where nothing is known yet.

    unanswered_tokens: of granted prompts without a first token, of at most unanswered_limit. gap_s: between two tokens, as
    last observed; gap_target_s: what it is held below nine tenths of. seat_limit: sequences at once, None: not limited.
    """

    unanswered_tokens: int
    unanswered_limit: int
    gap_s: float | None
    gap_target_s: float | None
    seat_limit: int | None


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend. Blocks throughout.

    budget_blocks, reserve_blocks, limit_blocks: None while no capacity is known. limit_blocks: what may be charged in all.
    free_blocks: limit - charged - foreign; negative after a shrink, a growth or an alone grant.
    seats: those of the budget, None if unlimited or unknown. is_alone: one request is held there and takes more
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
    commitment: CommitmentSnapshot
    guards: GuardSnapshot | None = None


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant in one lane: tickets that wait, the blocks that they would be charged, and the blocks that it holds."""

    requests: int
    blocks: int
    held_blocks: int


@dataclass(frozen=True, slots=True)
class LineSnapshot:
    """One lane of a pool.

    requests, blocks: tickets that wait, and what they would be charged. oldest_arrived: None if nobody waits. head_passes: how
    often the head of one of its lines has been passed, at most. max_requests: how many may wait. held_blocks, cap_blocks: what
    it holds and may hold, None: no cap. tenants: who waits or holds something.
    """

    requests: int
    blocks: int
    oldest_arrived: float | None
    head_passes: int
    max_requests: int
    weight: float
    held_blocks: int
    cap_blocks: int | None
    tenants: Mapping[TenantName, TenantSnapshot]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one running request holds: blocks as charged now and at most, and the tokens that it has produced so far."""

    charged_blocks: int
    worst_blocks: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class BookSnapshot:
    """drain_blocks_per_s: per pool, blocks released per second while somebody waits; None until it is known."""

    mode: Mode
    draining: bool
    backends: Mapping[BackendName, BackendSnapshot]
    pools: Mapping[PoolName, Mapping[LaneName, LineSnapshot]]
    drain_blocks_per_s: Mapping[PoolName, float | None]
