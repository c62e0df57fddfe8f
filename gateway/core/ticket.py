"""Ticket: one request's place in admission, in blocks and seats. From here on nothing talks about text."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.names import ANONYMOUS, STANDARD_LANE, BackendName, LaneName, PoolName, TenantName, TicketId


@dataclass(frozen=True, slots=True)
class Need:
    """What a ticket would hold on one backend: at most `worst_blocks` blocks, and one seat per sequence. Both at least 1."""

    worst_blocks: int
    seats: int = 1

    def __post_init__(self) -> None:
        if self.worst_blocks < 1 or self.seats < 1:
            raise ValueError(f"a request holds at least one block and one seat, not {self}")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request as the book sees it.

    needs: every backend of the pool that the request may run on; backends count in blocks of their own.
    arrived, deadline: monotonic seconds; arrived is when the request's head came, and the deadline ends the waiting only.
    affinity: what placement hashes; b"" has no favourite. prompt_tokens, cap_tokens: for commitments that forecast.
    """

    id: TicketId
    pool: PoolName
    needs: Mapping[BackendName, Need]
    arrived: float
    deadline: float
    lane: LaneName = STANDARD_LANE
    tenant: TenantName = ANONYMOUS
    priority: int = 0
    affinity: bytes = b""
    prompt_tokens: int = 0
    cap_tokens: int = 0
