"""The book: the state machine that admission is. Pure and synchronous; time arrives as `now`, decisions leave as values.

`join` says at once whether a ticket is granted, waits, or is refused. Every other call returns the grants and refusals that
it made possible. Between calls nobody is left waiting who could be granted: no head of a line, and no ticket among the
first `lookahead` behind it. Nothing that joins makes room for others, so `join` answers for its own ticket only.

What is decided is decided by the parts: the ledger says what fits, guards what can be computed beside it, lines and their
policy who goes first, backfill who may pass, placement where, the drain rate how long. The book puts them in order and keeps
the invariants that they list.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gateway.core.backfill import Backfill
from gateway.core.commitment import Commitment, Ending
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused, Standing, Verdict
from gateway.core.drain import DrainRate
from gateway.core.guards import Guards
from gateway.core.ledger import BackendLedger, Budget, Ledger, Reservation
from gateway.core.line import Line, Waiting
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.pace import Pace
from gateway.core.placement import choose, least_bad
from gateway.core.policies import PolicyFactory
from gateway.core.queue import Queue, QueueLimits
from gateway.core.refusals import Refusals
from gateway.core.snapshots import BookSnapshot
from gateway.core.ticket import Need, Ticket


class Book:
    """One gateway's admission. `now` is monotonic seconds and never runs backwards. guards None: off."""

    def __init__(
        self,
        *,
        mode: Mode,
        commitment: Commitment,
        policy: PolicyFactory,
        limits: QueueLimits,
        guards: Guards | None = None,
    ) -> None:
        self._mode = mode
        self._limits = limits
        self._commitment = commitment
        self._guards = guards or Guards(is_on=False)
        self._ledger = Ledger(commitment)
        self._queue = Queue(policy)
        self._backfill = Backfill(max_passes=limits.max_passes)
        self._drains: dict[PoolName, DrainRate] = {}
        self._refusals = Refusals(self._ledger, self._queue, self._drains, self._guards, limits)
        self._stirred: dict[Line, None] = {}  # lines in which somebody may have become grantable since they were last settled
        self._draining = False

    # What happens to tickets

    def join(self, ticket: Ticket, *, now: float) -> Granted | Queued | Refused:
        """A request asks to run. What fits, with nobody ahead of it for that room, is granted at once.

        In observe mode everything that has a backend is granted, with what the rules said as its verdict.
        Raises ValueError if a ticket of this id waits or runs: that is the caller's bug.
        """
        if ticket.id in self._ledger or ticket.id in self._queue:
            raise ValueError(f"ticket {ticket.id} joined twice")
        if self._draining or not ticket.needs:
            return self._refusals.refuse(ticket, RejectReason.DRAINING if self._draining else RejectReason.NO_BACKEND)
        waiting = self._draw(ticket) if self._queue else None
        decision = self._decide(ticket, waiting, now=now)
        if isinstance(decision, BackendLedger):
            return self._grant(ticket, waiting, decision, now=now)
        if self._mode is Mode.OBSERVE:
            return self._grant(ticket, None, least_bad([*map(self._ledger.backend, ticket.needs)]), verdict=decision, now=now)
        if isinstance(decision, Queued):
            self._enqueue(waiting or self._draw(ticket), now=now)
        return decision

    def leave(self, ticket_id: TicketId, *, now: float) -> Changes:
        """A waiting ticket gives up. released_blocks is None if it does not wait: it was granted, refused, or never here."""
        waiting = self._queue.find(ticket_id)
        if waiting is None:
            return self._settle(released_blocks=None, now=now)
        self._depart(waiting, now=now)
        return self._settle(now=now)

    def release(self, ticket_id: TicketId, *, now: float) -> Changes:
        """A granted ticket has ended, however it ended. released_blocks is None if it holds nothing (any more)."""
        reservation = self._ledger.release(ticket_id)
        if reservation is None:
            return self._settle(released_blocks=None, now=now)
        self._guards.answered(ticket_id, now=None)
        pool = reservation.ticket.pool
        if pool in self._drains:
            self._drains[pool].released(reservation.charged_blocks, reservation.seats, now=now)
        self._observe_pressure(reservation.ticket, now=now)
        self._stir(reservation.backend)
        return self._settle(released_blocks=reservation.charged_blocks, now=now)

    def reweigh(self, ticket_id: TicketId, needs: Mapping[BackendName, Need], *, now: float) -> Changes:
        """The exact count of a ticket arrived, waiting or granted: this is what it needs instead, on each backend.

        A waiting ticket keeps its place and its passes. A granted one keeps its backend and its seats.
        released_blocks is None if the ticket neither waits nor runs. Raises KeyError if the backend on which it runs is not
        among its needs.
        """
        waiting = self._queue.find(ticket_id)
        if waiting is None:
            reservation = self._ledger.reservation(ticket_id)
            if reservation is None:
                return self._settle(released_blocks=None, now=now)
            return self._freed(reservation, self._ledger.reweigh(reservation, needs[reservation.backend]), now=now)
        self._reweigh(waiting, needs)
        hopeless = [waiting] if self._refusals.never_fits(waiting.ticket) else []
        return self._settle(self._dismiss(hopeless, RejectReason.KV_BUDGET, now=now), now=now)

    def resize(self, ticket_id: TicketId, worst_blocks: int, *, now: float) -> Changes:
        """A granted ticket may take `worst_blocks` (at least 1) from now on, fewer or more than before."""
        if worst_blocks < 1:
            raise ValueError(f"ticket {ticket_id} cannot take {worst_blocks} blocks")
        reservation = self._ledger.reservation(ticket_id)
        if reservation is None:
            return self._settle(released_blocks=None, now=now)
        freed = self._ledger.revise(reservation, worst_blocks=worst_blocks, output_tokens=reservation.output_tokens)
        return self._freed(reservation, freed, now=now)

    def progress(self, ticket_id: TicketId, output_tokens: int, *, now: float) -> Changes:
        """A granted ticket has produced that many tokens so far, in all its sequences. Progress never runs backwards."""
        reservation = self._ledger.reservation(ticket_id)
        if reservation is None:
            return self._settle(released_blocks=None, now=now)
        output_tokens = max(output_tokens, reservation.output_tokens)
        freed = self._ledger.revise(reservation, worst_blocks=reservation.worst_blocks, output_tokens=output_tokens)
        return self._freed(reservation, freed, now=now)

    def first_token(self, ticket_id: TicketId, *, was_seen: bool = True, now: float) -> Changes:
        """A granted ticket has its first token, so its prompt is computed. was_seen False: that is only supposed."""
        name = self._guards.answered(ticket_id, now=now if was_seen else None)
        if name is not None:
            self._stir(name)
        return self._settle(now=now)

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending, *, now: float) -> Changes:
        """A ticket that was granted has ended, with so many tokens: evidence for those that come."""
        if self._commitment.learn(ticket, output_tokens, ending):
            self._stir_all(ticket.needs)
        return self._settle(now=now)

    def expire(self, *, now: float) -> Changes:
        """Refuse what waits past its deadline. Every other call that returns changes does so as well."""
        return self._settle(now=now)

    def next_deadline(self) -> float | None:
        """When to call `expire` next; None if nobody waits."""
        return self._queue.next_deadline()

    # What happens around them

    def set_backend(
        self,
        name: BackendName,
        *,
        budget: Budget | None,
        serving: bool,
        foreign_blocks: int = 0,
        weighed_anew: Mapping[TicketId, Mapping[BackendName, Need]] | None = None,
        now: float,
    ) -> Changes:
        """What is known of a backend now; a new name adds it.

        budget None: its capacity is unknown, so nothing is granted there. serving False: nothing new is granted there, but its
        budget still tells what could ever fit. foreign_blocks: used by others than us. weighed_anew: what waiting tickets need
        now, where the engine has become another in more than its budget; others of these ids are left alone. What is held
        stays held. Tickets that have become larger than every budget are refused at once.
        """
        before = self._ledger.backend(name).budget
        self._ledger.set_backend(name, budget, serving=serving, foreign_blocks=foreign_blocks)
        for ticket_id, needs in (weighed_anew or {}).items():
            waiting = self._queue.find(ticket_id)
            if waiting is not None:
                self._reweigh(waiting, needs)
        hopeless: list[Waiting] = []
        if budget != before or weighed_anew:
            hopeless = [
                waiting for line in self._queue.lines_for(name) for waiting in line if self._refusals.never_fits(waiting.ticket)
            ]
        self._stir(name)
        refused = self._dismiss(hopeless, RejectReason.KV_BUDGET, now=now)
        return self._settle(refused, now=now)

    def read_engine(self, name: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> Changes:
        """A reading of an engine: what it has preempted so far (None: it does not tell), and whether an overrun of its cache
        fails every request there. Where the commitment draws a conclusion, what runs is charged by it at once."""
        if self._commitment.read_engine(name, preemptions, overrun_fails_all=overrun_fails_all, now=now):
            self._ledger.charge_anew(name)
            self._stir(name)
        return self._settle(now=now)

    def saw_gaps(self, name: BackendName, seconds: float, tokens: int, *, now: float) -> Changes:
        """Streams on a backend took `seconds` in all for `tokens` more tokens."""
        backend = self._ledger.backend(name)
        if self._guards.saw_gaps(name, seconds, tokens, running=backend.seats_held, now=now):
            backend.seat_limit = self._guards.seat_limit(name)
            self._stir(name)
        return self._settle(now=now)

    def drain(self, *, now: float) -> Changes:
        """The gateway is going down: who waits, and who joins from now on, is refused. What runs ends by itself."""
        self._draining = True
        return self._settle(self._dismiss([*self._queue], RejectReason.DRAINING, now=now), now=now)

    # What can be seen

    def has_waiting_for(self, backend: BackendName) -> bool:
        """Whether a ticket waits that could run on that backend."""
        return self._queue.has_waiting_for(backend)

    def pace(self, name: BackendName) -> Pace:
        """How fast a backend is seen to work. Whoever sees its answers tells it; guards and predictions go by it."""
        return self._guards.pace(name)

    def prefill_patience_s(self, ticket_id: TicketId, *, is_stream: bool) -> float:
        """Seconds from its grant after which a granted ticket's prompt counts as computed, whatever was seen."""
        return self._guards.expected_s(ticket_id, is_stream=is_stream)

    def standing(self, ticket_id: TicketId, *, now: float) -> Standing | None:
        """Where a ticket stands in line; None if it does not wait."""
        waiting = self._queue.find(ticket_id)
        return None if waiting is None else self._refusals.standing(waiting, now=now)

    def free_blocks(self, name: BackendName) -> int:
        """Blocks below a backend's limit that nobody is charged for; 0 while more is taken than may be."""
        return max(self._ledger.backend(name).free_blocks, 0)

    def snapshot(self, *, now: float) -> BookSnapshot:
        """The whole book as frozen records."""
        pools = {
            line.pool: {each.lane: each.snapshot() for each in self._queue.lines_in(line.pool)} for line in self._queue.lines
        }
        return BookSnapshot(
            mode=self._mode,
            draining=self._draining,
            backends={
                name: replace(backend.snapshot(), guards=self._guards.snapshot(name))
                for name, backend in self._ledger.backends.items()
            },
            pools=pools,
            drain_blocks_per_s={pool: drain.blocks_per_s(now=now) for pool, drain in self._drains.items()},
        )

    def __repr__(self) -> str:
        state = f"{self._mode}, draining" if self._draining else self._mode
        return f"Book ({state}): {len(self._ledger)} run, {len(self._queue)} wait. {self._ledger!r}. {self._queue!r}"

    # The decision about one ticket

    def _decide(self, ticket: Ticket, waiting: Waiting | None, *, now: float) -> BackendLedger | Queued | Refused:
        """What the rules say about a ticket that joins now, obeyed or only reported.

        waiting: its place, None if nobody waits.
        """
        if waiting is None or waiting.line.position(waiting) <= self._limits.lookahead:
            # Further back nobody was tried since the room came free, so a newcomer must not be the first to be tried.
            backend = self._find_room(ticket, waiting)
            if backend is not None:
                return backend
        return self._refusals.why_not_wait(ticket, now=now) or Queued(ticket)

    def _find_room(self, ticket: Ticket, waiting: Waiting | None) -> BackendLedger | None:
        """Where the ticket may run now. waiting: its place in line, None if nobody waits whom it could pass."""
        found: list[BackendLedger] = []
        for name in ticket.needs:
            backend = self._ledger.fits(ticket, name)
            if backend is None or not self._guards.admits(name, ticket.prompt_tokens):
                continue
            if waiting is None or not self._backfill.bars(waiting, backend):
                found.append(backend)
        return choose(ticket.affinity, found) if found else None

    # Moving tickets

    def _draw(self, ticket: Ticket) -> Waiting:
        blocks, seats = self._ledger.least_charge(ticket)
        return self._queue.draw(ticket, blocks=blocks, seats=seats)

    def _enqueue(self, waiting: Waiting, *, now: float) -> None:
        self._queue.join(waiting)
        if waiting.line.head is waiting:
            self._backfill.blocked(waiting)
        pool = waiting.ticket.pool
        if pool not in self._drains:
            self._drains[pool] = DrainRate()
        self._drains[pool].waits(True, now=now)

    def _reweigh(self, waiting: Waiting, needs: Mapping[BackendName, Need]) -> None:
        """A waiting ticket needs something else than it did. It keeps its place and its passes."""
        if self._backfill.left(waiting):
            self._stir_all(waiting.ticket.needs)
        ticket = replace(waiting.ticket, needs=needs)
        blocks, seats = self._ledger.least_charge(ticket)
        self._queue.reweigh(waiting, ticket, blocks=blocks, seats=seats)
        if waiting.line.head is waiting:
            self._backfill.blocked(waiting)
        self._stirred[waiting.line] = None

    def _remove(self, waiting: Waiting, *, now: float) -> None:
        """A ticket leaves its line, for whatever reason."""
        self._queue.remove(waiting)
        pool = waiting.ticket.pool
        if not self._queue.has_waiting_in(pool):
            self._drains[pool].waits(False, now=now)
        if self._backfill.left(waiting):
            self._stir_all(waiting.ticket.needs)

    def _depart(self, waiting: Waiting, *, now: float) -> None:
        """A ticket leaves its line without a grant."""
        self._remove(waiting, now=now)
        waiting.line.policy.left(waiting.ticket)
        if len(waiting.line) > self._limits.lookahead:
            self._stirred[waiting.line] = None  # somebody has moved up among those who are considered

    def _dismiss(self, hopeless: list[Waiting], reason: RejectReason, *, now: float) -> list[Refused]:
        """Waiting tickets are refused for a reason that waiting does not cure."""
        for waiting in hopeless:
            self._depart(waiting, now=now)
        return [self._refusals.refuse(waiting.ticket, reason) for waiting in hopeless]

    def _expire(self, *, now: float) -> list[Refused]:
        due = self._queue.take_due(now=now)
        for waiting in due:
            self._depart(waiting, now=now)
        return [self._refusals.timed_out(waiting.ticket, now=now) for waiting in due]

    def _grant(
        self, ticket: Ticket, waiting: Waiting | None, backend: BackendLedger, *, verdict: Verdict | None = None, now: float
    ) -> Granted:
        """Hold what the ticket needs. waiting: its place, None if nobody waits whom it could pass."""
        reservation = self._ledger.hold(ticket, backend.name, now=now)
        self._guards.granted(ticket.id, backend.name, ticket.prompt_tokens, now=now)
        if waiting is not None:
            self._backfill.granted(waiting, backend, self._queue.lines_for(backend.name))
        self._queue.line(ticket.pool, ticket.lane).policy.granted(ticket)
        self._observe_pressure(ticket, now=now)
        return Granted(ticket, backend.name, reservation.worst_blocks, reservation.charged_blocks, verdict)

    def _freed(self, reservation: Reservation, freed_blocks: int, *, now: float) -> Changes:
        """More is known of a running ticket, and by that so many blocks came free, or fewer than none were taken."""
        if freed_blocks > 0:
            pool = reservation.ticket.pool
            if pool in self._drains:
                self._drains[pool].shrunk(freed_blocks)
            self._stir(reservation.backend)
        return self._settle(released_blocks=max(0, freed_blocks), now=now)

    def _observe_pressure(self, ticket: Ticket, *, now: float) -> None:
        """In observe mode nobody ever waits; the drain counts while more is charged than the rules would have let in."""
        if self._mode is Mode.OBSERVE:
            drain = self._drains.setdefault(ticket.pool, DrainRate())
            drain.waits(any(self._ledger.backend(name).is_over for name in ticket.needs), now=now)

    # Settling: whoever can be granted now is granted now

    def _stir(self, name: BackendName) -> None:
        """Room may have come free on a backend: look at the lines whose tickets may run there."""
        for line in self._queue.lines_for(name):
            self._stirred[line] = None

    def _stir_all(self, names: Iterable[BackendName]) -> None:
        for name in names:
            self._stir(name)

    def _settle(self, refused: list[Refused] | None = None, *, released_blocks: int | None = 0, now: float) -> Changes:
        """End what is past its deadline, then grant until nobody who is considered can be granted: heads first, the oldest
        before the younger, then those who may pass them."""
        refused = refused or []
        if not self._queue:
            self._stirred.clear()
            return Changes((), tuple(refused), released_blocks)
        refused += self._expire(now=now)
        granted: list[Granted] = []
        while self._stirred:
            heads = sorted((line.head for line in self._stirred if line.head is not None), key=lambda head: head.age)
            for head in heads:
                grant = self._grant_if_room(head, now=now)
                if grant is not None:
                    granted.append(grant)  # and look again: another head is up, and room kept for this one may be free
                    break
                self._backfill.blocked(head)
            else:
                self._stirred.clear()
                for index, head in enumerate(heads):
                    granted.extend(self._pass_head(head, now=now))
                    if self._stirred:  # room that was collected for the one just granted is free again: heads first
                        self._stirred.update(dict.fromkeys(each.line for each in heads[index:]))
                        break
        return Changes(tuple(granted), tuple(refused), released_blocks)

    def _pass_head(self, head: Waiting, *, now: float) -> Iterator[Granted]:
        """Grant those behind a blocked head that fit and may pass it."""
        line = head.line
        position = 1
        is_open = self._has_room_behind(head)
        while is_open and not self._stirred and position < len(line) and position <= self._limits.lookahead:
            grant = self._grant_if_room(line[position], now=now)
            if grant is None:
                position += 1
            else:
                yield grant
                is_open = self._has_room_behind(head)

    def _has_room_behind(self, head: Waiting) -> bool:
        backends = (self._ledger.backend(name) for name in head.line.backends)
        return any(
            backend.has_room and self._guards.has_room(backend.name) and not self._backfill.bars_behind(head, backend)
            for backend in backends
        )

    def _grant_if_room(self, waiting: Waiting, *, now: float) -> Granted | None:
        backend = self._find_room(waiting.ticket, waiting)
        if backend is None:
            return None
        self._remove(waiting, now=now)
        return self._grant(waiting.ticket, waiting, backend, now=now)
