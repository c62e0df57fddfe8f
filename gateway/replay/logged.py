"""What a log itself says became of its requests, in the figures of a replay, to lay beside it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.core.outcomes import Outcome
from gateway.replay.figures import Sample
from gateway.replay.trace import Trace

_DONE: Final = frozenset({Outcome.COMPLETED.value, Outcome.CAPPED.value})


@dataclass(slots=True)
class Logged:
    """outcomes: of all requests that were weighed. waits: of those that were granted and completed, as ttft."""

    outcomes: Counter[str] = field(default_factory=Counter)
    waits: Sample = field(default_factory=Sample)
    ttft: Sample = field(default_factory=Sample)

    @property
    def completed(self) -> int:
        return sum(self.outcomes[outcome] for outcome in _DONE)

    @property
    def refused(self) -> int:
        return sum(number for outcome, number in self.outcomes.items() if outcome.startswith("refused_"))

    @property
    def timed_out(self) -> int:
        return self.outcomes[Outcome.TIMEOUT_QUEUE.value]

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.outcomes.total(),
            "completed": self.completed,
            "refused": self.refused,
            "timed_out": self.timed_out,
            "outcomes": dict(sorted(self.outcomes.items())),
            "queue_wait_s": self.waits.quantiles(),
            "ttft_s": self.ttft.quantiles(),
        }


def as_logged(trace: Trace) -> Logged | None:
    """None of a trace that is no log."""
    if not trace.is_log:
        return None
    logged = Logged()
    for index in range(len(trace)):
        recorded = trace.recorded(index)
        assert recorded is not None, "each line of a log says what has become of its request"
        logged.outcomes[recorded.outcome] += 1
        if recorded.outcome in _DONE:
            logged.waits.add(recorded.waited_s)
            if recorded.ttft_s is not None:
                logged.ttft.add(recorded.ttft_s)
    return logged
