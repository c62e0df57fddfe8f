"""The queue: every waiting ticket of every pool, in lines; found by id, by backend and by deadline.

Invariants, checked by tests after every step:
* a ticket stands in exactly one line, once, from join until it is removed;
* the blocks of a line are the sum over its tickets;
* next_deadline is the earliest deadline of a ticket that waits.

It does not know what fits: the book asks and decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core.deadlines import Deadlines
from gateway.core.line import Line, Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TicketId
from gateway.core.policies import PolicyFactory
from gateway.core.ticket import Ticket


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """max_requests: tickets that may wait in one lane of a pool. max_passes: how often a head that does not fit is passed.

    wait_margin: how much longer than predicted a wait may turn out; one that would then end too late is refused at once.
    lookahead: tickets behind a head that are considered for passing it. It bounds what one decision costs: with 64 a
    release costs well under a millisecond however long the line is, and who stands further back would rarely be the one
    that fits when none of 64 does.
    """

    max_requests: int = 1024
    max_passes: int = 16
    lookahead: int = 64
    wait_margin: float = 0.0

    def __post_init__(self) -> None:
        if self.max_requests < 0 or self.max_passes < 0 or self.lookahead < 0 or self.wait_margin < 0:
            raise ValueError(f"limits of a queue are not negative: {self}")


class Queue:
    """All lines. `sequence` numbers tickets as they come, so that no two ever compare equal."""

    def __init__(self, policy: PolicyFactory) -> None:
        self._policy = policy
        self._waiting: dict[TicketId, Waiting] = {}
        self._lines: dict[tuple[PoolName, LaneName], Line] = {}
        self._by_pool: dict[PoolName, list[Line]] = {}
        self._by_backend: dict[BackendName, list[Line]] = {}
        self._deadlines = Deadlines()
        self._sequence = 0

    def __contains__(self, ticket_id: TicketId) -> bool:
        return ticket_id in self._waiting

    def __len__(self) -> int:
        """Tickets waiting."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """Waiting tickets in the order in which they joined."""
        return iter(self._waiting.values())

    def find(self, ticket_id: TicketId) -> Waiting | None:
        return self._waiting.get(ticket_id)

    def line(self, pool: PoolName, lane: LaneName) -> Line:
        """The line of that lane and pool, empty if nobody joined it yet."""
        line = self._lines.get((pool, lane))
        if line is None:
            line = self._lines[pool, lane] = Line(pool, lane, self._policy())
            self._by_pool.setdefault(pool, []).append(line)
        return line

    def lines_in(self, pool: PoolName) -> list[Line]:
        """All lines of a pool."""
        return self._by_pool.get(pool, [])

    def lines_for(self, backend: BackendName) -> list[Line]:
        """Lines in which tickets stood, or stand, that may run on that backend."""
        return self._by_backend.get(backend, [])

    def has_waiting_in(self, pool: PoolName) -> bool:
        return any(self.lines_in(pool))

    def has_waiting_for(self, backend: BackendName) -> bool:
        """Whether a ticket waits that may run on that backend."""
        return any(backend in waiting.ticket.needs for line in self.lines_for(backend) for waiting in line)

    def draw(self, ticket: Ticket, *, blocks: int, seats: int) -> Waiting:
        """The place that the ticket would have if it joined now. Nothing changes yet."""
        self._sequence += 1
        line = self.line(ticket.pool, ticket.lane)
        return Waiting(ticket, line, sequence=self._sequence, blocks=blocks, seats=seats)

    def join(self, waiting: Waiting) -> None:
        """Stand in line at the place that was drawn. Raises ValueError if the ticket already waits."""
        ticket = waiting.ticket
        if ticket.id in self._waiting:
            raise ValueError(f"ticket {ticket.id} already waits")
        self._note_backends(waiting)
        waiting.line.join(waiting)
        self._waiting[ticket.id] = waiting
        self._deadlines.add(waiting)

    def reweigh(self, waiting: Waiting, ticket: Ticket, *, blocks: int, seats: int) -> None:
        """A waiting ticket needs something else than it did. Its place stays."""
        waiting.line.reweigh(waiting, ticket, blocks=blocks, seats=seats)
        self._note_backends(waiting)

    def _note_backends(self, waiting: Waiting) -> None:
        line = waiting.line
        for name in waiting.ticket.needs:
            if name not in line.backends:
                line.backends[name] = None
                self._by_backend.setdefault(name, []).append(line)

    def remove(self, waiting: Waiting) -> None:
        """Leave the line: granted, refused or gone."""
        waiting.line.remove(waiting)
        del self._waiting[waiting.ticket.id]
        self._deadlines.note_left(live=len(self._waiting))

    def next_deadline(self) -> float | None:
        return self._deadlines.earliest()

    def take_due(self, *, now: float) -> list[Waiting]:
        """Tickets that wait past their deadline, earliest first. The caller removes each of them."""
        return self._deadlines.take_due(now=now)

    @property
    def lines(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def __repr__(self) -> str:
        return "Queue: " + ("; ".join(map(repr, self._lines.values())) or "nobody ever waited")
