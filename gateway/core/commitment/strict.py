"""Strict: charged = worst, until the end. Safe, the base, and what holds wherever evidence for anything else is missing.

With the caps that clients really send it leaves most of the pool empty; that is its price.
"""

from gateway.core.names import BackendName
from gateway.core.ticket import Ticket


class StrictCommitment:
    """Counts every request with all that it may ever take."""

    def charge(self, ticket: Ticket, backend: BackendName, worst_blocks: int, output_tokens: int) -> int:
        return worst_blocks

    def limit_blocks(self, backend: BackendName, budget_blocks: int, reserve_blocks: int) -> int:
        return budget_blocks - reserve_blocks
