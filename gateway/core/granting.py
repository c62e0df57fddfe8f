"""Granting: who is granted now, and where. The book says what has happened; here the parts are asked in order.

Between two calls of the book nobody is left waiting who could be granted: no head of a line, and no ticket among the first
`lookahead` behind it. What makes room stirs the pools whose tickets may use it, and `settle` looks at those alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from gateway.core.backfill import Backfill
from gateway.core.decisions import NOTHING, Changes, Granted, Refused, Verdict
from gateway.core.drain import DrainRate
from gateway.core.guards import Guards
from gateway.core.lanes import Lanes
from gateway.core.ledger import BackendLedger, Ledger, Reservation
from gateway.core.line import Line, Waiting
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.placement import choose
from gateway.core.queue import Queue
from gateway.core.refusals import Refusals
from gateway.core.ticket import Need, Ticket

_age = attrgetter("age")


class Granting:
    """Moves tickets into lines, out of them, and into the ledger. The parts are the book's, and shared with it."""

    def __init__(
        self,
        *,
        observes: bool,
        ledger: Ledger,
        queue: Queue,
        backfill: Backfill,
        guards: Guards,
        refusals: Refusals,
        drains: dict[PoolName, DrainRate],
        lookahead: int,
    ) -> None:
        self._observes = observes
        self._ledger = ledger
        self._queue = queue
        self._backfill = backfill
        self._guards = guards
        self._refusals = refusals
        self._drains = drains
        self._lookahead = lookahead
        self._stirred: dict[Lanes, None] = {}  # pools in which somebody may have become grantable since they were last settled

    # The decision about one ticket

    def find_room(
        self, ticket: Ticket, line: Line, waiting: Waiting | None, *, is_joining: bool = True, now: float
    ) -> BackendLedger | None:
        """Where the ticket may run now. line: where it belongs. waiting: its place, None if nobody waits whom it could pass."""
        most_blocks: int | None = None
        if line.lane.has_cap or line.terms.cap_blocks is not None:
            most_blocks = self._queue.lanes(ticket.pool).room(line)
            if most_blocks is not None and most_blocks < 1:
                return None
        found: list[BackendLedger] = []
        for name in ticket.needs:
            backend = self._ledger.fits(ticket, name, most_blocks)
            if backend is None or not self._guards.admits(name, ticket.prompt_tokens):
                continue
            if waiting is None or not self._is_barred(waiting, backend, now=now):
                found.append(backend)
        if not found or (waiting is not None and not self._may_go(waiting, is_joining=is_joining, now=now)):
            return None
        return found[0] if len(found) == 1 else choose(ticket.affinity, found)

    def _is_barred(self, waiting: Waiting, backend: BackendLedger, *, now: float) -> bool:
        """Whether room on that backend is kept for somebody else. Nobody passes before it was looked whose turn it is by now:
        time, or the last grant, may have brought it to one who may not be passed any more."""
        if self._backfill.bars(waiting, backend, now=now):
            return True
        self._look_at_heads(backend.name, now=now)
        return self._backfill.bars(waiting, backend, now=now)

    def _may_go(self, waiting: Waiting, *, is_joining: bool, now: float) -> bool:
        """Whether a ticket for which there is room may take it, as far as others wait whom it would pass."""
        lanes = self._queue.lanes(waiting.ticket.pool)
        if lanes.is_held_back(waiting, now=now):
            return False
        # Further back nobody was tried since the room came free, so a newcomer must not be the first to be tried.
        return not is_joining or lanes.is_within(waiting, self._lookahead, now=now)

    # Moving tickets

    def draw(self, ticket: Ticket, line: Line) -> Waiting:
        blocks, seats = self._ledger.least_charge(ticket)
        return self._queue.draw(ticket, line, blocks=blocks, seats=seats)

    def enqueue(self, waiting: Waiting, *, now: float) -> None:
        self._queue.join(waiting, now=now)
        self._look_at_head(self._queue.lanes(waiting.ticket.pool), now=now)
        pool = waiting.ticket.pool
        if pool not in self._drains:
            self._drains[pool] = DrainRate()
        self._drains[pool].waits(True, now=now)

    def _look_at_heads(self, name: BackendName, *, now: float) -> None:
        for lanes in self._queue.pools_for(name):
            if lanes.requests:
                self._look_at_head(lanes, now=now)

    def _look_at_head(self, lanes: Lanes, *, now: float) -> None:
        """Who goes first in a pool may be somebody else now, or too old to be passed."""
        head = lanes.head(now=now)
        if head is not None:
            self._backfill.blocked(head, now=now)

    def reweigh(self, waiting: Waiting, needs: Mapping[BackendName, Need], *, now: float) -> None:
        """A waiting ticket needs something else than it did. It keeps its place and its passes."""
        was_collecting = waiting.is_collecting
        if self._backfill.left(waiting, now=now):
            self.stir_all(waiting.ticket.needs)
        ticket = replace(waiting.ticket, needs=needs)
        blocks, seats = self._ledger.least_charge(ticket)
        self._queue.reweigh(waiting, ticket, blocks=blocks, seats=seats, now=now)
        lanes = self._queue.lanes(ticket.pool)
        if was_collecting:  # the promise was made to it, whoever has come before it since
            self._backfill.blocked(waiting, now=now)
        self._look_at_head(lanes, now=now)
        self._stirred[lanes] = None

    def _remove(self, waiting: Waiting, *, now: float) -> None:
        """A ticket leaves its line, for whatever reason."""
        self._queue.remove(waiting, now=now)
        lanes = self._queue.lanes(waiting.ticket.pool)
        if not lanes.requests:
            self._drains[lanes.pool].waits(False, now=now)
        if self._backfill.left(waiting, now=now):
            self.stir_all(waiting.ticket.needs)

    def depart(self, waiting: Waiting, *, now: float) -> None:
        """A ticket leaves its line without a grant."""
        self._remove(waiting, now=now)
        waiting.line.policy.left(waiting.ticket)
        lanes = self._queue.lanes(waiting.ticket.pool)
        if lanes.requests > self._lookahead or lanes.room(waiting.line) is not None:
            self._stirred[lanes] = None  # somebody has moved up among those who are considered, or waits for no cap any more

    def dismiss(self, hopeless: list[Waiting], reason: RejectReason, *, now: float) -> list[Refused]:
        """Waiting tickets are refused for a reason that waiting does not cure."""
        for waiting in hopeless:
            self.depart(waiting, now=now)
        return [self._refusals.refuse(waiting.ticket, reason) for waiting in hopeless]

    def _expire(self, *, now: float) -> list[Refused]:
        due = self._queue.take_due(now=now)
        for waiting in due:
            self.depart(waiting, now=now)
        return [self._refusals.timed_out(waiting, now=now) for waiting in due]

    def grant(
        self,
        ticket: Ticket,
        line: Line,
        waiting: Waiting | None,
        backend: BackendLedger,
        *,
        verdict: Verdict | None = None,
        now: float,
    ) -> Granted:
        """Hold what the ticket needs. waiting: its place, None if nobody waits whom it could pass."""
        if waiting is not None:
            self._backfill.granted(waiting, backend, self._queue.pools_for(backend.name), now=now)
            if waiting.is_waiting:
                self._remove(waiting, now=now)
        name = backend.name
        reservation = self._ledger.hold(ticket, name, now=now)
        self._guards.granted(ticket.id, name, ticket.prompt_tokens, now=now)
        self._queue.took(reservation, line, now=now)
        line.policy.granted(ticket)
        if self._observes:
            self.observe_pressure(ticket, now=now)
        return Granted(ticket, name, reservation.need.worst_blocks, reservation.charged_blocks, verdict)

    def observe_pressure(self, ticket: Ticket, *, now: float) -> None:
        """In observe mode nobody ever waits; the drain counts while more is charged than the rules would have let in."""
        drain = self._drains.setdefault(ticket.pool, DrainRate())
        drain.waits(any(self._ledger.backend(name).is_over for name in ticket.needs), now=now)

    # Settling: whoever can be granted now is granted now

    def stir(self, name: BackendName) -> None:
        """Room may have come free on a backend: look at the pools whose tickets may run there."""
        for lanes in self._queue.pools_for(name):
            if lanes.requests:
                self._stirred[lanes] = None

    def stir_all(self, names: Iterable[BackendName]) -> None:
        for name in names:
            self.stir(name)

    def stir_for(self, reservation: Reservation) -> None:
        """What a ticket was charged came free, or part of it: also its tenant, which may have waited for that elsewhere."""
        if not self._queue.waiting:
            return
        if reservation.ticket.terms.cap_blocks is not None:
            self._stirred.update((lanes, None) for lanes in self._queue.pools() if lanes.requests)
        else:
            self.stir(reservation.backend)

    def settle(self, refused: Sequence[Refused] = (), *, released_blocks: int | None = 0, now: float) -> Changes:
        """End what is past its deadline, then grant until nobody who is considered can be granted: heads first, the oldest
        before the younger, then those who may pass them."""
        if not self._queue.waiting:
            if self._stirred:
                self._stirred.clear()
            return NOTHING if not refused and released_blocks == 0 else Changes((), tuple(refused), released_blocks)
        refused = (*refused, *self._expire(now=now))
        granted: list[Granted] = []
        while self._stirred:
            heads = [head for lanes in self._stirred if (head := lanes.head(now=now)) is not None]
            heads.sort(key=_age)
            behind = self._backfill.collecting_behind(heads)
            for waiting in sorted([*heads, *behind], key=_age) if behind else heads:
                grant = self._grant_if_room(waiting, now=now)
                if grant is not None:
                    granted.append(grant)  # and look again: another head is up, and room kept for this one may be free
                    break
                if not waiting.is_collecting:
                    self._backfill.blocked(waiting, now=now)
            else:
                self._stirred.clear()
                for index, head in enumerate(heads):
                    granted.extend(self._pass_head(head, now=now))
                    if self._stirred:  # room that was collected for the one just granted is free again: heads first
                        self._stirred.update(dict.fromkeys(self._queue.lanes(each.ticket.pool) for each in heads[index:]))
                        break
        return Changes(tuple(granted), refused, released_blocks)

    def _pass_head(self, head: Waiting, *, now: float) -> Iterator[Granted]:
        """Grant those behind a blocked head that fit and may pass it."""
        lanes = self._queue.lanes(head.ticket.pool)
        tried: set[TicketId] = {head.ticket.id}  # room only becomes less meanwhile
        while not self._stirred and self._has_room_behind(head):
            for waiting in lanes.considered(self._lookahead + 1, now=now):
                if waiting.ticket.id in tried:
                    continue
                tried.add(waiting.ticket.id)
                grant = self._grant_if_room(waiting, now=now)
                if grant is not None:
                    yield grant  # and look again: it may be the turn of somebody else now
                    break
            else:
                return

    def _has_room_behind(self, head: Waiting) -> bool:
        for name in self._queue.lanes(head.ticket.pool).backends:
            backend = self._ledger.backend(name)
            if backend.has_room and self._guards.has_room(name) and not self._backfill.bars_behind(head, backend):
                return True
        return False

    def _grant_if_room(self, waiting: Waiting, *, now: float) -> Granted | None:
        backend = self.find_room(waiting.ticket, waiting.line, waiting, is_joining=False, now=now)
        if backend is None:
            return None
        return self.grant(waiting.ticket, waiting.line, waiting, backend, now=now)
