"""Figures: what became of a trace in one setting. Shares are of 0..1, times in seconds, blocks in blocks."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.core.outcomes import RejectReason, refusal
from gateway.core.waste import WasteCause
from gateway.replay.setting import Setting

QUANTILES: Final = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_MOST_POINTS: Final = 512


class Sample:
    """Measured values, for their quantiles."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.values = array("d", values)

    def add(self, value: float) -> None:
        self.values.append(value)

    def quantiles(self) -> dict[str, float] | None:
        """By name, rounded to milliseconds; None of no values."""
        if not self.values:
            return None
        ordered, number = sorted(self.values), len(self.values)
        return {name: round(ordered[min(number - 1, int(part * number))], 3) for name, part in QUANTILES.items()}


@dataclass(slots=True)
class Fates:
    """How requests ended: each is completed, refused at once for a reason, or timed out in line. waited: of all, those that
    stood in line. waits: of those that were granted. ttft: of completed streams, from their arrival."""

    requests: int = 0
    completed: int = 0
    timed_out: int = 0
    waited: int = 0
    refused: Counter[RejectReason] = field(default_factory=Counter)
    waits: Sample = field(default_factory=Sample)
    ttft: Sample = field(default_factory=Sample)
    output_tokens: int = 0
    held_block_s: float = 0.0
    wasted_block_s: dict[WasteCause, float] = field(default_factory=lambda: dict.fromkeys(WasteCause, 0.0))

    @property
    def refusals(self) -> int:
        return sum(self.refused.values())

    def decline(self, reason: RejectReason, *, waited_s: float) -> None:
        if reason is RejectReason.QUEUE_TIMEOUT:
            self.timed_out += 1
        else:
            self.refused[reason] += 1
        self.waited += waited_s > 0 or reason is RejectReason.QUEUE_TIMEOUT

    def merge(self, other: "Fates") -> None:
        self.requests += other.requests
        self.completed += other.completed
        self.timed_out += other.timed_out
        self.waited += other.waited
        self.refused += other.refused
        self.waits.values.extend(other.waits.values)
        self.ttft.values.extend(other.ttft.values)
        self.output_tokens += other.output_tokens
        self.held_block_s += other.held_block_s
        for cause, block_s in other.wasted_block_s.items():
            self.wasted_block_s[cause] += block_s

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "completed": self.completed,
            "refused": self.refusals,
            "refused_by_reason": {reason.value: number for reason, number in sorted(self.refused.items())},
            "timed_out": self.timed_out,
            "waited": self.waited,
            "queue_wait_s": self.waits.quantiles(),
            "ttft_s": self.ttft.quantiles(),
            "output_tokens": self.output_tokens,
            "held_block_s": round(self.held_block_s, 1),
            "wasted_block_s": {cause.value: round(block_s, 1) for cause, block_s in self.wasted_block_s.items()},
        }


@dataclass(frozen=True, slots=True)
class Point:
    """One instant, summed over all backends. refused: up to then."""

    at_s: float
    held_blocks: int
    used_blocks: int
    waiting: int
    refused: int


class Timeline:
    """Points at even distances, never more than so many: where it becomes too long, every second one goes."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.next_at = 0.0
        self._every_s = 1.0

    def add(self, point: Point) -> None:
        self.points.append(point)
        if len(self.points) >= _MOST_POINTS:
            self.points = self.points[::2]
            self._every_s *= 2
        self.next_at = point.at_s + self._every_s


@dataclass(slots=True)
class Result:
    """One setting's row. budget_blocks, reserve_blocks: of all backends together. used_block_s: as the engines used them.

    cut: answers that a cap ended before their time. span_s: from the first arrival to the last end.
    """

    setting: Setting
    budget_blocks: int
    reserve_blocks: int
    all: Fates = field(default_factory=Fates)
    tenants: dict[str, Fates] = field(default_factory=dict)
    gaps: Sample = field(default_factory=Sample)
    timeline: Timeline = field(default_factory=Timeline)
    span_s: float = 0.0
    used_block_s: float = 0.0
    peak_used_blocks: int = 0
    preemptions: int = 0
    cut: int = 0

    def tenant(self, name: str) -> Fates:
        fates = self.tenants.get(name)
        if fates is None:
            fates = self.tenants[name] = Fates()
        return fates

    def largest_tenants(self, most: int) -> list[tuple[str, Fates]]:
        """Those that held most, and all others as one; empty where there is only one tenant."""
        if len(self.tenants) < 2:
            return []
        ordered = sorted(self.tenants.items(), key=lambda entry: (-entry[1].held_block_s, entry[0]))
        shown, rest = ordered[:most], ordered[most:]
        if rest:
            others = Fates()
            for _, fates in rest:
                others.merge(fates)
            shown.append((f"{len(rest)} others", others))
        return [(name or "anonymous", fates) for name, fates in shown]

    @property
    def capacity_block_s(self) -> float:
        return max(self.budget_blocks * self.span_s, 1e-9)

    @property
    def held_share(self) -> float:
        """Of all blocks at all times, those that were held."""
        return self.all.held_block_s / self.capacity_block_s

    @property
    def used_share(self) -> float:
        """Of all blocks at all times, those that the engines used."""
        return self.used_block_s / self.capacity_block_s

    def waste_shares(self) -> dict[WasteCause, float]:
        """By cause, of what was held."""
        held = max(self.all.held_block_s, 1e-9)
        return {cause: block_s / held for cause, block_s in self.all.wasted_block_s.items()}

    def as_json(self, *, tenants: int) -> dict[str, Any]:
        return {
            "setting": self.setting.as_json(),
            "budget_blocks": self.budget_blocks,
            "reserve_blocks": self.reserve_blocks,
            **self.all.as_json(),
            "token_gap_s": self.gaps.quantiles(),
            "span_s": round(self.span_s, 3),
            "completed_per_s": round(self.all.completed / max(self.span_s, 1e-9), 4),
            "output_tokens_per_s": round(self.all.output_tokens / max(self.span_s, 1e-9), 2),
            "held_share": round(self.held_share, 4),
            "used_share": round(self.used_share, 4),
            "peak_used_share": round(self.peak_used_blocks / self.budget_blocks, 4),
            "wasted_share_of_held": {cause.value: round(share, 4) for cause, share in self.waste_shares().items()},
            "preemptions": self.preemptions,
            "answers_cut_by_a_cap": self.cut,
            "tenants": [{"tenant": name, **fates.as_json()} for name, fates in self.largest_tenants(tenants)],
            "timeline": [
                {
                    "at_s": round(point.at_s, 3),
                    "held_blocks": point.held_blocks,
                    "used_blocks": point.used_blocks,
                    "waiting": point.waiting,
                    "refused": point.refused,
                }
                for point in self.timeline.points
            ],
        }


def outcome_of(reason: RejectReason) -> str:
    """In the words of a log's `outcome`."""
    return refusal(reason).value
