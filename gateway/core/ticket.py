"""Ticket: one request's place in admission, in blocks and seats. From here on nothing talks about text.

What is made for every request is not frozen, which would make it three times as dear; nobody changes it all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.geometry import Weighing
from gateway.core.names import STANDARD_LANE, BackendName, LaneName, PoolName, TenantName, TicketId
from gateway.core.tenant import ANONYMOUS_TERMS, TenantTerms


@dataclass(slots=True)
class Need:
    """What a ticket would hold on one backend: at most `worst_blocks` blocks, and one seat per sequence. Both at least 1.

    For commitments that forecast: prompt_tokens: of the longest prompt among its sequences. output_tokens: the most that one
    sequence can produce there. weighing: how tokens become blocks, None where the worst is all that is known.
    """

    worst_blocks: int
    seats: int = 1
    prompt_tokens: int = 0
    output_tokens: int = 0
    weighing: Weighing | None = None

    def __post_init__(self) -> None:
        if self.worst_blocks < 1 or self.seats < 1:
            raise ValueError(f"a request holds at least one block and one seat, not {self}")


@dataclass(slots=True)
class Ticket:
    """A request as the book sees it.

    needs: every backend of the pool that the request may run on; backends count in blocks of their own.
    arrived, deadline: monotonic seconds; arrived is when the request's head came, and the deadline ends the waiting only.
    terms: of the tenant whose request it is. priority: within the tenant's line, by a policy that looks at it; the lower
    number goes first. affinity: what placement hashes; b"" has no favourite. prompt_tokens: of all its prompts, each once,
    as far as they are counted. cap_tokens: the output cap of one sequence that was asked for, None if none was. family:
    whose past answers tell how long this one becomes: a model on an engine's version. returns: it was refused, told when to
    come back, and has; then arrived is when it came first.
    """

    id: TicketId
    pool: PoolName
    needs: Mapping[BackendName, Need]
    arrived: float
    deadline: float
    lane: LaneName = STANDARD_LANE
    terms: TenantTerms = ANONYMOUS_TERMS
    priority: int = 0
    affinity: bytes = b""
    prompt_tokens: int = 0
    cap_tokens: int | None = None
    family: str = ""
    returns: bool = False

    @property
    def tenant(self) -> TenantName:
        return self.terms.name
