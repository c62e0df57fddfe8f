"""Strict: charged = worst, until the end. Safe, the base, and what holds wherever evidence for anything else is missing.

With the caps that clients really send it leaves most of the pool empty; that is its price.
"""

from gateway.core.commitment.lengths import Ending
from gateway.core.names import BackendName
from gateway.core.snapshots import CommitmentSnapshot
from gateway.core.ticket import Need, Ticket


class StrictCommitment:
    """Counts every request with all that it may ever take, and so has nothing to learn."""

    def charge(self, ticket: Ticket, backend: BackendName, need: Need, output_tokens: int) -> int:
        return need.worst_blocks

    def limit_blocks(self, backend: BackendName, budget_blocks: int, reserve_blocks: int) -> int:
        return budget_blocks - reserve_blocks

    def has_budget(self, backend: BackendName, budget_blocks: int) -> None:
        """What there is changes no charge."""

    def begin(self, ticket: Ticket, backend: BackendName, need: Need) -> int:
        """Nor does what runs,"""
        return self.charge(ticket, backend, need, 0)

    def moved(self, ticket: Ticket, backend: BackendName, need: Need, charged_blocks: int, output_tokens: int) -> None:
        """how far it has come,"""

    def ended(self, ticket: Ticket) -> None:
        """or that it has ended,"""

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending) -> bool:
        """or with how many tokens,"""
        return False

    def read_engine(self, backend: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> bool:
        """or what the engine did with it."""
        return False

    def snapshot(self, backend: BackendName) -> CommitmentSnapshot:
        return CommitmentSnapshot()
