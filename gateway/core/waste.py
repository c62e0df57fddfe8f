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


# Found here at a tenth of what it costs to look into an enum: it is done for every request.
_CAP_ABOVE_TRUTH: Final = WasteCause.CAP_ABOVE_TRUTH
_ABSENT_CAP: Final = WasteCause.ABSENT_CAP
_END_FROM_START: Final = WasteCause.END_FROM_START

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
    # Twice the blocks, for as long as they are whole numbers.
    held, used = charged_at_start + charged_at_end, start_blocks + end_blocks
    beyond_end = held - 2 * end_blocks
    before_end = (held if beyond_end < 0 else 2 * end_blocks) - used
    return {
        (_CAP_ABOVE_TRUTH if has_cap else _ABSENT_CAP): beyond_end * seconds / 2 if beyond_end > 0 else 0.0,
        _END_FROM_START: before_end * seconds / 2 if before_end > 0 else 0.0,
    }
