"""Reserve: the part of a budget that is never granted, as an operator writes it: blocks, percent or GiB.

It promises: a percentage is rounded up, but never to the whole of a budget; nothing is guessed: bytes become blocks only
where the bytes of one block are known.
"""

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final, Self

_FORM: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(%|[a-zA-Z]*)")
_BYTES: Final = {"mib": 2**20, "gib": 2**30, "tib": 2**40, "mb": 10**6, "gb": 10**9, "tb": 10**12}


class ReserveUnit(Enum):
    BLOCKS = "blocks"
    PERCENT = "percent"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ReserveProblem:
    """Why a reserve cannot be had, in one sentence for the operator. too_large: it leaves nothing of the budget."""

    message: str
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Reserve:
    """amount: blocks, percent of the budget, or bytes of KV memory, as `unit` says. text: as it was written."""

    amount: Fraction
    unit: ReserveUnit
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`10` (blocks), `5%`, `2GiB`.

        Raises ValueError with a sentence that says what a reserve looks like.
        """
        match = _FORM.fullmatch(text.strip())
        if match is not None:
            amount, unit = Fraction(match[1]), match[2].lower()
            if unit == "%" and amount < 100:
                return cls(amount, ReserveUnit.PERCENT, text.strip())
            if unit in ("", "blocks") and amount.denominator == 1:
                return cls(amount, ReserveUnit.BLOCKS, text.strip())
            if unit in _BYTES:
                return cls(amount * _BYTES[unit], ReserveUnit.BYTES, text.strip())
        raise ValueError(f"{text!r} is not a reserve: write it as blocks (10), as percent below 100 (5%) or as memory (2GiB)")

    def resolve(self, blocks: int, bytes_per_block: int | None = None) -> int | ReserveProblem:
        """Blocks of this reserve in a budget of `blocks` >= 1: at least 0 and below `blocks`, or why that cannot be."""
        match self.unit:
            case ReserveUnit.PERCENT:
                # One block in a budget of one is all of it: nothing could ever run.
                return min(_ceil(self.amount * blocks / 100), blocks - 1)
            case ReserveUnit.BLOCKS:
                reserve_blocks = int(self.amount)
            case ReserveUnit.BYTES:
                if self.amount == 0:
                    return 0
                if bytes_per_block is None:
                    return ReserveProblem(
                        f"a reserve of {self.text} needs the bytes of one KV block, which the engine does not tell:"
                        " give KVGATE_RESERVE in blocks or percent"
                    )
                reserve_blocks = _ceil(self.amount / bytes_per_block)
        if reserve_blocks >= blocks:
            return ReserveProblem(
                f"the reserve of {self.text} ({reserve_blocks} blocks) leaves nothing of a budget of {blocks} blocks:"
                " KVGATE_RESERVE must be smaller",
                too_large=True,
            )
        return reserve_blocks

    def __str__(self) -> str:
        return self.text


def _ceil(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)
