"""What a decision of the book costs while many wait and run: a release, the grant that it makes possible, a newcomer in its
place; and what is told of one that runs.

    python -m pytest tests/benchmarks/test_decisions.py -s

Figures are printed; only ratios are demanded. From 1,000 to 10,000 waiting a logarithm grows by a third.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gateway.core.book import Book
from gateway.core.commitment import COMMITMENTS, Ending, Evidence
from gateway.core.decisions import Mode
from gateway.core.geometry import Weighing
from gateway.core.guards import Guards
from gateway.core.lane_table import LaneTable, LaneTerms
from gateway.core.ledger import Budget
from gateway.core.names import STANDARD_LANE, LaneName, TenantName
from gateway.core.policies import POLICIES
from gateway.core.queue import QueueLimits
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Need
from support.tickets import A, ids, ticket, tid

FEW, MANY = 1_000, 10_000
ROUNDS = 200
LOGARITHM = 4 / 3
NOISE = 1.5
LANES = (STANDARD_LANE, LaneName("batch"))
NEED = Need(4, 1, 16, 48, Weighing(16, 64))


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the waiting are spread. policy: the order within each line."""

    name: str
    tenants: int
    lanes: int = 1
    policy: str = "fifo"


ARRANGEMENTS = [
    Arrangement("one tenant", 1),
    Arrangement("one tenant, by deadline", 1, policy="deadline"),
    Arrangement("fifty tenants in two lanes", 50, lanes=2),
    Arrangement("a tenant for each", 1_000_000),
]


class Crowd:
    """A book in which so many wait, all of which fit by so many at a time as run."""

    def __init__(self, arrangement: Arrangement, waiting: int, running: int = 16, commitment: str = "strict") -> None:
        self._arrangement = arrangement
        self._next = 0
        self._now = 0.0
        self._running = deque(range(running))
        self._book = Book(
            mode=Mode.ENFORCE,
            commitment=COMMITMENTS[commitment](Evidence()),
            policy=POLICIES[arrangement.policy],
            limits=QueueLimits(max_requests=10 * MANY),
            lanes=LaneTable(tuple(LaneTerms(name) for name in LANES)),
            guards=Guards(),
        )
        self._book.set_backend(A, budget=Budget(4 * running), serving=True, now=0.0)
        self._book.read_engine(A, 0, overrun_fails_all=False, now=0.0)
        for _ in range(waiting + running):
            self._join()

    def cost_us(self) -> float:
        """Of one decision, the least of several rounds."""
        return min(self._round_us() for _ in range(5))

    def _round_us(self) -> float:
        started = time.process_time()
        for _ in range(ROUNDS):
            self._running += ids(self._book.release(tid(self._running.popleft()), now=self._now))
            self._join()
        return (time.process_time() - started) / ROUNDS * 1e6

    def told_us(self) -> dict[str, float]:
        """Of what is told of one that runs, by what it is: the least of several rounds, each about others."""
        book, learned = self._book, ticket(-1, 4)
        calls: dict[str, Callable[[int], object]] = {
            "first token": lambda number: book.first_token(tid(number), now=self._now),
            "progress": lambda number: book.progress(tid(number), 20, now=self._now),
            "gaps": lambda number: book.saw_gaps(A, 0.1, 4, now=self._now),
            "free blocks": lambda number: book.free_blocks(A),
            "an end learned from": lambda number: book.learn(learned, 20, Ending.LEFT, now=self._now),
        }
        return {name: min(self._told_us(call) for _ in range(4)) for name, call in calls.items()}

    def _told_us(self, call: Callable[[int], object]) -> float:
        several = [self._running[number] for number in range(ROUNDS)]
        self._running.rotate(-ROUNDS)
        started = time.process_time()
        for number in several:
            call(number)
        return (time.process_time() - started) / ROUNDS * 1e6

    def _join(self) -> None:
        number, arrangement = self._next, self._arrangement
        self._next += 1
        self._now += 0.01
        terms = TenantTerms(TenantName(str(number % arrangement.tenants)))
        each = ticket(number, needs={A: NEED}, arrived=self._now, deadline=self._now + 1e6 - number % 97)
        self._book.join(replace(each, terms=terms, lane=LANES[number % arrangement.lanes]), now=self._now)


@pytest.mark.slow
@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda arrangement: str(arrangement.name))
def test_a_decision_costs_at_most_logarithmically_more_with_ten_times_as_many_waiting(arrangement: Arrangement) -> None:
    few, many = (Crowd(arrangement, waiting).cost_us() for waiting in (FEW, MANY))
    print(f"{arrangement.name}: {few:.1f} us with {FEW} waiting, {many:.1f} us with {MANY}, ratio {many / few:.2f}")
    assert many <= LOGARITHM * NOISE * few


@pytest.mark.slow
@pytest.mark.parametrize("commitment", sorted(COMMITMENTS))
def test_ten_times_as_many_running_and_waiting_make_no_decision_dearer_than_a_logarithm(commitment: str) -> None:
    few, many = (Crowd(ARRANGEMENTS[2], count, count, commitment) for count in (FEW, MANY))
    costs = {"a decision": (few.cost_us(), many.cost_us())}
    costs |= {name: (us, many_us) for (name, us), many_us in zip(few.told_us().items(), many.told_us().values(), strict=True)}
    for name, (few_us, many_us) in costs.items():
        print(f"{commitment}: {name} {few_us:.1f} us with {FEW} running, {many_us:.1f} us with {MANY}")
    assert {name: pair for name, pair in costs.items() if pair[1] > LOGARITHM * NOISE * pair[0]} == {}


def test_a_request_that_fits_costs_little_beside_one_that_waits() -> None:
    """Nobody waits: a grant and its release, beside the same for one out of a line."""
    crowd = Crowd(ARRANGEMENTS[0], FEW)
    book = Book(
        mode=Mode.ENFORCE,
        commitment=COMMITMENTS["strict"](Evidence()),
        policy=POLICIES["fifo"],
        limits=QueueLimits(max_requests=MANY),
    )
    book.set_backend(A, budget=Budget(64), serving=True, now=0.0)
    each = [ticket(number, 4) for number in range(ROUNDS)]
    rounds = []
    for _ in range(5):
        started = time.process_time()
        for one in each:
            book.join(one, now=0.0)
            book.release(one.id, now=0.0)
        rounds.append((time.process_time() - started) / ROUNDS * 1e6)
    fits, waits = min(rounds), crowd.cost_us()
    print(f"{fits:.1f} us for one that fits, {waits:.1f} us for one that waits")
    assert fits < waits / 2
