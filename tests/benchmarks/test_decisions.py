"""What a decision of the book costs while many wait: a release, the grant that it makes possible, a newcomer in its place.

    python -m pytest tests/benchmarks/test_decisions.py -s

Figures are printed; only ratios are demanded. From 1,000 to 10,000 waiting a logarithm grows by a third.
"""

import time
from dataclasses import dataclass, replace

import pytest

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Mode
from gateway.core.lane_table import LaneTable, LaneTerms
from gateway.core.ledger import Budget
from gateway.core.names import STANDARD_LANE, LaneName, TenantName
from gateway.core.policies import POLICIES
from gateway.core.queue import QueueLimits
from gateway.core.tenant import TenantTerms
from support.tickets import A, ids, ticket, tid

FEW, MANY = 1_000, 10_000
ROUNDS = 200
LOGARITHM = 4 / 3
NOISE = 1.5
LANES = (STANDARD_LANE, LaneName("batch"))


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
    """A book in which so many wait, all of which fit by sixteen at a time."""

    def __init__(self, arrangement: Arrangement, waiting: int) -> None:
        self._arrangement = arrangement
        self._next = 0
        self._now = 0.0
        self._running: list[int] = []
        self._book = Book(
            mode=Mode.ENFORCE,
            commitment=StrictCommitment(),
            policy=POLICIES[arrangement.policy],
            limits=QueueLimits(max_requests=10 * MANY),
            lanes=LaneTable(tuple(LaneTerms(name) for name in LANES)),
        )
        self._book.set_backend(A, budget=Budget(64), serving=True, now=0.0)
        self._running = list(range(16))
        for _ in range(waiting + 16):
            self._join()

    def cost_us(self) -> float:
        """Of one decision, the least of several rounds."""
        return min(self._round_us() for _ in range(5))

    def _round_us(self) -> float:
        started = time.process_time()
        for _ in range(ROUNDS):
            self._running += ids(self._book.release(tid(self._running.pop(0)), now=self._now))
            self._join()
        return (time.process_time() - started) / ROUNDS * 1e6

    def _join(self) -> None:
        number, arrangement = self._next, self._arrangement
        self._next += 1
        self._now += 0.01
        terms = TenantTerms(TenantName(str(number % arrangement.tenants)))
        each = ticket(number, 4, arrived=self._now, deadline=self._now + 1e6 - number % 97)
        self._book.join(replace(each, terms=terms, lane=LANES[number % arrangement.lanes]), now=self._now)


@pytest.mark.slow
@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda arrangement: str(arrangement.name))
def test_a_decision_costs_at_most_logarithmically_more_with_ten_times_as_many_waiting(arrangement: Arrangement) -> None:
    few, many = (Crowd(arrangement, waiting).cost_us() for waiting in (FEW, MANY))
    print(f"{arrangement.name}: {few:.1f} us with {FEW} waiting, {many:.1f} us with {MANY}, ratio {many / few:.2f}")
    assert many <= LOGARITHM * NOISE * few


def test_a_request_that_fits_costs_little_beside_one_that_waits() -> None:
    """Nobody waits: a grant and its release, beside the same for one out of a line."""
    crowd = Crowd(ARRANGEMENTS[0], FEW)
    book = Book(
        mode=Mode.ENFORCE, commitment=StrictCommitment(), policy=POLICIES["fifo"], limits=QueueLimits(max_requests=MANY)
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
