"""Commitment: how much of a demand is counted as held, and how much may be counted in all. One file each."""

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.core.commitment.strict import StrictCommitment
from gateway.core.names import BackendName
from gateway.core.ticket import Ticket


class Commitment(Protocol):
    """Asked anew at every decision, so one that learns may answer differently each time.

    A charge is a sum over requests, never a verdict over all of them: so that lines, tenants and a shared book can add it.
    """

    def charge(self, ticket: Ticket, backend: BackendName, worst_blocks: int, output_tokens: int) -> int:
        """Blocks to count for a request that may take `worst_blocks` and has `output_tokens` so far; 1 .. worst_blocks."""
        ...

    def limit_blocks(self, backend: BackendName, budget_blocks: int, reserve_blocks: int) -> int:
        """Blocks that may be charged on a backend in all, foreign ones included; at most budget - reserve."""
        ...


COMMITMENTS: Mapping[str, Callable[[], Commitment]] = {"strict": StrictCommitment}
