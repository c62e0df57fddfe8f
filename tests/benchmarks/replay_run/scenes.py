"""Scenes: which requests of a trace are played against which engine, and how fast.

Time is compressed by the speed of the pretend engine: arrivals and think times are divided by it, so that as much is asked of
the engine as of one at speed 1 at the trace's own times. `load` then lets requests come so many times as fast: it is chosen so
that most of them wait and nobody is refused, by the replay alone. Two of the loads were changed after real runs, for the
replay's own spread at the old ones (tests/benchmarks/README.md).
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gateway.replay.reader import read_trace
from gateway.replay.trace import Request, Trace

_TRACES: Final = Path(__file__).parents[1] / "policies" / "traces"
_COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens", "cap_tokens", "session", "think_s")


@dataclass(frozen=True, slots=True)
class Scene:
    """requests: at most so many, the first that fit into the context; of a session, its turns up to the first that does not.

    cap_tokens: the cap that every client sends; None: none. sessions: at work at once. longest_think_s: longer pauses of a
    session are cut to it, before they are compressed.
    """

    trace: str
    speed: float
    load: float
    blocks: int
    context_tokens: int
    cap_tokens: int | None
    requests: int
    sessions: int | None = None
    longest_think_s: float = 60.0

    def played(self) -> Trace:
        """The requests as they are played: their times compressed, their caps as sent."""
        whole = read_trace([_TRACES / f"{self.trace}.csv.gz"])
        over: set[str] = set()
        trace = Trace()
        # Sessions begin as others end; all others come at their times.
        for index in range(len(whole)) if whole.has_sessions else whole.order:
            request = whole.row(index)
            assert request.output_tokens is not None, "every row of these traces says how long the answer was"
            if request.session in over:
                continue
            if request.prompt_tokens + request.output_tokens > self.context_tokens:
                over |= {request.session} if request.session else set()
                continue
            trace.add(self._compressed(request))
            if len(trace) == self.requests:
                break
        trace.finish()
        return trace

    def _compressed(self, request: Request) -> Request:
        think_s = None if request.think_s is None else min(request.think_s, self.longest_think_s) / self.speed
        at = request.at / (self.speed * self.load)
        return replace(request, at=at, think_s=think_s, shared_tokens=0, cap_tokens=self.cap_tokens)


SCENES: Final = {
    scene.trace: scene
    for scene in (
        Scene("azure_conv", 8, 0.35, 1024, 8192, 1024, 600),
        Scene("claude_code_sessions", 16, 1.0, 8192, 32_768, 4096, 400, sessions=10),
        Scene("servegen_r1", 8, 0.18, 3072, 4096, 4096, 400),
    )
}


def write_trace(trace: Trace, path: Path) -> None:
    """As a CSV that `kvgate replay` reads."""
    with path.open("w", encoding="ascii", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(_COLUMNS if trace.has_sessions else _COLUMNS[:4])
        for index in range(len(trace)):
            row = trace.row(index)
            cells = [f"{row.at:.6f}", row.prompt_tokens, row.output_tokens, row.cap_tokens or ""]
            lines.writerow([*cells, row.session, f"{row.think_s or 0:.6f}"] if trace.has_sessions else cells)
