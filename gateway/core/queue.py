"""The queue: every waiting ticket of every pool, in the lines of its lanes; found by id, by backend and by deadline.

Invariants, checked by tests after every step:
* a ticket stands in exactly one line, once, from join until it is removed;
* the blocks of a line and of a lane are the sums over their tickets, waiting and held;
* the requests of a tenant are those that wait and those that run, over all pools;
* next_deadline is the earliest deadline of a ticket that waits.

It does not know what fits: the book asks and decides.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.deadlines import Deadlines
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.lanes import Lanes, TenantUse
from gateway.core.ledger import Reservation
from gateway.core.line import Line, Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TenantName, TicketId
from gateway.core.policies import PolicyFactory
from gateway.core.tenant import ANONYMOUS_TERMS, TenantTerms
from gateway.core.ticket import Ticket

# A wait may turn out shorter than predicted by so much. Who could still be in time then waits, though some will in vain: of
# those who are refused at once, less than one in twenty would have been (tests/simulator/test_predicted_wait.py).
WAIT_MARGIN: Final = 0.5


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """max_requests: tickets that may wait in one lane of a pool, where the lane's own terms say nothing.

    max_passes, max_age_s: how often a head that does not fit is passed, and how old it may be when it is passed.
    wait_margin: by what part a wait may turn out shorter than predicted; refused at once is one that would end too late even
    then. Below 1.
    lookahead: tickets behind a head that are considered for passing it. It bounds what one decision costs: with 64 a
    release costs well under a millisecond however long the line is, and who stands further back would rarely be the one
    that fits when none of 64 does.
    """

    max_requests: int = 1024
    max_passes: int = 16
    lookahead: int = 64
    wait_margin: float = 0.0
    max_age_s: float = float("inf")

    def __post_init__(self) -> None:
        least = min(self.max_requests, self.max_passes, self.lookahead, self.wait_margin, self.max_age_s)
        if not least >= 0:
            raise ValueError(f"limits of a queue are not negative: {self}")
        if self.wait_margin >= 1:
            raise ValueError(f"a margin of a whole wait would refuse nobody: {self}")


_KEPT: Final = 0.9  # of the past at each release: a memory of about ten
_NEW: Final = 1 - _KEPT


def _no_budget(name: BackendName) -> int:
    return 0


class Queue:
    """All lines, and the shares that their tenants have. `sequence` numbers tickets as they come, so that no two ever compare
    equal. max_requests: may wait in a lane whose terms do not say. budget_of: blocks of a backend, 0 while unknown."""

    def __init__(
        self,
        policy: PolicyFactory,
        lanes: LaneTable = STANDARD_ONLY,
        max_requests: int = 1024,
        budget_of: Callable[[BackendName], int] = _no_budget,
    ) -> None:
        self._policy = policy
        self._table = lanes
        self._max_requests = max_requests
        self._budget_of = budget_of
        self._waiting: dict[TicketId, Waiting] = {}
        self.waiting: Mapping[TicketId, Waiting] = self._waiting  # in the order in which they joined
        self._uses: dict[TenantName, TenantUse] = {}
        self._pools: dict[PoolName, Lanes] = {}
        self._by_backend: dict[BackendName, list[Lanes]] = {}
        self._deadlines = Deadlines()
        self._sequence = 0

    def __len__(self) -> int:
        """Tickets waiting."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """Waiting tickets in the order in which they joined."""
        return iter(self._waiting.values())

    def find(self, ticket_id: TicketId) -> Waiting | None:
        return self._waiting.get(ticket_id)

    def lanes(self, pool: PoolName) -> Lanes:
        """The lanes of a pool."""
        lanes = self._pools.get(pool)
        if lanes is None:
            lanes = self._pools[pool] = Lanes(pool, self._table, self._policy, self._uses, self._max_requests, self._budget_of)
        return lanes

    def line(self, pool: PoolName, lane: LaneName, terms: TenantTerms = ANONYMOUS_TERMS, *, now: float) -> Line:
        """The line of a tenant in that lane and pool, empty if nobody joined it yet."""
        return self.lanes(pool).line(lane, terms, now=now)

    def line_of(self, ticket: Ticket, *, now: float) -> Line:
        """The line to which a ticket that has come belongs."""
        lanes = self._pools.get(ticket.pool) or self.lanes(ticket.pool)
        backends = lanes.backends
        for name in ticket.needs:
            if name not in backends:
                self._note_backend(lanes, name)
        return lanes.line(ticket.lane, ticket.terms, now=now)

    def pools(self) -> Iterator[Lanes]:
        """The lanes of each pool."""
        return iter(self._pools.values())

    def pools_for(self, backend: BackendName) -> list[Lanes]:
        """The lanes of the pools whose tickets may run, or might have run, on that backend."""
        return self._by_backend.get(backend, [])

    def has_waiting_for(self, backend: BackendName) -> bool:
        """Whether a ticket waits that may run on that backend."""
        return any(backend in waiting.ticket.needs for lanes in self.pools_for(backend) for waiting in lanes)

    def draw(self, ticket: Ticket, line: Line, *, blocks: int, seats: int) -> Waiting:
        """The place that the ticket would have if it joined now the line to which it belongs. Nothing changes yet."""
        self._sequence += 1
        return Waiting(ticket, line, sequence=self._sequence, blocks=blocks, seats=seats)

    def join(self, waiting: Waiting, *, now: float) -> None:
        """Stand in line at the place that was drawn. Raises ValueError if the ticket already waits."""
        ticket = waiting.ticket
        if ticket.id in self._waiting:
            raise ValueError(f"ticket {ticket.id} already waits")
        self.lanes(ticket.pool).join(waiting, now=now)
        self._use(ticket.tenant).requests += 1
        self._waiting[ticket.id] = waiting
        self._deadlines.add(waiting)

    def reweigh(self, waiting: Waiting, ticket: Ticket, *, blocks: int, seats: int, now: float) -> None:
        """A waiting ticket needs something else than it did. Its place stays."""
        lanes = self.lanes(ticket.pool)
        lanes.reweigh(waiting, ticket, blocks=blocks, seats=seats, now=now)
        for name in ticket.needs:
            if name not in lanes.backends:
                self._note_backend(lanes, name)

    def remove(self, waiting: Waiting, *, now: float) -> None:
        """Leave the line: granted, refused or gone."""
        self.lanes(waiting.ticket.pool).remove(waiting, now=now)
        del self._waiting[waiting.ticket.id]
        self._deadlines.note_left(live=len(self._waiting))
        self._ended(waiting.ticket.tenant)

    def next_deadline(self) -> float | None:
        return self._deadlines.earliest()

    def take_due(self, *, now: float) -> list[Waiting]:
        """Tickets that wait past their deadline, earliest first. The caller removes each of them."""
        return self._deadlines.take_due(now=now)

    # What is held

    def requests_of(self, tenant: TenantName) -> int:
        """Requests of a tenant that wait or run."""
        use = self._uses.get(tenant)
        return 0 if use is None else use.requests

    def took(self, reservation: Reservation, line: Line, *, now: float) -> None:
        """A ticket of that line, which stands in it no more, was granted."""
        tenant, lane, blocks = line.terms.name, line.lane, reservation.charged_blocks
        use = self._uses.get(tenant) or self._use(tenant)
        use.requests += 1
        use.held_blocks += blocks
        if not line.held_blocks:
            lane.idle.pop(tenant, None)
        reservation.line = line
        reservation.hold_s = hold_s = lane.hold_s
        if self._waiting:
            self._pools[lane.pool].took(line, blocks, hold_s, now=now)
        else:  # no turn depends on it
            line.held_blocks += blocks
            lane.held_blocks += blocks
            expected = blocks * hold_s
            line.outlook += expected
            lane.outlook += expected

    def changed(self, reservation: Reservation, blocks: int, *, now: float) -> None:
        """What is charged for a running ticket grew by so many blocks, or shrank by that, where they are negative."""
        line = reservation.line
        self._uses[line.terms.name].held_blocks += blocks
        self._pools[line.lane.pool].charge(line, blocks, reservation.hold_s, now=now)
        if blocks < 0 and self._waiting and line.terms.cap_blocks is not None:
            self._free(line.terms, now=now)

    def gave(self, reservation: Reservation, *, now: float) -> None:
        """A running ticket has ended and gave back all that it was charged."""
        line, blocks = reservation.line, reservation.charged_blocks
        tenant = line.terms.name
        use = self._uses[tenant]
        use.held_blocks -= blocks
        use.requests -= 1
        if not use.requests:
            del self._uses[tenant]
        lane, seconds = line.lane, reservation.hold_s
        lane.hold_s = _KEPT * lane.hold_s + _NEW * (now - reservation.started)
        if self._waiting:
            self._pools[lane.pool].charge(line, -blocks, seconds, now=now)
            if line.terms.cap_blocks is not None:
                self._free(line.terms, now=now)
        else:  # no turn depends on it
            line.held_blocks -= blocks
            lane.held_blocks -= blocks
            line.outlook = line.outlook - blocks * seconds if line.held_blocks else 0.0
            lane.outlook = lane.outlook - blocks * seconds if lane.held_blocks else 0.0
        if not line.held_blocks:
            line.rest()

    def _free(self, terms: TenantTerms, *, now: float) -> None:
        """A tenant with a cap holds less than it did: where that held it back it takes turns again."""
        for lanes in self._pools.values():
            for lane in lanes.lanes.values():
                line = lane.lines.get(terms.name)
                if line is not None and line.is_parked:
                    lanes.unpark(line, now=now)

    def _use(self, tenant: TenantName) -> TenantUse:
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = TenantUse()
        return use

    def _ended(self, tenant: TenantName) -> None:
        use = self._uses[tenant]
        use.requests -= 1
        if not use.requests:
            del self._uses[tenant]

    def _note_backend(self, lanes: Lanes, name: BackendName) -> None:
        lanes.backends[name] = None
        self._by_backend.setdefault(name, []).append(lanes)

    def __repr__(self) -> str:
        lanes = [repr(lane) for lanes in self._pools.values() for lane in lanes.lanes.values()]
        return "Queue: " + ("; ".join(lanes) or "nobody ever waited")
