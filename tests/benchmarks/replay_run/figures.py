"""What became of the requests of one run, real or predicted, in the same figures.

Quantiles of the queue wait are over requests that were granted, those that never waited among them, as those of the metric
`kvgate_queue_wait_seconds` with `outcome="granted"`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.core.outcomes import Outcome
from gateway.replay.figures import Sample
from gateway.replay.replay import Fate
from gateway.replay.trace import Trace

# Less is no waiting: reading the body and the way to the book are in it, and a log has whole milliseconds.
LEAST_WAIT_S: Final = 0.005
_DONE: Final = frozenset({Outcome.COMPLETED.value, Outcome.CAPPED.value})
_PARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. Seconds. engine_s: from its grant to its end."""

    arrived_s: float
    waited_s: float
    engine_s: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Figures:
    """engine_s: half of the answers took less, from grant to end. mean_wait_s: of those that waited. parts_s: the mean wait
    in each fifth of the run, by arrival."""

    completed: int
    refused: int
    timed_out: int
    failed: int
    p50_s: float
    p95_s: float
    waited_share: float
    mean_wait_s: float
    engine_s: float
    parts_s: tuple[float, ...]


def seen_in_log(log: Trace) -> list[Seen]:
    """What a log says."""
    found = []
    for index, request in log.rows():
        recorded = log.recorded(index)
        assert recorded is not None, "each line of a log says what has become of its request"
        engine_s = (recorded.total_s or 0.0) - recorded.waited_s
        found.append(Seen(request.at, recorded.waited_s, engine_s, recorded.outcome))
    return found


def seen_in_replay(fates: Iterable[Fate]) -> list[Seen]:
    """What a replay told, in the order of arrival."""
    ordered = sorted(fates, key=lambda fate: fate.arrived_s)
    return [
        Seen(fate.arrived_s, fate.waited_s, fate.ended_s - fate.arrived_s - fate.waited_s, fate.outcome) for fate in ordered
    ]


def figures_of(seen: list[Seen]) -> Figures:
    """Of at least one completed request, in the order of arrival."""
    done = [each for each in seen if each.outcome in _DONE]
    waits = Sample(each.waited_s for each in done).quantiles()
    engine = Sample(each.engine_s for each in done).quantiles()
    assert waits is not None, "somebody was granted"
    assert engine is not None, "and ended"
    waited = [each.waited_s for each in done if each.waited_s >= LEAST_WAIT_S]
    refused = sum(each.outcome.startswith("refused_") for each in seen)
    timed_out = sum(each.outcome == Outcome.TIMEOUT_QUEUE.value for each in seen)
    return Figures(
        completed=len(done),
        refused=refused,
        timed_out=timed_out,
        failed=len(seen) - len(done) - refused - timed_out,
        p50_s=waits["p50"],
        p95_s=waits["p95"],
        waited_share=len(waited) / len(done),
        mean_wait_s=_mean(waited),
        engine_s=engine["p50"],
        parts_s=tuple(
            _mean([each.waited_s for each in done[part * len(done) // _PARTS : (part + 1) * len(done) // _PARTS]])
            for part in range(_PARTS)
        ),
    )


def relative_error(predicted: float, real: float) -> float:
    """0.1: a tenth too much. 0 where neither is more than no waiting."""
    if max(predicted, real) < LEAST_WAIT_S:
        return 0.0
    return predicted / max(real, LEAST_WAIT_S) - 1


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
