"""Lanes, tenants, caps, policies, backfill and placement together, beside a naive account of everything that was said.

The book's answers are not foretold here but judged, one grant after the other, by what must hold of each: what fits, what
caps allow, whose turn it was, who was passed and how often, and for whom room collects. Conservation is summed anew after every
step, per backend, lane and tenant.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused
from gateway.core.lane_table import LaneTable, LaneTerms
from gateway.core.ledger import Budget
from gateway.core.names import STANDARD_LANE, BackendName, LaneName, PoolName, TenantName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.policies import POLICIES, Policy
from gateway.core.queue import QueueLimits
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Need, Ticket
from support.naive_turns import Division, Hold, Party
from support.tickets import A, B

POOLS: dict[PoolName, tuple[BackendName, ...]] = {PoolName("x"): (A, B), PoolName("y"): (B,)}
BATCH = LaneName("batch")
LANES = LaneTable((LaneTerms(STANDARD_LANE, weight=2.0), LaneTerms(BATCH, cap_blocks=14, max_requests=6)))
TENANTS = {
    terms.name: terms
    for terms in (
        TenantTerms(TenantName("plain")),
        TenantTerms(TenantName("double"), weight=2.0, queue_share=0.5),
        TenantTerms(TenantName("capped"), cap_blocks=12),
        TenantTerms(TenantName("few"), cap_requests=3),
    )
}
MAX_REQUESTS = 12
MAX_AGE_S = 20.0
pauses = st.sampled_from([0.0, 0.0, 0.53, 1.71, 6.37])
needs = st.builds(Need, st.integers(1, 16), st.integers(1, 2))


@dataclass(eq=False)
class Entry:
    ticket: Ticket
    order: int
    rank: tuple[float, ...]
    passes: int = 0
    collects: bool = False

    @property
    def place(self) -> tuple[tuple[float, ...], int]:
        return (self.rank, self.order)

    @property
    def age(self) -> tuple[float, int]:
        return (self.ticket.arrived, self.order)

    @property
    def line(self) -> tuple[PoolName, LaneName, TenantName]:
        return (self.ticket.pool, self.ticket.lane, self.ticket.tenant)

    @property
    def least(self) -> int:
        return min((need.worst_blocks, need.seats) for need in self.ticket.needs.values())[0]


@dataclass(eq=False)
class Run:
    ticket: Ticket
    backend: BackendName
    blocks: int
    began: float
    hold: Hold


@dataclass
class PoolTurns:
    """The naive turns of one pool."""

    lanes: Division = field(default_factory=Division)
    tenants: dict[LaneName, Division] = field(default_factory=dict)
    hold_s: dict[LaneName, float] = field(default_factory=dict)


class LanesMachine(RuleBasedStateMachine):
    policy = "fifo"
    has_caps = True  # without them it is known for longer whose turn it is

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.next_id = 0
        self.waiting: dict[TicketId, Entry] = {}
        self.running: dict[TicketId, Run] = {}
        self.gone: set[TicketId] = set()
        self.turns = {pool: PoolTurns() for pool in POOLS}
        self.is_certain = True  # no turn was decided by rounding so far
        self.noticed: dict[PoolName, Entry] = {}  # heads for which room collects as soon as a decision looks at them

    # The start

    @initialize(max_passes=st.sampled_from([0, 1, 2, 3]), first=st.tuples(st.integers(16, 40), st.integers(16, 40)))
    def start(self, max_passes: int, first: tuple[int, int]) -> None:
        self.max_passes = max_passes
        self.lanes = LANES if self.has_caps else LaneTable((LANES.lanes[0], LaneTerms(BATCH, max_requests=6)))
        self.budgets = {A: Budget(first[0], 2), B: Budget(first[1], 0, 9)}
        self.book = Book(
            mode=Mode.ENFORCE,
            commitment=StrictCommitment(),
            policy=POLICIES[self.policy],
            limits=QueueLimits(max_requests=MAX_REQUESTS, max_passes=max_passes, max_age_s=MAX_AGE_S),
            lanes=self.lanes,
        )
        for name, budget in self.budgets.items():
            self.book.set_backend(name, budget=budget, serving=True, now=self.now)

    # What happens

    @rule(
        pool=st.sampled_from(sorted(POOLS)),
        lane=st.sampled_from([STANDARD_LANE, STANDARD_LANE, BATCH]),
        tenant=st.sampled_from(sorted(TENANTS)),
        need=needs,
        patience=st.sampled_from([7.3, 31.7, 90.1]),
        priority=st.integers(0, 2),
        prompt=st.sampled_from([0, 500, 9000]),
        pause=pauses,
    )
    def join(
        self,
        pool: PoolName,
        lane: LaneName,
        tenant: TenantName,
        need: Need,
        patience: float,
        priority: int,
        prompt: int,
        pause: float,
    ) -> None:
        self.wait(pause)
        self.join_one(pool, lane, tenant, dict.fromkeys(POOLS[pool], need), patience, priority, prompt)

    @rule(
        lane=st.sampled_from([STANDARD_LANE, BATCH]),
        tenants=st.lists(st.sampled_from(sorted(TENANTS)), min_size=3, max_size=9),
        blocks=st.integers(2, 9),
    )
    def join_a_burst(self, lane: LaneName, tenants: list[TenantName], blocks: int) -> None:
        for number, tenant in enumerate(tenants):
            pool = sorted(POOLS)[number % 3 == 0]
            size = 1 + (blocks * (number + 1)) % 9
            self.join_one(pool, lane, tenant, {name: Need(size) for name in POOLS[pool]}, 90.1, 0, 100 * number)

    def join_one(
        self,
        pool: PoolName,
        lane: LaneName,
        tenant: TenantName,
        need: dict[BackendName, Need],
        patience: float,
        priority: int,
        prompt: int,
    ) -> None:
        self.next_id += 1
        terms = TENANTS[tenant]
        if not self.has_caps:
            terms = replace(terms, cap_blocks=None)
        ticket = Ticket(
            TicketId(self.next_id),
            pool,
            need,
            self.now,
            self.now + patience,
            lane=lane,
            terms=terms,
            priority=priority,
            prompt_tokens=prompt,
        )
        entry = Entry(ticket, self.next_id, RANKS[self.policy].rank(ticket))
        alive: list[Entry | Run] = [*self.waiting.values(), *self.running.values()]
        in_lane = [each for each in self.waiting.values() if (each.ticket.pool, each.ticket.lane) == (pool, lane)]
        self.note_heads()
        answer = self.book.join(ticket, now=self.now)
        never = all(self.never_holds(ticket, name) for name in need)
        requests = sum(each.ticket.tenant == tenant for each in alive)
        is_at_limit = terms.cap_requests is not None and requests >= terms.cap_requests
        if isinstance(answer, Granted):
            assert not never
            assert not is_at_limit
            self.granted(answer, entry)
        elif isinstance(answer, Queued):
            assert not never
            assert not is_at_limit
            limit = self.lanes.terms(lane).max_requests or MAX_REQUESTS
            assert len(in_lane) < limit
            assert sum(each.ticket.tenant == tenant for each in in_lane) < max(1, int(terms.queue_share * limit))
            self.stand(entry)
            self.note_heads([pool])
        else:
            assert isinstance(answer, Refused)
            self.gone.add(ticket.id)
            if never:
                assert answer.reason is RejectReason.KV_BUDGET
                assert answer.need_blocks > answer.limit_blocks > 0
            elif is_at_limit:
                assert answer.reason is RejectReason.TENANT_LIMIT
            else:
                limits = {RejectReason.QUEUE_FULL, RejectReason.PREDICTED_WAIT, RejectReason.TENANT_LIMIT}
                assert answer.reason in limits

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pause=pauses)
    def release(self, data: st.DataObject, pause: float) -> None:
        self.wait(pause)
        self.end(data.draw(st.sampled_from(sorted(self.running))))

    @precondition(lambda self: self.running)
    @rule(pause=st.sampled_from([0.41, 1.3]), count=st.integers(2, 12))
    def serve(self, pause: float, count: int) -> None:
        """The oldest ends, again and again, and somebody small comes for each."""
        for number in range(count):
            self.wait(pause)
            if self.running:
                self.end(min(self.running))
            pool = sorted(POOLS)[number % 2]
            tenant = sorted(TENANTS)[number % 4]
            self.join_one(pool, STANDARD_LANE, tenant, {name: Need(1 + number % 3) for name in POOLS[pool]}, 31.7, 0, 0)

    def end(self, ticket_id: TicketId) -> None:
        run = self.running.pop(ticket_id)
        self.gone.add(ticket_id)
        run.hold.ended = self.now
        turns = self.turns[run.ticket.pool]
        lane = run.ticket.lane
        turns.hold_s[lane] = 0.9 * turns.hold_s[lane] + (1 - 0.9) * (self.now - run.began)
        changes = self.book.release(ticket_id, now=self.now)
        assert changes.released_blocks == run.blocks
        self.judge(changes)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), pause=pauses)
    def leave(self, data: st.DataObject, pause: float) -> None:
        ticket_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.wait(pause)
        if ticket_id not in self.waiting:
            return  # it was late, or granted
        self.take_out(self.waiting[ticket_id])
        self.gone.add(ticket_id)
        self.judge(self.book.leave(ticket_id, now=self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), blocks=st.integers(1, 16))
    def resize(self, data: st.DataObject, blocks: int) -> None:
        run = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        run.hold.changes.append((self.now, blocks))
        run.blocks = blocks
        self.judge(self.book.resize(run.ticket.id, blocks, now=self.now))

    @rule(pause=st.sampled_from([0.0, 3.9, 21.3]))
    def expire(self, pause: float) -> None:
        self.wait(pause)
        self.judge(self.book.expire(now=self.now))

    def wait(self, pause: float) -> None:
        """Time passes; whoever is late is taken out by the next call, whatever it is."""
        self.now += pause
        if any(self.now - entry.ticket.arrived >= MAX_AGE_S for entry in self.waiting.values()):
            self.is_certain = False  # by age it collects from the next decision on that looks at it: which one, is not told
        due = [entry for entry in self.waiting.values() if entry.ticket.deadline <= self.now]
        if due:
            for entry in due:
                self.take_out(entry)
                self.gone.add(entry.ticket.id)
            changes = self.book.expire(now=self.now)
            assert {each.ticket.id for each in changes.refused} == {entry.ticket.id for entry in due}
            self.judge(replace(changes, refused=()))

    # Judging

    def judge(self, changes: Changes) -> None:
        assert not changes.refused
        for granted in changes.granted:
            entry = self.waiting[granted.ticket.id]
            self.granted(granted, entry)
        self.note_heads()
        if self.is_certain:
            self.nobody_is_left_who_could_run()

    def granted(self, granted: Granted, entry: Entry) -> None:
        """One grant: was it allowed?"""
        ticket, name = entry.ticket, granted.backend
        need, budget = ticket.needs[name], self.budgets[name]
        self.note_heads([pool for pool in POOLS if name in POOLS[pool]])
        assert granted.charged_blocks == need.worst_blocks
        assert self.fits(ticket, name), "over-admitted"
        assert self.within_caps(ticket, need.worst_blocks), "past a cap"
        assert need.worst_blocks <= budget.blocks
        if self.policy == "fifo" or (self.is_certain and not entry.collects):
            ahead = [other for other in self.line_of(entry) if other is not entry and other.place < entry.place]
            equals = [other for other in ahead if other.ticket.needs == ticket.needs]
            # A policy may put a younger one before this: then another pool's collecting, by age, may bar that one only.
            barred = [other for other in equals if self.policy != "fifo" and self.is_barred_by_another_pool(other, name)]
            assert equals == barred, "an equal that is ahead still waits"
        first = min(self.line_of(entry), key=lambda each: each.place, default=entry)
        self.was_its_turn(entry)
        passed, heads = set[Entry](), set[Entry]()
        if first is not entry and first.place < entry.place and not entry.collects and self.could_hold(first, name):
            passed.add(first)
        if self.is_certain:
            for pool in POOLS:
                head = self.pool_head(pool)
                if head is not None and head is not entry and self.could_hold(head, name) and self.passes(entry, head):
                    passed.add(head)
                    heads.add(head)
            for other in self.waiting.values():
                if other.collects and other is not entry and self.could_hold(other, name) and not self.is_capped(other):
                    assert not self.is_collected_from(entry, other), "room that is collected for another was granted"
        for each in passed:
            each.passes += 1
            each.collects |= each in heads and each.passes >= self.max_passes
            assert each.passes <= self.max_passes or not self.is_certain, "passed too often"
            assert self.now - each.ticket.arrived < MAX_AGE_S or not self.is_certain, "passed although it was too old"
        self.start_running(granted, entry)
        self.note_heads()

    def is_barred_by_another_pool(self, entry: Entry, name: BackendName) -> bool:
        return any(
            other.ticket.pool != entry.ticket.pool and self.could_hold(other, name) and self.is_collected_from(entry, other)
            for other in self.may_collect()
        )

    def was_its_turn(self, entry: Entry) -> None:
        """If it was somebody else's, then that one does not fit, or room collects for an older one."""
        head = self.pool_head(entry.ticket.pool) if self.is_certain else None
        if not self.is_certain or head is None or head is entry or entry.collects:
            return
        others = self.may_collect() - {head}
        for name in head.ticket.needs:
            if self.fits(head.ticket, name) and self.comes_first(entry, head):
                is_barred = any(self.could_hold(each, name) and self.is_collected_from(head, each) for each in others)
                assert is_barred, "it was the turn of another, who fitted"

    def comes_first(self, entry: Entry, head: Entry) -> bool:
        return self.passes(entry, head) and self.is_certain

    def passes(self, entry: Entry, head: Entry) -> bool:
        if entry.ticket.pool != head.ticket.pool or (entry.collects and head.collects):
            return head.age < entry.age
        if entry.line == head.line:
            return head.place < entry.place
        if self.line_of(entry) or self.pinned(entry.ticket.pool) == head.line:
            return True  # whose turn it is comes before all other lines that stand
        lanes, tenants = self.parties(entry.ticket)
        if entry.ticket.lane != head.ticket.lane:
            return self.comes_after(lanes, entry.ticket.lane, head.ticket.lane)
        return self.comes_after(tenants, entry.ticket.tenant, head.ticket.tenant)

    def comes_after(self, division: Division, newcomer: str, first: str) -> bool:
        """Whether the turn of one who is about to wait comes after that of the first."""
        tags = division.entry_tag(newcomer, self.now), division.tag(first, self.now)
        if abs(tags[0] - tags[1]) < 1e-6 and tags != (0.0, 0.0):
            self.is_certain = False
        number, first_number = division.parties[newcomer].number, division.parties[first].number
        if tags[0] == tags[1] and number is not None and first_number is not None:
            return number > first_number
        return tags[0] >= tags[1]

    def is_collected_from(self, entry: Entry, other: Entry) -> bool:
        """Whether room collects for `other` before `entry` may have any."""
        if entry.ticket.pool != other.ticket.pool or (entry.collects and other.collects):
            return other.age < entry.age
        if entry.line == other.line:
            return other.place < entry.place
        pinned = self.pinned(entry.ticket.pool)
        return pinned is None or pinned != entry.line

    def start_running(self, granted: Granted, entry: Entry) -> None:
        ticket = entry.ticket
        turns = self.turns[ticket.pool]
        lanes, tenants = self.parties(ticket)
        if ticket.id in self.waiting:
            self.take_out(entry)
        tenants.served(ticket.tenant, self.now)
        lanes.served(ticket.lane, self.now)
        hold = Hold(turns.hold_s.setdefault(ticket.lane, 1.0), [(self.now, granted.charged_blocks)])
        tenants.parties[ticket.tenant].holds.append(hold)
        lanes.parties[ticket.lane].holds.append(hold)
        self.running[ticket.id] = Run(ticket, granted.backend, granted.charged_blocks, self.now, hold)

    def parties(self, ticket: Ticket) -> tuple[Division, Division]:
        turns = self.turns[ticket.pool]
        tenants = turns.tenants.setdefault(ticket.lane, Division())
        turns.lanes.parties.setdefault(ticket.lane, Party(self.lanes.terms(ticket.lane).weight))
        tenants.parties.setdefault(ticket.tenant, Party(ticket.terms.weight))
        return turns.lanes, tenants

    def stand(self, entry: Entry) -> None:
        lanes, tenants = self.parties(entry.ticket)
        self.waiting[entry.ticket.id] = entry
        if lanes.parties[entry.ticket.lane].number is None:
            lanes.enter(entry.ticket.lane, self.now)
        if tenants.parties[entry.ticket.tenant].number is None:
            tenants.enter(entry.ticket.tenant, self.now)

    def take_out(self, entry: Entry) -> None:
        del self.waiting[entry.ticket.id]
        lanes, tenants = self.parties(entry.ticket)
        if not self.line_of(entry):
            tenants.parties[entry.ticket.tenant].number = None
            if not tenants.waiting():
                lanes.parties[entry.ticket.lane].number = None

    def line_of(self, entry: Entry) -> list[Entry]:
        return [each for each in self.waiting.values() if each.line == entry.line]

    def note_heads(self, looked_at: Collection[PoolName] = ()) -> None:
        """Whoever is a head now, and may not be passed any more, has room collected from the next decision on that looks at it.

        looked_at: the pools in which one did, for certain: those of a backend before a grant there, and that of a newcomer who
        waits. If another is the head before that, it is not known whether any did.
        """
        for pool in POOLS:
            head = self.pool_head(pool) if self.is_certain else None
            former = self.noticed.pop(pool, None)
            if former is not None and former is not head and not former.collects and former.ticket.id in self.waiting:
                self.is_certain = False
            if head is None or head.passes < self.max_passes:
                continue
            if pool in looked_at:
                head.collects = True
            elif not head.collects:
                self.noticed[pool] = head

    def may_collect(self) -> set[Entry]:
        """For whom room collects, or may do so already."""
        return {*self.noticed.values(), *(each for each in self.waiting.values() if each.collects)}

    def is_passed_enough(self, head: Entry) -> bool:
        return head.passes >= self.max_passes or self.now - head.ticket.arrived >= MAX_AGE_S

    # Whose turn it is

    def pinned(self, pool: PoolName) -> object:
        collecting = [each for each in self.waiting.values() if each.collects and each.ticket.pool == pool]
        for entry in sorted(collecting, key=lambda each: each.age):
            first = min(self.line_of(entry), key=lambda each: each.place)
            if not self.is_tenant_capped(first) and not self.is_capped(entry):
                return entry.line
        return None

    def pool_head(self, pool: PoolName) -> Entry | None:
        """The first in turn whom no cap holds back. Where rounding or a cap's history would decide, nothing is certain."""
        entries = [each for each in self.waiting.values() if each.ticket.pool == pool]
        if self.has_caps and any(each.ticket.terms.cap_blocks is not None or each.ticket.lane == BATCH for each in entries):
            self.is_certain = False
            return None
        if not entries:
            return None
        pinned = self.pinned(pool)
        if pinned is not None:
            return min((each for each in entries if each.line == pinned), key=lambda each: each.place)
        turns = self.turns[pool]
        lane = self.first_of(turns.lanes)
        tenant = self.first_of(turns.tenants[LaneName(lane)])
        line = (pool, lane, tenant)
        return min((each for each in entries if each.line == line), key=lambda each: each.place)

    def first_of(self, division: Division) -> str:
        order = division.in_turn(self.now)
        if len(order) > 1 and division.is_close(order[0], order[1], self.now):
            self.is_certain = False
        return order[0]

    # What fits

    def on(self, name: BackendName) -> list[Run]:
        return [run for run in self.running.values() if run.backend == name]

    def fits(self, ticket: Ticket, name: BackendName) -> bool:
        need, budget, runs = ticket.needs[name], self.budgets[name], self.on(name)
        held, seats = sum(run.blocks for run in runs), sum(run.ticket.needs[name].seats for run in runs)
        if not runs:
            return need.worst_blocks <= budget.blocks
        has_seats = budget.seats is None or seats + need.seats <= budget.seats
        return has_seats and held + need.worst_blocks <= budget.blocks - budget.reserve_blocks

    def could_hold(self, entry: Entry, name: BackendName) -> bool:
        return name in entry.ticket.needs and entry.ticket.needs[name].worst_blocks <= self.budgets[name].blocks

    def never_holds(self, ticket: Ticket, name: BackendName) -> bool:
        cap = ticket.terms.cap_blocks
        worst = ticket.needs[name].worst_blocks
        return worst > self.budgets[name].blocks or (cap is not None and worst > cap)

    def held_by(self, runs: Iterable[Run]) -> int:
        return sum(run.blocks for run in runs)

    def in_lane(self, ticket: Ticket) -> Iterator[Run]:
        return (run for run in self.running.values() if (run.ticket.pool, run.ticket.lane) == (ticket.pool, ticket.lane))

    def of_tenant(self, ticket: Ticket) -> Iterator[Run]:
        return (run for run in self.running.values() if run.ticket.tenant == ticket.tenant)

    def within_caps(self, ticket: Ticket, blocks: int) -> bool:
        cap = ticket.terms.cap_blocks
        if cap is not None and self.held_by(self.of_tenant(ticket)) + blocks > cap:
            return False
        lane_cap, held = self.lanes.terms(ticket.lane).cap_blocks, self.held_by(self.in_lane(ticket))
        return lane_cap is None or not held or held + blocks <= lane_cap

    def is_tenant_capped(self, entry: Entry) -> bool:
        cap = entry.ticket.terms.cap_blocks
        return cap is not None and self.held_by(self.of_tenant(entry.ticket)) + entry.least > cap

    def is_capped(self, entry: Entry) -> bool:
        return not self.within_caps(entry.ticket, entry.least)

    def nobody_is_left_who_could_run(self) -> None:
        """Whoever fits somewhere is kept from it by one for whom room is kept. (No caps are in play where this is asked.)"""
        for entry in self.waiting.values():
            for name in entry.ticket.needs:
                if self.fits(entry.ticket, name):
                    first = min(self.line_of(entry), key=lambda each: each.place)
                    is_kept = (
                        first is not entry
                        and not entry.collects
                        and self.is_passed_enough(first)
                        and self.could_hold(first, name)
                    )
                    others = self.may_collect() - {entry}
                    is_barred = any(self.could_hold(each, name) and self.is_collected_from(entry, each) for each in others)
                    assert is_kept or is_barred, f"{entry.ticket.id} could run on {name}"

    # What always holds

    @invariant()
    def what_is_held_and_waits_is_the_sum_of_its_tickets(self) -> None:
        snapshot = self.book.snapshot(now=self.now)
        for name, backend in snapshot.backends.items():
            assert backend.charged_blocks == self.held_by(self.on(name))
        for pool, lanes in snapshot.pools.items():
            for lane, shown in lanes.items():
                runs = [run for run in self.running.values() if (run.ticket.pool, run.ticket.lane) == (pool, lane)]
                entries = [each for each in self.waiting.values() if (each.ticket.pool, each.ticket.lane) == (pool, lane)]
                assert (shown.held_blocks, shown.requests) == (self.held_by(runs), len(entries))
                assert shown.blocks == sum(each.least for each in entries)
                assert shown.head_passes <= self.max_passes
                held = Counter[TenantName]()
                for run in runs:
                    held[run.ticket.tenant] += run.blocks
                waits = Counter(each.ticket.tenant for each in entries)
                names = {*held, *waits}
                assert {name: (each.held_blocks, each.requests) for name, each in shown.tenants.items()} == {
                    name: (held[name], waits[name]) for name in names
                }

    @invariant()
    def everybody_waits_runs_or_is_gone_once(self) -> None:
        assert sorted([*self.waiting, *self.running, *self.gone]) == list(range(1, self.next_id + 1))
        assert self.book.next_deadline() == min((each.ticket.deadline for each in self.waiting.values()), default=None)

    def teardown(self) -> None:
        """When everybody has ended, nothing is held and nobody waits."""
        if not hasattr(self, "book"):
            return
        while self.running:
            self.end(min(self.running))
        assert not self.waiting, "left although nothing runs"
        assert all(backend.charged_blocks == 0 for backend in self.book.snapshot(now=self.now).backends.values())


RANKS: dict[str, Policy] = {name: factory() for name, factory in POLICIES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("has_caps", [True, False], ids=["caps", "no caps"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_lanes_tenants_policies_and_backfill_keep_every_promise_together(policy: str, has_caps: bool) -> None:
    class Machine(LanesMachine):
        pass

    Machine.policy, Machine.has_caps = policy, has_caps
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
        ),
    )
