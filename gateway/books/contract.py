"""BookContract: what admission asks of a book, wherever it is kept. core/book.py says what each call promises."""

from collections.abc import Mapping
from typing import Protocol

from gateway.core.commitment import Ending
from gateway.core.decisions import Changes, Granted, Queued, Refused
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, TicketId
from gateway.core.pace import Pace
from gateway.core.snapshots import BookSnapshot
from gateway.core.ticket import Need, Ticket


class BookContract(Protocol):
    """Plain calls that never wait, with `now` in monotonic seconds. One caller: the controller."""

    def join(self, ticket: Ticket, *, now: float) -> Granted | Queued | Refused: ...

    def leave(self, ticket_id: TicketId, *, now: float) -> Changes: ...

    def release(self, ticket_id: TicketId, *, now: float) -> Changes: ...

    def reweigh(self, ticket_id: TicketId, needs: Mapping[BackendName, Need], *, now: float) -> Changes: ...

    def resize(self, ticket_id: TicketId, worst_blocks: int, *, now: float) -> Changes: ...

    def progress(self, ticket_id: TicketId, output_tokens: int, *, now: float) -> Changes: ...

    def first_token(self, ticket_id: TicketId, *, was_seen: bool = True, now: float) -> Changes: ...

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending, *, now: float) -> Changes: ...

    def expire(self, *, now: float) -> Changes: ...

    def next_deadline(self) -> float | None: ...

    def set_backend(
        self,
        name: BackendName,
        *,
        budget: Budget | None,
        serving: bool,
        foreign_blocks: int = 0,
        weighed_anew: Mapping[TicketId, Mapping[BackendName, Need]] | None = None,
        now: float,
    ) -> Changes: ...

    def read_engine(self, name: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> Changes: ...

    def saw_gaps(self, name: BackendName, seconds: float, tokens: int, *, now: float) -> Changes: ...

    def drain(self, *, now: float) -> Changes: ...

    def pace(self, name: BackendName) -> Pace: ...

    def prefill_patience_s(self, ticket_id: TicketId, *, is_stream: bool) -> float: ...

    def has_waiting_for(self, backend: BackendName) -> bool: ...

    def snapshot(self, *, now: float) -> BookSnapshot: ...
