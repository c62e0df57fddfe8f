"""The book with forecasts and guards, driven through anything, against what it promises and a sum drawn up anew each time.

The naive book beside the strict one is in test_book_machine.py; here the charges are forecasts, so what is checked is not a
second opinion on every grant but what may never happen, whatever the forecasts were.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.book import Book
from gateway.core.commitment import COMMITMENTS, Commitment, Ending, Evidence
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused
from gateway.core.geometry import Weighing
from gateway.core.guards import Guards
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket
from support.tickets import A, B

CONTEXT = 1_024
WEIGHING = Weighing(16, CONTEXT)
BACKENDS = (A, B)
POOL = PoolName("p")


class Running:
    def __init__(self, granted: Granted) -> None:
        self.ticket = granted.ticket
        self.backend = granted.backend
        self.need = granted.ticket.needs[granted.backend]
        self.tokens = 0


class ForecastMachine(RuleBasedStateMachine):
    @initialize(
        commitment=st.sampled_from(sorted(COMMITMENTS)),
        has_guards=st.booleans(),
        max_passes=st.integers(0, 4),
        visible=st.booleans(),
    )
    def begin(self, commitment: str, has_guards: bool, max_passes: int, visible: bool) -> None:
        self.commitment: Commitment = COMMITMENTS[commitment](Evidence())
        self.guards = Guards(is_on=has_guards)
        self.book = Book(
            mode=Mode.ENFORCE,
            commitment=self.commitment,
            policy=FifoPolicy,
            limits=QueueLimits(max_requests=20, max_passes=max_passes),
            guards=self.guards,
        )
        self.now = 0.0
        self.next_id = 1
        self.preemptions = 0
        self.visible = visible
        self.budgets: dict[BackendName, Budget] = {}
        self.running: dict[TicketId, Running] = {}
        self.waiting: dict[TicketId, Ticket] = {}
        for name in BACKENDS:
            self.set_budget(name, 200, 10)
            self.deliver(self.book.read_engine(name, 0 if visible else None, overrun_fails_all=False, now=0.0))

    # Bookkeeping of our own

    def deliver(self, changes: Changes) -> None:
        for granted in changes.granted:
            self.waiting.pop(granted.ticket.id)
            self.take(granted, late=True)
        for refused in changes.refused:
            self.waiting.pop(refused.ticket.id)

    def take(self, granted: Granted, *, late: bool) -> None:
        """What may never happen at a grant. late: others may have been granted since, in the same call."""
        assert 1 <= granted.charged_blocks <= granted.worst_blocks
        self.running[granted.ticket.id] = Running(granted)
        budget = self.budgets[granted.backend]
        page = self.book.snapshot(now=self.now).backends[granted.backend]
        alone = page.in_flight == 1 and granted.charged_blocks <= budget.blocks
        limit = self.commitment.limit_blocks(granted.backend, budget.blocks, budget.reserve_blocks)
        within = page.charged_blocks <= limit or page.worst_blocks <= budget.blocks - budget.reserve_blocks
        assert alone or within, "over-admitted"
        assert alone or page.charged_blocks <= budget.blocks - budget.reserve_blocks
        if not late and page.in_flight > 1:
            seats = self.guards.seat_limit(granted.backend)
            assert seats is None or page.seats_held <= seats, "more sequences than the gap allows"

    def set_budget(self, name: BackendName, blocks: int, reserve: int) -> None:
        self.budgets[name] = Budget(blocks, reserve)
        self.deliver(self.book.set_backend(name, budget=self.budgets[name], serving=True, now=self.now))

    def ticket(self, prompt: int, cap: int | None, samples: int, patience: float) -> Ticket:
        worst = samples * WEIGHING.sequence_blocks(CONTEXT if cap is None else prompt + cap)
        need = Need(worst, samples, prompt, CONTEXT if cap is None else cap, WEIGHING)
        self.next_id += 1
        return Ticket(
            TicketId(self.next_id),
            POOL,
            dict.fromkeys(BACKENDS, need),
            self.now,
            self.now + patience,
            prompt_tokens=prompt * 8,
            cap_tokens=cap,
            family="f",
        )

    # What happens

    @rule(
        prompt=st.integers(1, 900),
        cap=st.sampled_from([None, 16, 100, 1_000]),
        samples=st.sampled_from([1, 1, 1, 2]),
        patience=st.floats(0.5, 60.0),
    )
    def join(self, prompt: int, cap: int | None, samples: int, patience: float) -> None:
        ticket = self.ticket(prompt, cap, samples, patience)
        decision = self.book.join(ticket, now=self.now)
        match decision:
            case Granted():
                self.take(decision, late=False)
            case Queued():
                self.waiting[ticket.id] = ticket
            case Refused():
                assert ticket.needs[A].worst_blocks > 0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 400))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        run = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        run.tokens += tokens
        self.deliver(self.book.progress(run.ticket.id, run.tokens, now=self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), was_seen=st.booleans())
    def answer(self, data: st.DataObject, was_seen: bool) -> None:
        self.deliver(self.book.first_token(data.draw(st.sampled_from(sorted(self.running))), was_seen=was_seen, now=self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ending=st.sampled_from(list(Ending)))
    def end(self, data: st.DataObject, ending: Ending) -> None:
        run = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        changes = self.book.release(run.ticket.id, now=self.now)
        assert changes.released_blocks is not None
        self.deliver(changes)
        self.deliver(self.book.learn(run.ticket, run.tokens + 1, ending, now=self.now))
        assert self.book.release(run.ticket.id, now=self.now).released_blocks is None

    @rule(tokens=st.integers(1, 600), times=st.integers(1, 120), cap=st.sampled_from([None, 1_000]))
    def others_end(self, tokens: int, times: int, cap: int | None) -> None:
        """Many answers of one length, so that there is evidence at all."""
        for _ in range(times):
            self.deliver(self.book.learn(self.ticket(10, cap, 1, 1.0), tokens, Ending.FINISHED, now=self.now))

    @rule(name=st.sampled_from(BACKENDS), new=st.sampled_from([0, 0, 0, 1, 9]), seconds=st.floats(0.5, 400.0))
    def engine_is_read(self, name: BackendName, new: int, seconds: float) -> None:
        self.now += seconds
        self.preemptions += new
        counter = self.preemptions if self.visible else None
        self.deliver(self.book.read_engine(name, counter, overrun_fails_all=False, now=self.now))

    @rule(name=st.sampled_from(BACKENDS), gap_s=st.sampled_from([0.01, 0.02, 0.05]))
    def gaps(self, name: BackendName, gap_s: float) -> None:
        self.now += 1.1
        self.deliver(self.book.saw_gaps(name, 100 * gap_s, 100, now=self.now))

    @rule(name=st.sampled_from(BACKENDS), blocks=st.integers(60, 300), reserve=st.integers(0, 20))
    def budget_changes(self, name: BackendName, blocks: int, reserve: int) -> None:
        self.set_budget(name, blocks, reserve)

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.deliver(self.book.expire(now=self.now))

    # What always holds

    @invariant()
    def sums_are_those_of_what_runs(self) -> None:
        snapshot = self.book.snapshot(now=self.now)
        for name in BACKENDS:
            page, runs = snapshot.backends[name], [run for run in self.running.values() if run.backend == name]
            assert page.in_flight == len(runs)
            assert page.worst_blocks == sum(run.need.worst_blocks for run in runs)
            assert page.seats_held == sum(run.need.seats for run in runs)
            assert len(runs) <= page.charged_blocks <= page.worst_blocks
            assert 0 <= page.commitment.cold_blocks <= page.charged_blocks
            if not runs:
                assert page.charged_blocks == 0
                if page.guards is not None:
                    assert page.guards.unanswered_tokens == 0

    @invariant()
    def nobody_waits_before_an_idle_backend(self) -> None:
        """A guard never bars an idle backend, and a forecast never asks for more than strict would."""
        snapshot = self.book.snapshot(now=self.now)
        for ticket in self.waiting.values():
            for name, need in ticket.needs.items():
                is_idle = snapshot.backends[name].in_flight == 0
                assert not (is_idle and need.worst_blocks <= self.budgets[name].blocks), (
                    f"{ticket.id} waits before an idle {name}"
                )

    def teardown(self) -> None:
        for ticket_id in list(self.waiting):
            if ticket_id in self.waiting:
                self.deliver(self.book.leave(ticket_id, now=self.now))
                self.waiting.pop(ticket_id, None)
        for ticket_id in list(self.running):
            self.deliver(self.book.release(ticket_id, now=self.now))
        for page in self.book.snapshot(now=self.now).backends.values():
            assert (page.charged_blocks, page.worst_blocks, page.seats_held, page.in_flight) == (0, 0, 0, 0)


TestForecastMachine = ForecastMachine.TestCase
TestForecastMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
