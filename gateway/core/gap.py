"""The ledger gap: what we hold and believe foreign, less what the engine's own gauge says is used, split by its cause.

It promises that the parts add up to the gap. Above zero the ledger holds room that is not written yet, or never will be:
that is what holding ahead means. Below zero the engine uses more than we charge: up to the worst case of what runs our
charge was an underestimate, and what lies beyond no running request of ours can have written.
"""

from collections.abc import Mapping
from enum import StrEnum


class GapCause(StrEnum):
    """ESTIMATE: charged more or less than is written. ORPHANED: written for requests that ended here and still run there.
    FOREIGN: written by somebody else, and not long enough for it to be taken off the free blocks yet."""

    ESTIMATE = "estimate"
    ORPHANED = "orphaned"
    FOREIGN = "foreign"


def ledger_gap(
    *, charged_blocks: int, worst_blocks: int, foreign_blocks: int, used_blocks: int, held_seats: int, running: int | None
) -> Mapping[GapCause, int]:
    """The gap in blocks by cause; every cause is named, 0 where it has no part.

    held_seats: sequences that we hold seats for. running: those that the engine says it runs, None if it does not tell.
    """
    gap = charged_blocks + foreign_blocks - used_blocks
    # What is charged below the worst case may be written without anybody having done wrong.
    estimate = max(gap, charged_blocks - worst_blocks) if gap < 0 else gap
    beyond = gap - estimate
    is_orphaned = running is not None and running > held_seats
    return {
        GapCause.ESTIMATE: estimate,
        GapCause.ORPHANED: beyond if is_orphaned else 0,
        GapCause.FOREIGN: 0 if is_orphaned else beyond,
    }
