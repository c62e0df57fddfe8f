"""The last minutes, in steps of five seconds, and the last refusals: what the console draws before anybody looked at it.

Written as requests move, read by whoever looks: no timer, no task, and memory that does not grow with traffic. Durations
are kept as counts in classes 15 % wide, so a quantile is good to that. Content never enters it.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.outcomes import RejectReason

STEP_S: Final = 5.0
STEPS: Final = 60
REFUSALS: Final = 50
_LONGEST_MESSAGE: Final = 300

# The upper ends of the classes: from a millisecond to some months.
_CLASS_ENDS_S: Final = [0.001 * 1.15**number for number in range(165)]

Series = list[float | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request that was declined. at: monotonic seconds. blocks: what it would have held, None if it was not weighed."""

    at: float
    request_id: str
    reason: RejectReason
    status: int | None
    message: str
    model: str
    lane: str
    tenant: str
    blocks: int | None
    waited_s: float


class _Step:
    __slots__ = ("ended", "ends", "number", "refused", "starts", "tokens", "ttfts", "waits")

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts = number * STEP_S
        self.ends = self.starts + STEP_S
        self.ended = 0
        self.refused = 0
        self.tokens = 0
        self.waits: Counter[int] = Counter()
        self.ttfts: Counter[int] = Counter()


class Recent:
    """now: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = _Step(int(now() // STEP_S))
        self._steps = deque([self._last], maxlen=STEPS)
        self._refusals: deque[Refusal] = deque(maxlen=REFUSALS)

    @property
    def refusals(self) -> list[Refusal]:
        """Newest first."""
        return list(reversed(self._refusals))

    def ended(self, now: float, waited_s: float | None, first_token_s: float | None, tokens: int) -> None:
        """A request has ended. waited_s: for a grant, with or without one in the end. tokens: not told by `produced` before.

        now: the same clock's, which was just read.
        """
        step = self._last
        if not step.starts <= now < step.ends:
            step = self._step(now)
        step.ended += 1
        if tokens > 0:
            step.tokens += tokens
        if waited_s is not None:
            step.waits[bisect_left(_CLASS_ENDS_S, waited_s)] += 1
        if first_token_s is not None:
            step.ttfts[bisect_left(_CLASS_ENDS_S, first_token_s)] += 1

    def produced(self, tokens: int) -> None:
        self._step(self._now()).tokens += tokens

    def refused(self, refusal: Refusal) -> None:
        self._step(self._now()).refused += 1
        message = refusal.message
        if len(message) > _LONGEST_MESSAGE:
            refusal = replace(refusal, message=message[:_LONGEST_MESSAGE] + "…")
        self._refusals.append(refusal)

    def series(self) -> dict[str, Series]:
        """Each series oldest first, one value a step, the last one still growing. None: nothing to tell in that step."""
        last = int(self._now() // STEP_S)
        steps = {step.number: step for step in self._steps}
        shown = [steps.get(number) for number in range(last - STEPS + 1, last + 1)]
        return {
            "queue_wait_p50_s": [_quantile(step.waits, 0.5) if step else None for step in shown],
            "queue_wait_p95_s": [_quantile(step.waits, 0.95) if step else None for step in shown],
            "ttft_p50_s": [_quantile(step.ttfts, 0.5) if step else None for step in shown],
            "ttft_p95_s": [_quantile(step.ttfts, 0.95) if step else None for step in shown],
            "tokens_per_s": _rates(step.tokens if step else 0 for step in shown),
            "refused_per_s": _rates(step.refused if step else 0 for step in shown),
            "ended_per_s": _rates(step.ended if step else 0 for step in shown),
        }

    def _step(self, now: float) -> _Step:
        number = int(now // STEP_S)
        if self._last.number != number:
            self._last = _Step(number)
            self._steps.append(self._last)
        return self._last


def _rates(amounts: Iterable[int]) -> Series:
    return [round(amount / STEP_S, 2) for amount in amounts]


def _quantile(classes: Counter[int], part: float) -> float | None:
    """The upper end of the class in which that part of the durations is reached."""
    total = classes.total()
    if not total:
        return None
    seen = 0
    for number in sorted(classes):
        seen += classes[number]
        if seen >= part * total:
            return round(_CLASS_ENDS_S[min(number, len(_CLASS_ENDS_S) - 1)], 4)
    return None
