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
from gateway.core.line import Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TicketId
from gateway.core.queue import Queue


class WaitReason(StrEnum):
    """What is missing, the farthest from a grant first."""

    AWAY = "away"  # no backend that it may run on serves
    BLOCKS = "blocks"  # it does not fit what is free
    SEATS = "seats"  # the blocks fit, the engine runs as many sequences as it may
    PROMPTS = "prompts"  # it fits, and as many prompt tokens as may be are without a first token
    COLLECTING = "collecting"  # it fits, and the room is kept for somebody ahead who was passed often enough
    TURN = "turn"  # it fits, and others are ahead of it


_ORDER = {reason: place for place, reason in enumerate(WaitReason)}


@dataclass(frozen=True, slots=True)
class WaitSnapshot:
    """One waiting ticket. position: how many of its line are before it. needs_blocks, needs_seats: what it would be charged.

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


def wait_snapshots(queue: Queue, ledger: Ledger, guards: Guards, backfill: Backfill, *, most: int) -> Iterator[WaitSnapshot]:
    """The first `most` tickets of every line, first to go first."""
    for line in queue.lines:
        for position, waiting in enumerate(islice(line, most)):
            ticket = waiting.ticket
            reason, backend = _nearest(waiting, ledger, guards, backfill)
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


def _nearest(waiting: Waiting, ledger: Ledger, guards: Guards, backfill: Backfill) -> tuple[WaitReason, BackendLedger | None]:
    found: tuple[WaitReason, BackendLedger | None] = (WaitReason.AWAY, None)
    for name in waiting.ticket.needs:
        backend = ledger.backends.get(name)
        if backend is None or not backend.serving or backend.budget is None:
            continue
        reason = _why_not(waiting, backend, ledger, guards, backfill)
        if found[1] is None or _ORDER[reason] > _ORDER[found[0]]:
            found = reason, backend
    return found


def _why_not(waiting: Waiting, backend: BackendLedger, ledger: Ledger, guards: Guards, backfill: Backfill) -> WaitReason:
    ticket = waiting.ticket
    if ledger.fits(ticket, backend.name) is None:
        free_seats = backend.free_seats
        lacks_seats = free_seats is not None and ticket.needs[backend.name].seats > free_seats
        return WaitReason.SEATS if lacks_seats and waiting.blocks <= backend.free_blocks else WaitReason.BLOCKS
    if not guards.would_admit(backend.name, ticket.prompt_tokens):
        return WaitReason.PROMPTS
    return WaitReason.COLLECTING if backfill.bars(waiting, backend) else WaitReason.TURN
