"""Waste: blocks held and not used, by cause, in block-seconds. What a stricter hold than the truth has cost.

It promises: no cause is negative, and together they are what was held less what was used. A request uses its prompt's blocks
from the start and grows to its end; what it was charged went from one figure to another likewise. Both as straight lines:
the areas under them are what counts, and their shape between start and end is not known here.
"""

from enum import StrEnum
from typing import Final

from gateway.core.geometry import Weighing


class WasteCause(StrEnum):
    """Why blocks were held in vain."""

    CAP_ABOVE_TRUTH = "cap_above_truth"  # the cap that was sent was more than the answer became
    ABSENT_CAP = "absent_cap"  # none was sent, so as much as the engine would give was held
    END_FROM_START = "end_from_start"  # what it needed in the end was held before it needed it


_NONE: Final[dict[WasteCause, float]] = {}


def waste(
    *,
    charged_at_start: int,
    charged_at_end: int,
    prompt_tokens: int,
    output_tokens: int,
    seats: int,
    weighing: Weighing,
    has_cap: bool,
    seconds: float,
) -> dict[WasteCause, float]:
    """Block-seconds held in vain for one request that ran for `seconds`.

    prompt_tokens, output_tokens: as its usage tells, the output of all its sequences together.
    """
    if seconds <= 0:
        return _NONE
    output_tokens_each = -(-output_tokens // seats)
    start_blocks = seats * weighing.sequence_blocks(prompt_tokens + 1)
    end_blocks = start_blocks
    if output_tokens_each > 1:
        end_blocks = seats * weighing.sequence_blocks(prompt_tokens + output_tokens_each)
    held_blocks = (charged_at_start + charged_at_end) / 2
    beyond_end = held_blocks - end_blocks
    before_end = (held_blocks if beyond_end < 0 else end_blocks) - (start_blocks + end_blocks) / 2
    return {
        (WasteCause.CAP_ABOVE_TRUTH if has_cap else WasteCause.ABSENT_CAP): beyond_end * seconds if beyond_end > 0 else 0.0,
        WasteCause.END_FROM_START: before_end * seconds if before_end > 0 else 0.0,
    }
