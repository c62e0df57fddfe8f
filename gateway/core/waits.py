"""Why a ticket waits: for an operator who sees a line and wants to know what it is waiting for. Decides nothing.

Of the backends that a ticket may run on, the reason of the one is told on which it is nearest to its grant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from gateway.core.backfill import Backfill
from gateway.core.guards import Guards
from gateway.core.ledger import BackendLedger, Ledger
from gateway.core.line import Lane, Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TicketId
from gateway.core.queue import Queue


class WaitReason(StrEnum):
    """What is missing, the farthest from a grant first."""

    AWAY = "away"  # no backend that it may run on serves
    BLOCKS = "blocks"  # it does not fit what is free
    SEATS = "seats"  # the blocks fit, the engine runs as many sequences as it may
    PROMPTS = "prompts"  # it fits, and as many prompt tokens as may be are without a first token
    CAP = "cap"  # its lane or its tenant holds as much as it may
    COLLECTING = "collecting"  # it fits, and the room is kept for somebody ahead who was passed often enough
    TURN = "turn"  # it fits, and others are ahead of it


_ORDER = {reason: place for place, reason in enumerate(WaitReason)}


@dataclass(frozen=True, slots=True)
class WaitSnapshot:
    """One waiting ticket. position: how many of its tenant are before it. needs_blocks, needs_seats: what it would be charged.

    backend: where it is nearest to its grant, None while none serves; free_blocks there, negative when over the limit.
    passes: how often it was passed as the head; is_collecting: it is not passed any more. arrived, deadline: monotonic seconds.
    """

    ticket_id: TicketId
    pool: PoolName
    lane: LaneName
    position: int
    needs_blocks: int
    needs_seats: int
    arrived: float
    deadline: float
    passes: int
    is_collecting: bool
    reason: WaitReason
    backend: BackendName | None
    free_blocks: int | None


def wait_snapshots(
    queue: Queue, ledger: Ledger, guards: Guards, backfill: Backfill, *, most: int, now: float
) -> Iterator[WaitSnapshot]:
    """The first `most` tickets of every lane."""
    for lanes in queue.pools():
        for lane in lanes.lanes.values():
            for position, waiting in islice(_by_position(lane), most):
                ticket = waiting.ticket
                reason, backend = _nearest(waiting, queue, ledger, guards, backfill, now=now)
                yield WaitSnapshot(
                    ticket_id=ticket.id,
                    pool=ticket.pool,
                    lane=ticket.lane,
                    position=position,
                    needs_blocks=waiting.blocks,
                    needs_seats=waiting.seats,
                    arrived=ticket.arrived,
                    deadline=ticket.deadline,
                    passes=waiting.passes,
                    is_collecting=waiting.is_collecting,
                    reason=reason,
                    backend=None if backend is None else backend.name,
                    free_blocks=None if backend is None else backend.free_blocks,
                )


def _by_position(lane: Lane) -> Iterator[tuple[int, Waiting]]:
    """The first of every tenant, then the second of each, and so on; within a place the oldest first."""
    position = 0
    lines = [line for line in lane.lines.values() if line]
    while lines:
        yield from ((position, waiting) for waiting in sorted((line[position] for line in lines), key=lambda each: each.age))
        position += 1
        lines = [line for line in lines if len(line) > position]


def _nearest(
    waiting: Waiting, queue: Queue, ledger: Ledger, guards: Guards, backfill: Backfill, *, now: float
) -> tuple[WaitReason, BackendLedger | None]:
    found: tuple[WaitReason, BackendLedger | None] = (WaitReason.AWAY, None)
    for name in waiting.ticket.needs:
        backend = ledger.backends.get(name)
        if backend is None or not backend.serving or backend.budget is None:
            continue
        reason = _why_not(waiting, backend, queue, ledger, guards, backfill, now=now)
        if found[1] is None or _ORDER[reason] > _ORDER[found[0]]:
            found = reason, backend
    return found


def _why_not(
    waiting: Waiting, backend: BackendLedger, queue: Queue, ledger: Ledger, guards: Guards, backfill: Backfill, *, now: float
) -> WaitReason:
    ticket = waiting.ticket
    if ledger.fits(ticket, backend.name) is None:
        free_seats = backend.free_seats
        lacks_seats = free_seats is not None and ticket.needs[backend.name].seats > free_seats
        return WaitReason.SEATS if lacks_seats and waiting.blocks <= backend.free_blocks else WaitReason.BLOCKS
    if not guards.would_admit(backend.name, ticket.prompt_tokens):
        return WaitReason.PROMPTS
    if queue.lanes(ticket.pool).is_held_back(waiting, now=now):
        return WaitReason.CAP
    return WaitReason.COLLECTING if backfill.bars(waiting, backend, now=now) else WaitReason.TURN
