"""Open requests: every request from its head's arrival to its end, as the console and the gauges see it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.core.names import TicketId


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One open request, without anything of its content. None: not known yet, or nobody said.

    phase_s: since it entered its phase. prompt_tokens: counted or bounded. output_tokens: events with text so far.
    """

    ticket_id: TicketId
    request_id: str
    dialect: str
    phase: str
    model: str
    tenant: str
    lane: str
    backend: str | None
    age_s: float
    phase_s: float
    blocks: int | None
    prompt_tokens: int | None
    cap_tokens: int | None
    output_tokens: int | None
    is_stream: bool | None


class OpenRequest(Protocol):
    @property
    def ticket_id(self) -> TicketId: ...

    @property
    def phase(self) -> str: ...

    def row(self, now: float) -> RequestRow:
        """What is known of it at that instant, in monotonic seconds."""
        ...


class OpenRequests:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._open: dict[TicketId, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._open.values())

    def add(self, request: OpenRequest) -> None:
        self._open[request.ticket_id] = request

    def discard(self, request: OpenRequest) -> None:
        self._open.pop(request.ticket_id, None)

    def find(self, ticket_id: TicketId) -> OpenRequest | None:
        return self._open.get(ticket_id)

    def phases(self) -> Counter[str]:
        """How many are in each phase."""
        return Counter(request.phase for request in self._open.values())
