"""What a replay is asked to try: a Site, which is alike in every row of its answer, and Settings, one a row."""

from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from itertools import product
from typing import Final, Self

from gateway.core.lane_table import DEFAULT_LANES, LaneTable
from gateway.core.offer import DefaultOutput, Overlong
from gateway.core.reserve import Reserve
from gateway.replay.profiles import EngineProfile
from gateway.replay.trace import Request

_MOST_CAP: Final = 10**9


class CapRule(Enum):
    AS_SENT = "as-sent"
    ABSENT = "absent"
    NUMBER = "number"
    TIMES_TRUTH = "times truth"


@dataclass(frozen=True, slots=True)
class Caps:
    """The output caps that clients send in a replay. text: as it was written."""

    rule: CapRule
    amount: Fraction
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`as-sent`, `absent`, a number of tokens, or a multiple of what the answer really became: `1.5x`.

        Raises ValueError with a sentence.
        """
        word = text.strip().lower()
        if word in ("as-sent", "absent"):
            return cls(CapRule(word), Fraction(0), word)
        is_multiple = word.endswith("x")
        try:
            amount = Fraction(word.removesuffix("x"))
        except (ValueError, ZeroDivisionError):
            amount = Fraction(0)
        if amount >= 1 and amount <= _MOST_CAP and (is_multiple or amount.denominator == 1):
            return cls(CapRule.TIMES_TRUTH if is_multiple else CapRule.NUMBER, amount, word)
        raise ValueError(f"{text!r} is no rule for caps: write as-sent, absent, a number, or 1.5x (of the true length)")

    def cap_of(self, request: Request) -> int | None:
        """What its client sends; None: nothing."""
        match self.rule:
            case CapRule.AS_SENT:
                return request.cap_tokens
            case CapRule.ABSENT:
                return None
            case CapRule.NUMBER:
                return int(self.amount)
            case CapRule.TIMES_TRUTH:
                each = -(-(request.output_tokens or 1) // request.sequences)
                return -int(-self.amount * each // 1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: what an operator can choose."""

    reserve: Reserve
    backends: int
    policy: str
    commitment: str
    caps: Caps

    def as_json(self) -> dict[str, object]:
        return {
            "reserve": self.reserve.text,
            "backends": self.backends,
            "policy": self.policy,
            "commitment": self.commitment,
            "caps": self.caps.text,
        }


def all_settings(
    reserves: list[Reserve], backends: list[int], policies: list[str], commitments: list[str], caps: list[Caps]
) -> list[Setting]:
    """Every one with every other, in the order in which they were given."""
    return [
        Setting(reserve, number, policy, commitment, cap)
        for number, commitment, cap, policy, reserve in product(backends, commitments, caps, policies, reserves)
    ]


@dataclass(frozen=True, slots=True)
class Site:
    """Engine and gateway as they stand, but for what is tried. Each backend is one such engine.

    max_context: tokens. patience_s: how long a caller waits. ttft_target_s, gap_target_s: None where none is set.
    load: requests come so many times as fast as in the trace. sessions: of a trace, that are at work at once; None: all.
    """

    engine: EngineProfile
    max_context: int
    patience_s: float = 60.0
    queue_requests: int = 1024
    backfill_passes: int = 16
    backfill_age_s: float = 30.0
    has_guards: bool = True
    gap_target_s: float | None = None
    ttft_target_s: float | None = None
    default_output: DefaultOutput = field(default_factory=DefaultOutput)
    overlong: Overlong = Overlong.PASS
    lanes: LaneTable = DEFAULT_LANES
    load: float = 1.0
    sessions: int | None = None
    has_prefix_cache: bool = True
