"""How hard a storm is, what became of it, and whether what a client saw is what the gateway says of it."""

from collections import Counter
from dataclasses import dataclass, field

from chaos.client import Seen
from chaos.plan import Manner

ENOUGH_FINDINGS = 5


@dataclass(frozen=True, slots=True)
class Storm:
    """How hard it is. requests: in all. faults: part of the requests whose client or engine misbehaves.

    life_requests: after so many a gateway is drained and another one started. weather_every: requests between two events.
    slowness: how much longer than usual the engines take before they answer.
    """

    requests: int
    seed: int
    faults: float = 0.3
    clients: int = 160
    life_requests: int = 2_500
    weather_every: int = 150
    slowness: float = 1.0


@dataclass
class Report:
    """What became of a storm."""

    storm: Storm
    findings: list[str] = field(default_factory=list)
    begun: int = 0
    faulty: int = 0
    lives: int = 0
    received: int = 0
    unanswered: int = 0  # no connection: between two lives, or while the gateway was ending
    outcomes: Counter[str] = field(default_factory=Counter)
    weather: Counter[str] = field(default_factory=Counter)
    manners: Counter[str] = field(default_factory=Counter)
    compared: int = 0  # answers whose request's own log line was held against what the client saw
    judged: int = 0
    most_open: int = 0
    book_calls: int = 0
    waited: int = 0

    def find(self, sentence: str) -> None:
        if len(self.findings) < 50:
            self.findings.append(sentence)

    @property
    def is_enough(self) -> bool:
        return len(self.findings) >= ENOUGH_FINDINGS

    def __str__(self) -> str:
        counts = f"{self.begun} requests in {self.lives} lives, {self.faulty} faulty, {self.received} received"
        checks = f"{self.compared} answers held against their log lines, {self.book_calls} calls of the book checked"
        lines = [
            f"seed {self.storm.seed}: {counts}, {self.waited} waited, {self.unanswered} without a connection",
            f"outcomes {dict(self.outcomes.most_common())}",
            f"weather {dict(self.weather)}",
            f"{checks}, {self.judged} requests judged by the engines, at most {self.most_open} open at once",
            *(f"FINDING {finding}" for finding in self.findings),
        ]
        return "\n".join(lines)


def is_true(outcome: str, seen: Seen) -> bool:
    """Whether a client that behaved can have seen this of a request with that outcome."""
    status, code = seen.status or 0, seen.code
    if outcome in ("completed", "capped"):
        return 200 <= status < 300 and seen.is_tidy and not (seen.is_event_stream and code is not None)
    if outcome == "engine_refused":
        return 400 <= status < 500 and seen.is_tidy
    if outcome.startswith("refused_"):
        return status >= 400 and seen.is_tidy and code == outcome.removeprefix("refused_")
    if outcome == "timeout_queue":
        return status == 429 and code == "queue_timeout"
    if outcome == "timeout_upload":
        return status == 408
    if outcome.startswith("client_gone"):
        # One that takes nothing for too long is given up, and that is said of it.
        return seen.plan.manner in (Manner.READS_SLOWLY, Manner.READS_NOTHING) and not seen.is_tidy
    return status >= 500 or not seen.is_tidy or (seen.is_event_stream and code is not None)
