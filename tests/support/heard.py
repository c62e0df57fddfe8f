"""What admission hears of a running answer, noted instead of drawn conclusions from."""

from dataclasses import dataclass, field

from gateway.admission.running_answer import Reports, RunningAnswer
from gateway.core.commitment import Ending
from gateway.core.pace import Pace
from gateway.core.ticket import Need, Ticket
from support.tickets import A, ticket


@dataclass
class Heard:
    """first_tokens: whether each was seen. gaps: seconds and tokens. learned: tokens and how it ended."""

    progress: list[int] = field(default_factory=list)
    first_tokens: list[bool] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    learned: list[tuple[int, Ending]] = field(default_factory=list)

    def running(
        self, *, is_stream: bool = True, seats: int = 1, pace: Pace | None = None, one: Ticket | None = None, now: float = 100.0
    ) -> RunningAnswer:
        """A running answer that is heard here, sent at `now`; its prompt counts as computed after 5 s."""
        reports = Reports(
            progress=lambda ticket, tokens: self.progress.append(tokens),
            first_token=lambda ticket, seen: self.first_tokens.append(seen),
            gaps=lambda name, seconds, tokens: self.gaps.append((round(seconds, 6), tokens)),
            learn=lambda ticket, tokens, ending: self.learned.append((tokens, ending)),
            patience_s=lambda ticket, is_stream: 5.0,
        )
        one = one or ticket(1, needs={A: Need(9, seats)})
        return RunningAnswer(one, A, pace or Pace(), reports, is_stream=is_stream, now=now)
