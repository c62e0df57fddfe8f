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
from operator import attrgetter

from gateway.core.backfill import Backfill
from gateway.core.commitment import Commitment, Ending
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused, Standing, Verdict
from gateway.core.drain import DrainRate
from gateway.core.guards import Guards
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.lanes import Lanes
from gateway.core.ledger import BackendLedger, Budget, Ledger, Reservation
from gateway.core.line import Line, Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.pace import Pace
from gateway.core.placement import choose, least_bad
from gateway.core.policies import PolicyFactory
from gateway.core.queue import Queue, QueueLimits
from gateway.core.refusals import Refusals
from gateway.core.snapshots import BookSnapshot, Holding
from gateway.core.ticket import Need, Ticket
from gateway.core.waits import WaitSnapshot, wait_snapshots

_age = attrgetter("age")


class Book:
    """One gateway's admission. `now` is monotonic seconds and never runs backwards. guards None: off."""

    def __init__(
        self,
        *,
        mode: Mode,
        commitment: Commitment,
        policy: PolicyFactory,
        limits: QueueLimits,
        lanes: LaneTable = STANDARD_ONLY,
        guards: Guards | None = None,
    ) -> None:
        self._mode = mode
        self._limits = limits
        self._commitment = commitment
        self._guards = guards or Guards(is_on=False)
        self._ledger = Ledger(commitment)
        self._queue = Queue(policy, lanes, limits.max_requests, self._budget_of)
        self._backfill = Backfill(self._queue, max_passes=limits.max_passes, max_age_s=limits.max_age_s)
        self._drains: dict[PoolName, DrainRate] = {}
        self._refusals = Refusals(self._ledger, self._queue, self._drains, self._guards, limits)
        self._stirred: dict[Lanes, None] = {}  # pools in which somebody may have become grantable since they were last settled
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
        line = self._queue.line_of(ticket, now=now)
        waiting = self._draw(ticket, now=now) if self._queue else None
        verdict: Verdict | None = self._refusals.by_tenant(ticket)
        if verdict is None:
            backend = self._find_room(ticket, line, waiting, now=now)
            if backend is not None:
                return self._grant(ticket, line, waiting, backend, now=now)
            waiting = waiting or self._draw(ticket, now=now)
            verdict = self._refusals.why_not_wait(waiting, now=now)
        if self._mode is Mode.OBSERVE:
            backend = least_bad([*map(self._ledger.backend, ticket.needs)])
            return self._grant(ticket, line, None, backend, verdict=verdict or Queued(ticket), now=now)
        if verdict is not None:
            return verdict
        assert waiting is not None, "who is not refused has a place"
        self._enqueue(waiting, now=now)
        return Queued(ticket)

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
        self._queue.gave(reservation.ticket, reservation.charged_blocks, now=now)
        pool = reservation.ticket.pool
        if pool in self._drains:
            self._drains[pool].released(reservation.charged_blocks, reservation.seats, now=now)
        self._observe_pressure(reservation.ticket, now=now)
        self._stir_for(reservation)
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
        self._reweigh(waiting, needs, now=now)
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
                self._reweigh(waiting, needs, now=now)
        hopeless: list[Waiting] = []
        if budget != before or weighed_anew:
            hopeless = [
                waiting
                for lanes in self._queue.pools_for(name)
                for waiting in lanes
                if self._refusals.never_fits(waiting.ticket)
            ]
        self._stir(name)
        refused = self._dismiss(hopeless, RejectReason.KV_BUDGET, now=now)
        return self._settle(refused, now=now)

    def read_engine(self, name: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> Changes:
        """A reading of an engine: what it has preempted so far (None: it does not tell), and whether an overrun of its cache
        fails every request there. Where the commitment draws a conclusion, what runs is charged by it at once."""
        if self._commitment.read_engine(name, preemptions, overrun_fails_all=overrun_fails_all, now=now):
            for reservation, freed_blocks in self._ledger.charge_anew(name):
                self._queue.changed(reservation.ticket, -freed_blocks, now=now)
                self._stir_for(reservation)
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
        return BookSnapshot(
            mode=self._mode,
            draining=self._draining,
            backends={
                name: replace(backend.snapshot(), guards=self._guards.snapshot(name))
                for name, backend in self._ledger.backends.items()
            },
            pools={lanes.pool: lanes.snapshot() for lanes in self._queue.pools()},
            drain_blocks_per_s={pool: drain.blocks_per_s(now=now) for pool, drain in self._drains.items()},
        )

    def waits(self, *, most: int, now: float) -> tuple[WaitSnapshot, ...]:
        """The first `most` tickets of every lane, each with what it waits for."""
        return tuple(wait_snapshots(self._queue, self._ledger, self._guards, self._backfill, most=most, now=now))

    def charged_by_lane(self) -> Mapping[BackendName, Mapping[LaneName, int]]:
        """Blocks charged on each backend where any are, by lane. It looks at everything that runs."""
        return self._ledger.charged_by_lane()

    def holding(self, ticket_id: TicketId) -> Holding | None:
        """What a granted ticket holds now, None if nothing (any more)."""
        reservation = self._ledger.reservation(ticket_id)
        if reservation is None:
            return None
        return Holding(reservation.charged_blocks, reservation.worst_blocks, reservation.output_tokens)

    def __repr__(self) -> str:
        state = f"{self._mode}, draining" if self._draining else self._mode
        return f"Book ({state}): {len(self._ledger)} run, {len(self._queue)} wait. {self._ledger!r}. {self._queue!r}"

    # The decision about one ticket

    def _find_room(
        self, ticket: Ticket, line: Line, waiting: Waiting | None, *, is_joining: bool = True, now: float
    ) -> BackendLedger | None:
        """Where the ticket may run now. line: where it belongs. waiting: its place, None if nobody waits whom it could pass."""
        most_blocks = self._queue.lanes(ticket.pool).room(line)
        if most_blocks is not None and most_blocks < 1:
            return None
        found: list[BackendLedger] = []
        for name in ticket.needs:
            backend = self._ledger.fits(ticket, name, most_blocks)
            if backend is None or not self._guards.admits(name, ticket.prompt_tokens):
                continue
            if waiting is not None:
                if is_joining:  # time alone may have made a head too old to be passed
                    self._look_at_heads(name, now=now)
                if self._backfill.bars(waiting, backend, now=now):
                    continue
            found.append(backend)
        if not found or (waiting is not None and not self._may_go(waiting, is_joining=is_joining, now=now)):
            return None
        return choose(ticket.affinity, found)

    def _may_go(self, waiting: Waiting, *, is_joining: bool, now: float) -> bool:
        """Whether a ticket for which there is room may take it, as far as others wait whom it would pass."""
        lanes = self._queue.lanes(waiting.ticket.pool)
        if lanes.is_held_back(waiting, now=now):
            return False
        # Further back nobody was tried since the room came free, so a newcomer must not be the first to be tried.
        return not is_joining or lanes.is_within(waiting, self._limits.lookahead, now=now)

    # Moving tickets

    def _draw(self, ticket: Ticket, *, now: float) -> Waiting:
        blocks, seats = self._ledger.least_charge(ticket)
        return self._queue.draw(ticket, blocks=blocks, seats=seats, now=now)

    def _enqueue(self, waiting: Waiting, *, now: float) -> None:
        self._queue.join(waiting, now=now)
        self._look_at_head(self._queue.lanes(waiting.ticket.pool), now=now)
        pool = waiting.ticket.pool
        if pool not in self._drains:
            self._drains[pool] = DrainRate()
        self._drains[pool].waits(True, now=now)

    def _look_at_heads(self, name: BackendName, *, now: float) -> None:
        for lanes in self._queue.pools_for(name):
            if lanes:
                self._look_at_head(lanes, now=now)

    def _look_at_head(self, lanes: Lanes, *, now: float) -> None:
        """Who goes first in a pool may be somebody else now, or too old to be passed."""
        head = lanes.head(now=now)
        if head is not None:
            self._backfill.blocked(head, now=now)

    def _reweigh(self, waiting: Waiting, needs: Mapping[BackendName, Need], *, now: float) -> None:
        """A waiting ticket needs something else than it did. It keeps its place and its passes."""
        was_collecting = waiting.is_collecting
        if self._backfill.left(waiting, now=now):
            self._stir_all(waiting.ticket.needs)
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
        if not lanes:
            self._drains[lanes.pool].waits(False, now=now)
        if self._backfill.left(waiting, now=now):
            self._stir_all(waiting.ticket.needs)

    def _depart(self, waiting: Waiting, *, now: float) -> None:
        """A ticket leaves its line without a grant."""
        self._remove(waiting, now=now)
        waiting.line.policy.left(waiting.ticket)
        lanes = self._queue.lanes(waiting.ticket.pool)
        if len(lanes) > self._limits.lookahead or lanes.room(waiting.line) is not None:
            self._stirred[lanes] = None  # somebody has moved up among those who are considered, or waits for no cap any more

    def _dismiss(self, hopeless: list[Waiting], reason: RejectReason, *, now: float) -> list[Refused]:
        """Waiting tickets are refused for a reason that waiting does not cure."""
        for waiting in hopeless:
            self._depart(waiting, now=now)
        return [self._refusals.refuse(waiting.ticket, reason) for waiting in hopeless]

    def _expire(self, *, now: float) -> list[Refused]:
        due = self._queue.take_due(now=now)
        for waiting in due:
            self._depart(waiting, now=now)
        return [self._refusals.timed_out(waiting, now=now) for waiting in due]

    def _grant(
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
        reservation = self._ledger.hold(ticket, backend.name, now=now)
        self._guards.granted(ticket.id, backend.name, ticket.prompt_tokens, now=now)
        self._queue.took(ticket, line, reservation.charged_blocks, now=now)
        line.policy.granted(ticket)
        self._observe_pressure(ticket, now=now)
        return Granted(ticket, backend.name, reservation.worst_blocks, reservation.charged_blocks, verdict)

    def _freed(self, reservation: Reservation, freed_blocks: int, *, now: float) -> Changes:
        """More is known of a running ticket, and by that so many blocks came free, or fewer than none were taken."""
        self._queue.changed(reservation.ticket, -freed_blocks, now=now)
        if freed_blocks > 0:
            pool = reservation.ticket.pool
            if pool in self._drains:
                self._drains[pool].shrunk(freed_blocks)
            self._stir_for(reservation)
        return self._settle(released_blocks=max(0, freed_blocks), now=now)

    def _observe_pressure(self, ticket: Ticket, *, now: float) -> None:
        """In observe mode nobody ever waits; the drain counts while more is charged than the rules would have let in."""
        if self._mode is Mode.OBSERVE:
            drain = self._drains.setdefault(ticket.pool, DrainRate())
            drain.waits(any(self._ledger.backend(name).is_over for name in ticket.needs), now=now)

    def _budget_of(self, name: BackendName) -> int:
        backend = self._ledger.backends.get(name)
        return 0 if backend is None or backend.budget is None else backend.budget.blocks

    # Settling: whoever can be granted now is granted now

    def _stir(self, name: BackendName) -> None:
        """Room may have come free on a backend: look at the pools whose tickets may run there."""
        for lanes in self._queue.pools_for(name):
            if lanes:
                self._stirred[lanes] = None

    def _stir_all(self, names: Iterable[BackendName]) -> None:
        for name in names:
            self._stir(name)

    def _stir_for(self, reservation: Reservation) -> None:
        """What a ticket was charged came free, or part of it: also its tenant, which may have waited for that elsewhere."""
        if reservation.ticket.terms.cap_blocks is not None:
            self._stirred.update((lanes, None) for lanes in self._queue.pools() if lanes)
        else:
            self._stir(reservation.backend)

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
            found = (lanes.head(now=now) for lanes in self._stirred)
            heads = sorted((head for head in found if head is not None), key=_age)
            first = [*heads, *self._backfill.collecting_behind(heads)]
            for waiting in sorted(first, key=_age) if len(first) > len(heads) else heads:
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
        return Changes(tuple(granted), tuple(refused), released_blocks)

    def _pass_head(self, head: Waiting, *, now: float) -> Iterator[Granted]:
        """Grant those behind a blocked head that fit and may pass it."""
        lanes = self._queue.lanes(head.ticket.pool)
        tried: set[TicketId] = {head.ticket.id}  # room only becomes less meanwhile
        while not self._stirred and self._has_room_behind(head):
            for waiting in lanes.considered(self._limits.lookahead + 1, now=now):
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
        backends = (self._ledger.backend(name) for name in self._queue.lanes(head.ticket.pool).backends)
        return any(
            backend.has_room and self._guards.has_room(backend.name) and not self._backfill.bars_behind(head, backend)
            for backend in backends
        )

    def _grant_if_room(self, waiting: Waiting, *, now: float) -> Granted | None:
        backend = self._find_room(waiting.ticket, waiting.line, waiting, is_joining=False, now=now)
        if backend is None:
            return None
        return self._grant(waiting.ticket, waiting.line, waiting, backend, now=now)
