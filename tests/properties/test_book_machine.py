"""The book beside a naive one, through everything that can happen to it in any order. After every step: the same answer, and
the invariants of the ledger and the queue, summed anew."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from gateway.core.book import Book
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.ticket import Need, Ticket
from support.naive_book import Backend, Entry, NaiveBook, Running
from support.tickets import A, B, C, empty_book

# Two of them share b, one of them has a for itself as well: nobody may starve whom across pools.
POOLS: dict[PoolName, tuple[BackendName, ...]] = {PoolName("x"): (A, B), PoolName("y"): (B, C), PoolName("z"): (A,)}

pauses = st.sampled_from([0.0, 0.0, 0.5, 3.0])
# Odd, so that no predicted wait is equal to one but for the rounding of floats.
patiences = st.sampled_from([0.0, 2.0137, 10.0137, 60.0137, 60.0137])
needs = st.builds(Need, st.integers(1, 24), st.integers(1, 3))
budgets = st.none() | st.builds(Budget, st.integers(5, 30), st.integers(0, 4), st.none() | st.integers(1, 6))


class BookMachine(RuleBasedStateMachine):
    mode = Mode.ENFORCE

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_id = 0
        self.gone: list[TicketId] = []

    @initialize(
        max_requests=st.sampled_from([2, 5, 50]),
        max_passes=st.sampled_from([0, 1, 2]),
        lookahead=st.sampled_from([0, 1, 2, 64]),
        first=st.tuples(*[st.builds(Budget, st.integers(8, 30), st.integers(0, 4), st.none() | st.integers(1, 6))] * 3),
    )
    def start(self, max_requests: int, max_passes: int, lookahead: int, first: tuple[Budget, ...]) -> None:
        self.book: Book = empty_book(mode=self.mode, max_requests=max_requests, max_passes=max_passes, lookahead=lookahead)
        observe = self.mode is Mode.OBSERVE
        self.naive = NaiveBook(max_requests=max_requests, max_passes=max_passes, lookahead=lookahead, observe=observe)
        for name, budget in zip((A, B, C), first, strict=True):
            self.tell_backend(name, budget, True, 0)

    # What happens

    def join_one(self, pool: PoolName, need: dict[BackendName, Need], age: float, patience: float, affinity: bytes) -> None:
        self.next_id += 1
        arrived = self.now - age
        ticket = Ticket(TicketId(self.next_id), pool, need, arrived, self.now + patience, affinity=affinity)
        answer = self.book.join(ticket, now=self.now)
        if self.naive.draining:
            assert isinstance(answer, Refused)
            assert answer.reason is RejectReason.DRAINING
            self.gone.append(ticket.id)
            return
        decision, entry = self.naive.decide(ticket, self.now)
        predicted = self.naive.predicted_wait_s(ticket, self.now)
        says: object = answer
        if isinstance(answer, Granted):
            says = answer.backend
            if answer.verdict is not None:
                assert self.mode is Mode.OBSERVE
                says = answer.verdict
        if isinstance(says, Refused):
            self.check_refusal(says, predicted)
            says = says.reason
        elif isinstance(says, Queued):
            says = None
        assert says == decision
        if isinstance(answer, Granted):
            self.naive.grant(entry, answer.backend, self.now)
        elif isinstance(answer, Queued):
            self.naive.stand_in_line(entry, self.now)
        else:
            self.gone.append(ticket.id)
        self.naive.note_heads()

    @rule(pool=st.sampled_from(sorted(POOLS)), data=st.data(), pause=pauses)
    def join(self, pool: PoolName, data: st.DataObject, pause: float) -> None:
        self.now += pause
        names = data.draw(st.lists(st.sampled_from(POOLS[pool]), min_size=1, unique=True))
        self.join_one(
            pool,
            {name: data.draw(needs) for name in names},
            data.draw(st.sampled_from([0.0, 0.0, 0.0, 4.0])),
            data.draw(patiences),
            data.draw(st.sampled_from([b"", b"one", b"two"])),
        )

    @rule(burst=st.lists(st.tuples(st.sampled_from(sorted(POOLS)), st.integers(1, 24)), min_size=3, max_size=10))
    def join_a_burst(self, burst: list[tuple[PoolName, int]]) -> None:
        for pool, blocks in burst:
            self.join_one(pool, {name: Need(blocks) for name in POOLS[pool]}, 0.0, 60.0137, b"")

    @rule(pool=st.sampled_from(sorted(POOLS)), other=st.sampled_from(sorted(POOLS)), small=st.integers(0, 5))
    def join_one_that_just_does_not_fit_and_small_ones_after_it(self, pool: PoolName, other: PoolName, small: int) -> None:
        pages = self.book.snapshot(now=self.now).backends
        large = {name: Need(max(1, pages[name].free_blocks + 1)) for name in POOLS[pool]}
        self.join_one(pool, large, 0.0, 10.0137, b"")
        for number in range(small):
            line = other if number % 2 else pool
            self.join_one(line, {name: Need(1) for name in POOLS[line]}, 0.0, 60.0137, b"")

    @rule(pool=st.sampled_from(sorted(POOLS)), blocks=st.integers(3, 12), pause=st.sampled_from([0.25, 1.0]))
    def serve_one_after_another_out_of_a_long_line(self, pool: PoolName, blocks: int, pause: float) -> None:
        for _ in range(14):
            self.now += pause
            for _ in range(2):
                self.join_one(pool, {name: Need(blocks) for name in POOLS[pool]}, 0.0, 20.0137, b"")
            if self.naive.running:
                self.end_one(self.naive.running[0])

    def end_one(self, run: Running) -> None:
        self.naive.end(run, self.now)
        self.gone.append(run.ticket.id)
        self.compare(self.book.release(run.ticket.id, now=self.now), released=run.worst)

    def give_up(self, entry: Entry) -> None:
        self.naive.drop(entry, self.now)
        self.gone.append(entry.ticket.id)
        self.compare(self.book.leave(entry.ticket.id, now=self.now))

    @precondition(lambda self: self.naive.running)
    @rule(data=st.data(), pause=pauses)
    def release(self, data: st.DataObject, pause: float) -> None:
        self.now += pause
        self.end_one(data.draw(st.sampled_from(self.naive.running)))

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data(), pause=pauses)
    def leave(self, data: st.DataObject, pause: float) -> None:
        self.now += pause
        self.give_up(data.draw(st.sampled_from(self.naive.waiting)))

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data())
    def leave_at_the_head(self, data: st.DataObject) -> None:
        self.give_up(data.draw(st.sampled_from(self.naive.heads())))

    @precondition(lambda self: self.gone and self.naive.running)
    @rule(data=st.data(), tokens=st.integers(0, 100))
    def call_in_vain(self, data: st.DataObject, tokens: int) -> None:
        gone = data.draw(st.sampled_from(self.gone))
        self.compare(self.book.release(gone, now=self.now), released=None)
        self.compare(self.book.leave(gone, now=self.now), released=None)
        self.compare(self.book.resize(gone, 3, now=self.now), released=None)
        run = data.draw(st.sampled_from(self.naive.running))
        self.compare(self.book.leave(run.ticket.id, now=self.now), released=None)
        self.compare(self.book.progress(run.ticket.id, tokens, now=self.now))
        with pytest.raises(ValueError, match="joined twice"):
            self.book.join(run.ticket, now=self.now)

    @precondition(lambda self: self.naive.running)
    @rule(data=st.data(), blocks=st.integers(1, 30), pause=pauses)
    def resize(self, data: st.DataObject, blocks: int, pause: float) -> None:
        self.now += pause
        run = data.draw(st.sampled_from(self.naive.running))
        freed = max(0, run.worst - blocks)
        self.naive.shrink(run, blocks)
        self.compare(self.book.resize(run.ticket.id, blocks, now=self.now), released=freed)

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data())
    def reweigh_a_waiting_one(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.naive.waiting))
        pool = entry.ticket.pool
        entry.ticket = Ticket(
            entry.ticket.id,
            pool,
            {name: data.draw(needs) for name in data.draw(st.lists(st.sampled_from(POOLS[pool]), min_size=1, unique=True))},
            entry.ticket.arrived,
            entry.ticket.deadline,
            affinity=entry.ticket.affinity,
        )
        lost = [entry] if self.naive.never_fits(entry.ticket) else []
        self.compare(self.book.reweigh(entry.ticket.id, entry.ticket.needs, now=self.now), lost)

    @rule(pause=st.sampled_from([0.0, 2.0, 5.0, 60.0]))
    def expire(self, pause: float) -> None:
        self.now += pause
        self.compare(self.book.expire(now=self.now))

    @rule(
        name=st.sampled_from([A, B, C]),
        budget=budgets,
        serving=st.sampled_from([True, True, True, False]),
        foreign=st.sampled_from([0, 0, 0, 3, 12]),
        pause=pauses,
        data=st.data(),
    )
    def set_backend(
        self, name: BackendName, budget: Budget | None, serving: bool, foreign: int, pause: float, data: st.DataObject
    ) -> None:
        self.now += pause
        other = {
            entry.ticket.id: {each: data.draw(needs) for each in POOLS[entry.ticket.pool]}
            for entry in self.naive.waiting
            if name in entry.ticket.needs and data.draw(st.sampled_from([False, False, True]))
        }
        self.tell_backend(name, budget, serving, foreign, other)

    @rule(name=st.sampled_from([A, B, C]))
    def flap(self, name: BackendName) -> None:
        known = self.naive.backends[name]
        self.tell_backend(name, known.budget, not known.serving, known.foreign)

    @rule(dice=st.integers(0, 30))
    def drain(self, dice: int) -> None:
        if dice == 13:  # rarely, since it ends most of what there is to see
            self.naive.draining = True
            lost = [*self.naive.waiting]
            changes = self.book.drain(now=self.now)
            assert {refused.reason for refused in changes.refused} <= {RejectReason.DRAINING}
            self.compare(changes, lost)

    # Comparing

    def tell_backend(
        self,
        name: BackendName,
        budget: Budget | None,
        serving: bool,
        foreign: int,
        weighed_anew: Mapping[TicketId, Mapping[BackendName, Need]] | None = None,
    ) -> None:
        known = self.naive.backends.setdefault(name, Backend())
        changed = known.budget != budget or bool(weighed_anew)
        for entry in self.naive.waiting:
            if weighed_anew and entry.ticket.id in weighed_anew:
                entry.ticket = replace(entry.ticket, needs=weighed_anew[entry.ticket.id])
        known.budget, known.serving, known.foreign = budget, serving, foreign
        lost = [
            entry
            for entry in self.naive.waiting
            if changed and name in entry.ticket.needs and self.naive.never_fits(entry.ticket)
        ]
        changes = self.book.set_backend(
            name, budget=budget, serving=serving, foreign_blocks=foreign, weighed_anew=weighed_anew, now=self.now
        )
        self.compare(changes, lost)

    def compare(self, changes: Changes, lost: Iterable[Entry] = (), *, released: int | None = 0) -> None:
        """lost: whom this step refused, whatever their deadline."""
        expected: dict[TicketId, RejectReason] = {}
        for entry in lost:
            self.naive.waiting.remove(entry)
            expected[entry.ticket.id] = RejectReason.DRAINING if self.naive.draining else RejectReason.KV_BUDGET
        due = self.naive.due(self.now)
        for entry in due:
            self.naive.waiting.remove(entry)
        self.naive.note_waiting(self.now)
        for entry in due:
            servable = self.naive.servable(entry.ticket)
            expected[entry.ticket.id] = RejectReason.QUEUE_TIMEOUT if servable else RejectReason.NO_BACKEND
        predicted = {entry.ticket.id: self.naive.predicted_wait_s(entry.ticket, self.now, at_the_end=True) for entry in due}
        assert {refused.ticket.id: refused.reason for refused in changes.refused} == expected
        assert len(changes.refused) == len(expected)
        for refused in changes.refused:
            self.check_refusal(refused, predicted.get(refused.ticket.id))
        self.gone += expected
        assert [(granted.ticket.id, granted.backend) for granted in changes.granted] == self.naive.settle(self.now)
        assert changes.released_blocks == released

    def check_refusal(self, refused: Refused, predicted: float | None) -> None:
        curable = {RejectReason.QUEUE_FULL, RejectReason.PREDICTED_WAIT, RejectReason.QUEUE_TIMEOUT}
        assert refused.retry_after_s == refused.predicted_wait_s
        if refused.reason in curable:
            assert refused.predicted_wait_s == (None if predicted is None else pytest.approx(predicted))
        else:
            assert refused.retry_after_s is None
        if refused.reason is RejectReason.KV_BUDGET:
            assert refused.need_blocks > refused.limit_blocks > 0

    # What always holds

    @invariant()
    def held_is_the_sum_of_what_runs(self) -> None:
        for name, backend in self.book.snapshot(now=self.now).backends.items():
            runs = self.naive.on(name)
            assert backend.charged_blocks == backend.worst_blocks == sum(run.worst for run in runs)
            assert backend.seats_held == sum(run.ticket.needs[name].seats for run in runs)
            assert backend.in_flight == len(runs)

    @invariant()
    def everybody_waits_runs_or_is_gone_once(self) -> None:
        waiting = [entry.ticket.id for entry in self.naive.waiting]
        running = [run.ticket.id for run in self.naive.running]
        assert sorted([*waiting, *running, *self.gone]) == list(range(1, self.next_id + 1))
        lines = [line for pool in self.book.snapshot(now=self.now).pools.values() for line in pool.values()]
        assert sum(line.requests for line in lines) == len(waiting)
        least = [min(need.worst_blocks for need in entry.ticket.needs.values()) for entry in self.naive.waiting]
        assert sum(line.blocks for line in lines) == sum(least)
        deadlines = [entry.ticket.deadline for entry in self.naive.waiting]
        assert self.book.next_deadline() == min(deadlines, default=None)

    @invariant()
    def no_head_is_passed_too_often(self) -> None:
        lines = [line for pool in self.book.snapshot(now=self.now).pools.values() for line in pool.values()]
        assert all(line.head_passes <= self.naive.max_passes for line in lines)
        assert all(entry.passes <= self.naive.max_passes for entry in self.naive.waiting)

    @invariant()
    def nobody_waits_who_could_run(self) -> None:
        if not self.naive.draining:
            assert [entry.ticket.id for entry in self.naive.candidates() if self.naive.places(entry)] == []

    @invariant()
    def waiting_for_a_backend_is_seen(self) -> None:
        for name in (A, B, C):
            assert self.book.has_waiting_for(name) == any(name in entry.ticket.needs for entry in self.naive.waiting)

    @invariant()
    def it_can_be_read(self) -> None:
        assert repr(self.book).startswith(f"Book ({self.mode}")

    def teardown(self) -> None:
        """When everybody has ended, nothing is held."""
        if not hasattr(self, "naive"):
            return
        while self.naive.running or self.naive.waiting:
            ending: Running | Entry = (self.naive.running or self.naive.waiting)[0]
            if isinstance(ending, Running):
                self.end_one(ending)
            else:
                self.give_up(ending)
        for backend in self.book.snapshot(now=self.now).backends.values():
            assert (backend.charged_blocks, backend.worst_blocks, backend.seats_held, backend.in_flight) == (0, 0, 0, 0)
        assert self.book.next_deadline() is None


class ObservingBookMachine(BookMachine):
    mode = Mode.OBSERVE


quick = settings(max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


def test_the_book_agrees_with_a_naive_one_whatever_happens() -> None:
    run_state_machine_as_test(BookMachine, settings=quick)


def test_an_observing_book_admits_everything_and_says_what_the_rules_say() -> None:
    run_state_machine_as_test(ObservingBookMachine, settings=quick)
