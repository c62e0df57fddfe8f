"""The book: the state machine that admission is. Pure and synchronous; time arrives as `now`, decisions leave as values.

`join` says at once whether a ticket is granted, waits, or is refused. Every other call returns the grants and refusals that
it made possible. Between calls nobody is left waiting who could be granted: no head of a line, and no ticket among the
first `lookahead` behind it. Nothing that joins makes room for others, so `join` answers for its own ticket only.

What is decided is decided by the parts: the ledger says what fits, guards what can be computed beside it, lines and their
policy who goes first, backfill who may pass, placement where, the drain rate how long. The book puts them in order and keeps
the invariants that they list.
"""

from collections.abc import Mapping
from dataclasses import replace

from gateway.core.backfill import Backfill
from gateway.core.commitment import Commitment, Ending
from gateway.core.decisions import NOTHING, Changes, Granted, Mode, Queued, Refused, Standing, Verdict
from gateway.core.drain import DrainRate
from gateway.core.granting import Granting
from gateway.core.guards import Guards
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.ledger import Budget, Ledger, Reservation
from gateway.core.line import Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.pace import Pace
from gateway.core.placement import least_bad
from gateway.core.policies import PolicyFactory
from gateway.core.queue import Queue, QueueLimits
from gateway.core.refusals import Refusals
from gateway.core.snapshots import BookSnapshot, Holding
from gateway.core.ticket import Need, Ticket
from gateway.core.waits import WaitSnapshot, wait_snapshots


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
        self._commitment = commitment
        self._guards = guards or Guards(is_on=False)
        self._ledger = Ledger(commitment)
        self._queue = Queue(policy, lanes, limits.max_requests, self._budget_of)
        self._backfill = Backfill(self._queue, max_passes=limits.max_passes, max_age_s=limits.max_age_s)
        self._drains: dict[PoolName, DrainRate] = {}
        self._refusals = Refusals(self._ledger, self._queue, self._drains, self._guards, limits)
        self._observes = mode is Mode.OBSERVE
        self._granting = Granting(
            observes=self._observes,
            ledger=self._ledger,
            queue=self._queue,
            backfill=self._backfill,
            guards=self._guards,
            refusals=self._refusals,
            drains=self._drains,
            lookahead=limits.lookahead,
        )
        self._draining = False

    # What happens to tickets

    def join(self, ticket: Ticket, *, now: float) -> Granted | Queued | Refused:
        """A request asks to run. What fits, with nobody ahead of it for that room, is granted at once.

        In observe mode everything that has a backend is granted, with what the rules said as its verdict.
        Raises ValueError if a ticket of this id waits or runs: that is the caller's bug.
        """
        granting, in_line = self._granting, self._queue.waiting
        if ticket.id in self._ledger.reservations or ticket.id in in_line:
            raise ValueError(f"ticket {ticket.id} joined twice")
        if self._draining or not ticket.needs:
            return self._refusals.refuse(ticket, RejectReason.DRAINING if self._draining else RejectReason.NO_BACKEND)
        line = self._queue.line_of(ticket, now=now)
        waiting = granting.draw(ticket, line) if in_line else None
        verdict: Verdict | None = self._refusals.by_tenant(ticket) if ticket.terms.has_caps else None
        if verdict is None:
            backend = granting.find_room(ticket, line, waiting, now=now)
            if backend is not None:
                return granting.grant(ticket, line, waiting, backend, now=now)
            waiting = waiting or granting.draw(ticket, line)
            verdict = self._refusals.why_not_wait(waiting, now=now)
        if self._observes:
            backend = least_bad([*map(self._ledger.backend, ticket.needs)])
            return granting.grant(ticket, line, None, backend, verdict=verdict or Queued(ticket), now=now)
        if verdict is not None:
            return verdict
        assert waiting is not None, "who is not refused has a place"
        granting.enqueue(waiting, now=now)
        return Queued(ticket)

    def leave(self, ticket_id: TicketId, *, now: float) -> Changes:
        """A waiting ticket gives up. released_blocks is None if it does not wait: it was granted, refused, or never here."""
        waiting = self._queue.find(ticket_id)
        if waiting is None:
            return self._granting.settle(released_blocks=None, now=now)
        self._granting.depart(waiting, now=now)
        return self._granting.settle(now=now)

    def release(self, ticket_id: TicketId, *, now: float) -> Changes:
        """A granted ticket has ended, however it ended. released_blocks is None if it holds nothing (any more)."""
        reservation = self._ledger.release(ticket_id)
        if reservation is None:
            return self._granting.settle(released_blocks=None, now=now)
        ticket, charged_blocks = reservation.ticket, reservation.charged_blocks
        self._guards.answered(ticket_id, now=None)
        self._queue.gave(reservation, now=now)
        if self._drains and (drain := self._drains.get(ticket.pool)) is not None:
            drain.released(charged_blocks, reservation.seats, now=now)
        if self._observes:
            self._granting.observe_pressure(ticket, now=now)
        if not self._queue.waiting:
            return Changes((), (), charged_blocks)
        self._granting.stir_for(reservation)
        return self._granting.settle(released_blocks=charged_blocks, now=now)

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
                return self._granting.settle(released_blocks=None, now=now)
            return self._freed(reservation, self._ledger.reweigh(reservation, needs[reservation.backend]), now=now)
        self._granting.reweigh(waiting, needs, now=now)
        hopeless = [waiting] if self._refusals.never_fits(waiting.ticket) else []
        return self._granting.settle(self._granting.dismiss(hopeless, RejectReason.KV_BUDGET, now=now), now=now)

    def resize(self, ticket_id: TicketId, worst_blocks: int, *, now: float) -> Changes:
        """A granted ticket may take `worst_blocks` (at least 1) from now on, fewer or more than before."""
        if worst_blocks < 1:
            raise ValueError(f"ticket {ticket_id} cannot take {worst_blocks} blocks")
        reservation = self._ledger.reservation(ticket_id)
        if reservation is None:
            return self._granting.settle(released_blocks=None, now=now)
        freed = self._ledger.revise(reservation, worst_blocks=worst_blocks, output_tokens=reservation.output_tokens)
        return self._freed(reservation, freed, now=now)

    def progress(self, ticket_id: TicketId, output_tokens: int, *, now: float) -> Changes:
        """A granted ticket has produced that many tokens so far, in all its sequences. Progress never runs backwards."""
        reservation = self._ledger.reservation(ticket_id)
        if reservation is None:
            return self._granting.settle(released_blocks=None, now=now)
        output_tokens = max(output_tokens, reservation.output_tokens)
        freed = self._ledger.revise(reservation, worst_blocks=reservation.worst_blocks, output_tokens=output_tokens)
        return self._freed(reservation, freed, now=now)

    def first_token(self, ticket_id: TicketId, *, was_seen: bool = True, now: float) -> Changes:
        """A granted ticket has its first token, so its prompt is computed. was_seen False: that is only supposed."""
        name = self._guards.answered(ticket_id, now=now if was_seen else None)
        if name is not None:
            self._granting.stir(name)
        return self._granting.settle(now=now)

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending, *, now: float) -> Changes:
        """A ticket that was granted has ended, with so many tokens: evidence for those that come."""
        is_news = self._commitment.learn(ticket, output_tokens, ending)
        if not self._queue.waiting:
            return NOTHING
        if is_news:
            self._granting.stir_all(ticket.needs)
        return self._granting.settle(now=now)

    def expire(self, *, now: float) -> Changes:
        """Refuse what waits past its deadline. Every other call that returns changes does so as well."""
        return self._granting.settle(now=now)

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
                self._granting.reweigh(waiting, needs, now=now)
        hopeless: list[Waiting] = []
        if budget != before or weighed_anew:
            hopeless = [
                waiting
                for lanes in self._queue.pools_for(name)
                for waiting in lanes
                if self._refusals.never_fits(waiting.ticket)
            ]
        self._granting.stir(name)
        refused = self._granting.dismiss(hopeless, RejectReason.KV_BUDGET, now=now)
        return self._granting.settle(refused, now=now)

    def read_engine(self, name: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> Changes:
        """A reading of an engine: what it has preempted so far (None: it does not tell), and whether an overrun of its cache
        fails every request there. Where the commitment draws a conclusion, what runs is charged by it at once."""
        if self._commitment.read_engine(name, preemptions, overrun_fails_all=overrun_fails_all, now=now):
            for reservation, freed_blocks in self._ledger.charge_anew(name):
                self._queue.changed(reservation, -freed_blocks, now=now)
                self._granting.stir_for(reservation)
            self._granting.stir(name)
        return self._granting.settle(now=now)

    def saw_gaps(self, name: BackendName, seconds: float, tokens: int, *, now: float) -> Changes:
        """Streams on a backend took `seconds` in all for `tokens` more tokens."""
        backend = self._ledger.backend(name)
        if self._guards.saw_gaps(name, seconds, tokens, running=backend.seats_held, now=now):
            self._ledger.limit_seats(name, self._guards.seat_limit(name))
            self._granting.stir(name)
        return self._granting.settle(now=now) if self._queue.waiting else NOTHING

    def drain(self, *, now: float) -> Changes:
        """The gateway is going down: who waits, and who joins from now on, is refused. What runs ends by itself."""
        self._draining = True
        return self._granting.settle(self._granting.dismiss([*self._queue], RejectReason.DRAINING, now=now), now=now)

    # What can be seen

    def has_waiting_for(self, backend: BackendName) -> bool:
        """Whether a ticket waits that could run on that backend."""
        return self._queue.has_waiting_for(backend)

    def pace(self, name: BackendName) -> Pace:
        """How fast a backend is seen to work: always the same object. Whoever sees its answers tells it; guards and
        predictions go by it."""
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
        backend = self._ledger.backends.get(name)
        if backend is None or (free_blocks := backend.free_blocks) < 0:
            return 0
        return free_blocks

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

    def _freed(self, reservation: Reservation, freed_blocks: int, *, now: float) -> Changes:
        """More is known of a running ticket, and by that so many blocks came free, or fewer than none were taken."""
        if freed_blocks:
            self._queue.changed(reservation, -freed_blocks, now=now)
        if freed_blocks > 0:
            drain = self._drains.get(reservation.ticket.pool)
            if drain is not None:
                drain.shrunk(freed_blocks)
            self._granting.stir_for(reservation)
        return self._granting.settle(released_blocks=max(0, freed_blocks), now=now)

    def _budget_of(self, name: BackendName) -> int:
        backend = self._ledger.backends.get(name)
        return 0 if backend is None or backend.budget is None else backend.budget.blocks
