"""A book that keeps a second, simpler account of everything and holds the real one against it after every call.

It wraps the book that the gateway uses, so it sees what the gateway really asks for, in the order in which it asks. What
breaks a rule is reported in a sentence and never raised: the gateway must go on as it would without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.books import BookContract
from gateway.core.commitment import Ending
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused, Standing
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, LaneName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.pace import Pace
from gateway.core.snapshots import BookSnapshot, Holding
from gateway.core.ticket import Need, Ticket
from gateway.core.waits import WaitSnapshot


@dataclass(slots=True)
class Hold:
    backend: BackendName
    blocks: int
    seats: int


@dataclass(slots=True)
class Page:
    """A backend as this account knows it; sums are summed anew each time that they are needed."""

    budget: Budget | None = None
    serving: bool = False
    foreign_blocks: int = 0
    holds: dict[TicketId, Hold] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return sum(hold.blocks for hold in self.holds.values())

    @property
    def seats(self) -> int:
        return sum(hold.seats for hold in self.holds.values())


class CheckingBook:
    """Keeps the contract of a book, with a strict commitment and in enforce mode, beside `book`."""

    def __init__(self, book: BookContract, report: Callable[[str], None], *, max_requests: int, max_passes: int) -> None:
        self.calls = 0
        self.grants = 0
        self.waited = 0
        self._book = book
        self._report = report
        self._max_requests = max_requests
        self._max_passes = max_passes
        self._now = float("-inf")
        self._waiting: dict[TicketId, Ticket] = {}
        self._holds: dict[TicketId, Hold] = {}
        self._pages: dict[BackendName, Page] = {}
        self._draining = False

    @property
    def held_blocks(self) -> int:
        return sum(page.blocks for page in self._pages.values())

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # The contract

    def join(self, ticket: Ticket, *, now: float) -> Granted | Queued | Refused:
        self._tick(now)
        if ticket.id in self._waiting or ticket.id in self._holds:
            self._report(f"ticket {ticket.id} joins although it waits or runs")
        decision = self._book.join(ticket, now=now)
        match decision:
            case Granted():
                self._grant(decision)
            case Queued():
                self._waiting[ticket.id] = ticket
                self.waited += 1
                if self._draining:
                    self._report(f"ticket {ticket.id} was queued although the book drains")
                if len(self._waiting) > self._max_requests * max(1, len(self._pages)):
                    self._report(f"{len(self._waiting)} wait, more than {self._max_requests} in each of the lines there can be")
            case Refused():
                self._check_refusal(decision)
        self._check()
        return decision

    def leave(self, ticket_id: TicketId, *, now: float) -> Changes:
        self._tick(now)
        was_waiting = self._waiting.pop(ticket_id, None) is not None
        changes = self._book.leave(ticket_id, now=now)
        self._expect_released(f"leave {ticket_id}", changes, 0 if was_waiting else None)
        return self._take(changes)

    def release(self, ticket_id: TicketId, *, now: float) -> Changes:
        self._tick(now)
        hold = self._holds.pop(ticket_id, None)
        if hold is None:
            self._report(f"double release: ticket {ticket_id} holds nothing")
        else:
            del self._pages[hold.backend].holds[ticket_id]
        changes = self._book.release(ticket_id, now=now)
        self._expect_released(f"release {ticket_id}", changes, None if hold is None else hold.blocks)
        return self._take(changes)

    def reweigh(self, ticket_id: TicketId, needs: Mapping[BackendName, Need], *, now: float) -> Changes:
        self._tick(now)
        hold, ticket = self._holds.get(ticket_id), self._waiting.get(ticket_id)
        released: int | None = None
        if hold is not None:
            released = max(0, hold.blocks - needs[hold.backend].worst_blocks)
            hold.blocks = needs[hold.backend].worst_blocks
        elif ticket is not None:
            released = 0
        changes = self._book.reweigh(ticket_id, needs, now=now)
        self._expect_released(f"reweigh {ticket_id}", changes, released)
        return self._take(changes)

    def resize(self, ticket_id: TicketId, worst_blocks: int, *, now: float) -> Changes:
        self._tick(now)
        hold = self._holds.get(ticket_id)
        if hold is not None:
            hold.blocks = worst_blocks
        return self._take(self._book.resize(ticket_id, worst_blocks, now=now))

    def progress(self, ticket_id: TicketId, output_tokens: int, *, now: float) -> Changes:
        self._tick(now)
        return self._take(self._book.progress(ticket_id, output_tokens, now=now))

    def first_token(self, ticket_id: TicketId, *, was_seen: bool = True, now: float) -> Changes:
        self._tick(now)
        return self._take(self._book.first_token(ticket_id, was_seen=was_seen, now=now))

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending, *, now: float) -> Changes:
        self._tick(now)
        return self._take(self._book.learn(ticket, output_tokens, ending, now=now))

    def read_engine(self, name: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> Changes:
        self._tick(now)
        return self._take(self._book.read_engine(name, preemptions, overrun_fails_all=overrun_fails_all, now=now))

    def saw_gaps(self, name: BackendName, seconds: float, tokens: int, *, now: float) -> Changes:
        self._tick(now)
        return self._take(self._book.saw_gaps(name, seconds, tokens, now=now))

    def expire(self, *, now: float) -> Changes:
        self._tick(now)
        return self._take(self._book.expire(now=now))

    def next_deadline(self) -> float | None:
        return self._book.next_deadline()

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
        self._tick(now)
        page = self._pages.setdefault(name, Page())
        page.budget, page.serving, page.foreign_blocks = budget, serving, foreign_blocks
        changes = self._book.set_backend(
            name, budget=budget, serving=serving, foreign_blocks=foreign_blocks, weighed_anew=weighed_anew, now=now
        )
        return self._take(changes)

    def waits(self, *, most: int, now: float) -> tuple[WaitSnapshot, ...]:
        return self._book.waits(most=most, now=now)

    def charged_by_lane(self) -> Mapping[BackendName, Mapping[LaneName, int]]:
        return self._book.charged_by_lane()

    def holding(self, ticket_id: TicketId) -> Holding | None:
        return self._book.holding(ticket_id)

    def drain(self, *, now: float) -> Changes:
        self._tick(now)
        self._draining = True
        changes = self._take(self._book.drain(now=now))
        if self._waiting:
            self._report(f"{len(self._waiting)} still wait although the book drains")
        return changes

    def pace(self, name: BackendName) -> Pace:
        return self._book.pace(name)

    def prefill_patience_s(self, ticket_id: TicketId, *, is_stream: bool) -> float:
        return self._book.prefill_patience_s(ticket_id, is_stream=is_stream)

    def has_waiting_for(self, backend: BackendName) -> bool:
        return self._book.has_waiting_for(backend)

    def standing(self, ticket_id: TicketId, *, now: float) -> Standing | None:
        return self._book.standing(ticket_id, now=now)

    def free_blocks(self, name: BackendName) -> int:
        return self._book.free_blocks(name)

    def snapshot(self, *, now: float) -> BookSnapshot:
        return self._book.snapshot(now=now)

    # The account

    def _tick(self, now: float) -> None:
        self.calls += 1
        if now < self._now:
            self._report(f"time ran backwards by {self._now - now} s")
        self._now = now

    def _take(self, changes: Changes) -> Changes:
        """What a call changed for those who wait, in the order in which it happened."""
        for refused in changes.refused:
            if self._waiting.pop(refused.ticket.id, None) is None:
                self._report(f"ticket {refused.ticket.id} was refused although it did not wait")
            self._check_refusal(refused)
        for granted in changes.granted:
            if self._waiting.pop(granted.ticket.id, None) is None:
                self._report(f"ticket {granted.ticket.id} was granted although it did not wait")
            self._grant(granted)
        self._check()
        return changes

    def _grant(self, granted: Granted) -> None:
        """Takes the hold into the account, after checking that it may be."""
        self.grants += 1
        name, blocks, seats = granted.backend, granted.charged_blocks, granted.ticket.needs[granted.backend].seats
        page = self._pages.setdefault(name, Page())
        needs = granted.ticket.needs[name]
        if not (granted.worst_blocks == granted.charged_blocks == needs.worst_blocks):
            self._report(f"ticket {granted.ticket.id} needs {needs.worst_blocks} blocks and is charged {blocks}")
        if granted.ticket.id in self._holds:
            self._report(f"ticket {granted.ticket.id} was granted twice")
        if self._draining:
            self._report(f"ticket {granted.ticket.id} was granted although the book drains")
        budget = page.budget
        if budget is None or not page.serving:
            self._report(f"over-admitted: ticket {granted.ticket.id} on {name}, which serves nobody")
        else:
            taken, limit = page.blocks + page.foreign_blocks, budget.blocks - budget.reserve_blocks
            is_within = taken + blocks <= limit and (budget.seats is None or page.seats + seats <= budget.seats)
            is_alone = not page.holds and blocks <= budget.blocks - page.foreign_blocks
            if not (is_within or is_alone):
                self._report(
                    f"over-admitted: ticket {granted.ticket.id} with {blocks} blocks and {seats} seats on {name}, where {taken}"
                    f" of {limit} blocks and {page.seats} of {budget.seats} seats were taken by {len(page.holds)}"
                )
        self._holds[granted.ticket.id] = page.holds[granted.ticket.id] = Hold(name, blocks, seats)

    def _check_refusal(self, refused: Refused) -> None:
        if refused.reason is RejectReason.KV_BUDGET and refused.need_blocks <= refused.limit_blocks:
            self._report(f"ticket {refused.ticket.id} never fits, with {refused.need_blocks} of {refused.limit_blocks} blocks")
        if refused.reason is RejectReason.DRAINING and not self._draining:
            self._report(f"ticket {refused.ticket.id} was refused as in a drain, and there is none")

    def _expect_released(self, call: str, changes: Changes, expected: int | None) -> None:
        if changes.released_blocks != expected:
            self._report(f"{call} gave back {changes.released_blocks} blocks, not {expected}")

    def _check(self) -> None:
        """The real account beside this one."""
        seen = self._book.snapshot(now=self._now)
        for name, backend in seen.backends.items():
            page = self._pages.get(name)
            if page is None:
                continue
            pair = (backend.charged_blocks, backend.worst_blocks, backend.seats_held, backend.in_flight)
            ours = (page.blocks, page.blocks, page.seats, len(page.holds))
            if pair != ours:
                self._report(f"held is not the sum: {name} has (charged, worst, seats, in flight) {pair}, the holds say {ours}")
        lines = [line for lanes in seen.pools.values() for line in lanes.values()]
        if sum(line.requests for line in lines) != len(self._waiting):
            self._report(f"{sum(line.requests for line in lines)} stand in lines, and {len(self._waiting)} wait")
        if any(line.head_passes > self._max_passes for line in lines):
            self._report(f"a head was passed {max(line.head_passes for line in lines)} times")
        if seen.mode is not Mode.ENFORCE:
            self._report(f"the book is in mode {seen.mode}")
