"""The loads that every proxy is put under, one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.proxies.bodies import StreamPlan

KIB: Final = 1024
CROWD: Final = "idle10000"
HALF: Final = "paced250"
# Open files of a proxy that are nobody's connection; kvgate keeps 256 for itself.
_OTHER_FILES: Final = 512


@dataclass(frozen=True, slots=True)
class Scenario:
    """connections: open at once, each of which asks again as soon as it was answered, for as long as the scenario lasts.

    plan: of the streams; None: plain answers. spread_s: over which the connections begin. is_once: each asks once only.
    hang_up_after: reads of an answer after which the client leaves; None: it stays to the end.
    """

    name: str
    connections: int
    body_bytes: int = KIB
    plan: StreamPlan | None = None
    spread_s: float = 0.0
    is_once: bool = False
    hang_up_after: int | None = None

    @property
    def stays_open(self) -> bool:
        """It is about what an open stream takes."""
        return self.is_once and self.hang_up_after is None

    @property
    def lasts_s(self) -> float:
        """How long one answer takes at least."""
        return self.plan.chunks * self.plan.gap_ms / 1000 if self.plan is not None else 0.0

    def within(self, open_files: int) -> "Scenario":
        """With no more connections than a proxy can have that may open so many files: two for each."""
        return replace(self, connections=min(self.connections, (open_files - _OTHER_FILES) // 2))


SCENARIOS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        # Memory grows on a fresh process, so this comes first.
        Scenario("idle2000", 2000, plan=StreamPlan(10, gap_ms=1000), spread_s=1.5, is_once=True),
        Scenario("lat1", 1),
        Scenario("unary1k", 32),
        Scenario("unary64k", 32, body_bytes=64 * KIB),
        # Chunks may come together in one read.
        Scenario("burst", 32, plan=StreamPlan(128)),
        # None do: each is a wake-up of its own.
        Scenario("paced100", 100, plan=StreamPlan(100, gap_ms=20, is_stamped=True), spread_s=2.0),
        Scenario("paced500", 500, plan=StreamPlan(40, gap_ms=20, is_stamped=True), spread_s=0.8),
        # For machines that 25,000 chunks a second keep busy altogether: there the latest chunks tell who was given time.
        Scenario(HALF, 250, plan=StreamPlan(40, gap_ms=20, is_stamped=True), spread_s=0.8),
        Scenario("abort", 64, plan=StreamPlan(2000, gap_ms=10), spread_s=0.2, is_once=True, hang_up_after=5),
        # All of them are open for ten seconds at least.
        Scenario(CROWD, 10_000, plan=StreamPlan(25, gap_ms=1000, is_stamped=True), spread_s=15.0, is_once=True),
    )
}
USUAL: Final = tuple(name for name in SCENARIOS if name not in (CROWD, HALF))
"""What is put on where nothing else is said."""
FIRST_ROUND_ONLY: Final = frozenset({"idle2000", "abort", CROWD})
"""What later rounds leave out: they take long, and vary little."""
