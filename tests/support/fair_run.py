"""A book on simulated time: requests come as given, run for as long as they say, and what each tenant had is added up."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Changes, Granted, Mode, Queued
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.ledger import Budget
from gateway.core.names import STANDARD_LANE, LaneName, PoolName, TenantName
from gateway.core.policies import POLICIES
from gateway.core.queue import QueueLimits
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Need, Ticket
from support.tickets import A, tid


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a tenant: so many blocks for so many seconds."""

    at: float
    tenant: str
    blocks: int
    seconds: float
    lane: LaneName = STANDARD_LANE


@dataclass(slots=True)
class FairRun:
    """weights: of the tenants. is_fair False is the twin: the same book, to which all tenants and lanes are one."""

    blocks: int
    weights: Mapping[str, float]
    is_fair: bool = True
    lanes: LaneTable = STANDARD_ONLY
    waits: dict[str, list[float]] = field(default_factory=dict)
    _held: dict[int, tuple[Call, float]] = field(default_factory=dict)
    _ended: list[tuple[str, float, float, int]] = field(default_factory=list)
    _ends: list[tuple[float, int]] = field(default_factory=list)

    def run(self, calls: Sequence[Call], *, until: float) -> dict[str, float]:
        """Block-seconds that each tenant had by `until`."""
        book = Book(
            mode=Mode.ENFORCE,
            commitment=StrictCommitment(),
            policy=POLICIES["fifo"],
            limits=QueueLimits(max_requests=1_000_000),
            lanes=self.lanes,
        )
        book.set_backend(A, budget=Budget(self.blocks), serving=True, now=0.0)
        terms = {name: TenantTerms(TenantName(name), weight=weight) for name, weight in self.weights.items()}
        by_id = dict(enumerate(calls))
        for number, call in by_id.items():
            self._end_those_before(book, min(call.at, until), by_id)
            if call.at >= until:
                break
            ticket = Ticket(tid(number), PoolName("model"), {A: Need(call.blocks)}, call.at, 1e9)
            if self.is_fair:
                ticket = replace(ticket, lane=call.lane, terms=terms[call.tenant])
            answer = book.join(ticket, now=call.at)
            assert isinstance(answer, Granted | Queued)
            if isinstance(answer, Granted):
                self._begin(answer, call.at, by_id)
        self._end_those_before(book, until, by_id)
        served = dict.fromkeys(self.weights, 0.0)
        running = [(call.tenant, began, until, call.blocks) for call, began in self._held.values()]
        for tenant, began, ended, blocks in [*self._ended, *running]:
            served[tenant] += blocks * (ended - began)
        return served

    def _end_those_before(self, book: Book, time: float, by_id: Mapping[int, Call]) -> None:
        while self._ends and self._ends[0][0] <= time:
            now, number = heapq.heappop(self._ends)
            call, began = self._held.pop(number)
            self._ended.append((call.tenant, began, now, call.blocks))
            changes: Changes = book.release(tid(number), now=now)
            for granted in changes.granted:
                self._begin(granted, now, by_id)

    def _begin(self, granted: Granted, now: float, by_id: Mapping[int, Call]) -> None:
        number = int(granted.ticket.id)
        call = by_id[number]
        self._held[number] = call, now
        self.waits.setdefault(call.tenant, []).append(now - call.at)
        heapq.heappush(self._ends, (now + call.seconds, number))
