"""Commitment: how much of a demand is counted as held, and how much may be counted in all. One file each."""

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.core.commitment.evidence import Evidence
from gateway.core.commitment.forecast import ForecastCommitment
from gateway.core.commitment.lengths import Ending
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.names import BackendName
from gateway.core.snapshots import CommitmentSnapshot
from gateway.core.ticket import Need, Ticket

__all__ = ["COMMITMENTS", "Commitment", "Ending", "Evidence", "ForecastCommitment", "StrictCommitment"]


class Commitment(Protocol):
    """Asked anew at every decision, so one that learns may answer differently each time.

    A charge is a sum over requests, never a verdict over all of them: so that lines, tenants and a shared book can add it.
    """

    def charge(self, ticket: Ticket, backend: BackendName, need: Need, output_tokens: int) -> int:
        """Blocks to count for a request that needs `need` and has `output_tokens` in all its sequences so far;
        1 .. need.worst_blocks."""
        ...

    def limit_blocks(self, backend: BackendName, budget_blocks: int, reserve_blocks: int) -> int:
        """Blocks that may be charged on a backend in all, foreign ones included, where any charge is less than the worst;
        at most budget - reserve."""
        ...

    # What it is told. `begin`, `moved` and `ended` follow each request that holds something.

    def has_budget(self, backend: BackendName, budget_blocks: int) -> None:
        """The whole budget of a backend, 0 while unknown."""
        ...

    def begin(self, ticket: Ticket, backend: BackendName, need: Need) -> int:
        """A request is granted. Returns what `charge` says of it."""
        ...

    def moved(self, ticket: Ticket, backend: BackendName, need: Need, charged_blocks: int, output_tokens: int) -> None: ...

    def ended(self, ticket: Ticket) -> None: ...

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending) -> bool:
        """An answer has ended so. Returns whether charges are others now."""
        ...

    def read_engine(self, backend: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> bool:
        """A reading of the engine: what it preempted so far (None: it does not tell), and whether an overrun of its cache
        fails everybody there. Returns whether charges or the limit are others now."""
        ...

    def snapshot(self, backend: BackendName) -> CommitmentSnapshot: ...


COMMITMENTS: Mapping[str, Callable[[Evidence], Commitment]] = {
    "strict": lambda evidence: StrictCommitment(),
    "auto": lambda evidence: ForecastCommitment(evidence, pinned=False),
    "forecast": lambda evidence: ForecastCommitment(evidence, pinned=True),
}
"""By the names that settings use; each is given the evidence that it may learn into."""
