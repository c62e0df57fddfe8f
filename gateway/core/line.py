"""A line: the tickets of one tenant in one lane of one pool, in the order of its policy. A lane: the lines of its tenants.

A waiting ticket has its place for as long as it waits: its rank is asked once. Which line's turn it is, is decided by
core/lanes.py.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final

from gateway.core.lane_table import LaneTerms
from gateway.core.names import PoolName, TenantName
from gateway.core.policies import Policy
from gateway.core.shares import Share, Turns
from gateway.core.snapshots import LineSnapshot, TenantSnapshot
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Ticket

_FIRST_GUESS_S: Final = 1.0  # of how long a hold lasts, until one has ended

_place = attrgetter("place")


class Waiting:
    """A ticket that stands, or is about to stand, in a line.

    blocks, seats: what it would be charged where it needs least. passes: how often it was passed while it was the head.
    is_collecting: it may not be passed any more; freed room collects for it (core/backfill.py).
    """

    __slots__ = ("age", "blocks", "is_collecting", "is_waiting", "line", "passes", "place", "seats", "sequence", "ticket")

    def __init__(self, ticket: Ticket, line: "Line", *, sequence: int, blocks: int, seats: int) -> None:
        self.ticket = ticket
        self.line = line
        self.sequence = sequence
        self.blocks = blocks
        self.seats = seats
        self.place = (line.policy.rank(ticket), sequence)
        self.age = (ticket.arrived, sequence)
        self.passes = 0
        self.is_collecting = False
        self.is_waiting = False


class Line(Share):
    """Tickets of one tenant, first to go first. terms: those that came with its latest ticket.

    Joining and leaving move list entries in memory, which for ten thousand of them costs a few microseconds.
    """

    __slots__ = ("_order", "blocks", "is_parked", "lane", "policy", "seats", "terms")

    def __init__(self, lane: "Lane", terms: TenantTerms, policy: Policy) -> None:
        super().__init__(terms.weight)
        self.lane = lane
        self.terms = terms
        self.policy = policy
        self.blocks = 0
        self.seats = 0
        self.is_parked = False  # its tenant is at its cap: it takes no turns
        self._order: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._order)

    def __bool__(self) -> bool:
        return bool(self._order)

    def __getitem__(self, position: int) -> Waiting:
        return self._order[position]

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._order)

    @property
    def tenant(self) -> TenantName:
        return self.terms.name

    @property
    def head(self) -> Waiting | None:
        """Who goes first, None if nobody waits."""
        return self._order[0] if self._order else None

    def first(self, most: int) -> list[Waiting]:
        """The first `most`, in order."""
        return self._order[:most]

    def position(self, waiting: Waiting) -> int:
        """How many stand before that ticket, whether it stands in the line or is about to."""
        order, place = self._order, waiting.place
        # Mostly it is the next to go, or the last to have come: neither is searched for.
        if not order or place <= order[0].place:
            return 0
        if place > order[-1].place:
            return len(order)
        return bisect_left(order, place, key=_place)

    def rest(self) -> None:
        """Its tenant may neither wait nor hold anything now, and is forgotten some day."""
        if not self.held_blocks and not self._order:
            self.lane.idle[self.terms.name] = None

    def join(self, waiting: Waiting) -> None:
        """Take the place that the policy gives."""
        self._order.insert(self.position(waiting), waiting)
        self.blocks += waiting.blocks
        self.seats += waiting.seats
        waiting.is_waiting = True

    def reweigh(self, waiting: Waiting, ticket: Ticket, *, blocks: int, seats: int) -> None:
        """A ticket that stands in the line needs something else than it did. It is not ranked again."""
        self.blocks += blocks - waiting.blocks
        self.seats += seats - waiting.seats
        waiting.ticket, waiting.blocks, waiting.seats = ticket, blocks, seats

    def remove(self, waiting: Waiting) -> None:
        """Leave the line, for whatever reason. Raises ValueError if the ticket does not stand in it."""
        position = self.position(waiting)
        if position == len(self._order) or self._order[position] is not waiting:
            raise ValueError(f"ticket {waiting.ticket.id} does not stand in this line")
        del self._order[position]
        self.blocks -= waiting.blocks
        self.seats -= waiting.seats
        waiting.is_waiting = False


class Lane(Share):
    """One lane of one pool: the lines of its tenants. budget_blocks: of all the pool's backends, as far as they are known."""

    __slots__ = (
        "_budget_blocks",
        "blocks",
        "has_cap",
        "hold_s",
        "idle",
        "lines",
        "max_requests",
        "pool",
        "requests",
        "seats",
        "terms",
        "turns",
    )

    def __init__(self, pool: PoolName, terms: LaneTerms, max_requests: int, budget_blocks: Callable[[], int]) -> None:
        super().__init__(terms.weight)
        self.max_requests = max_requests if terms.max_requests is None else terms.max_requests
        self._budget_blocks = budget_blocks
        self.has_cap = terms.cap_blocks is not None or terms.cap_share is not None
        self.pool = pool
        self.terms = terms
        self.turns: Turns[Line] = Turns()
        self.lines: dict[TenantName, Line] = {}
        self.idle: dict[TenantName, None] = {}  # of those that neither wait nor hold, the longest idle first
        self.requests = 0
        self.blocks = 0
        self.seats = 0
        self.hold_s = _FIRST_GUESS_S  # mean time of a hold: what a grant is charged by before its end is known

    @property
    def cap_blocks(self) -> int | None:
        """Blocks that it may hold; None: no cap."""
        return self.terms.cap_of(self._budget_blocks()) if self.has_cap else None

    def snapshot(self) -> LineSnapshot:
        lines = self.lines.values()
        return LineSnapshot(
            requests=self.requests,
            blocks=self.blocks,
            oldest_arrived=min((waiting.ticket.arrived for line in lines for waiting in line), default=None),
            head_passes=max((line.head.passes for line in lines if line.head is not None), default=0),
            max_requests=self.max_requests,
            weight=self.weight,
            held_blocks=self.held_blocks,
            cap_blocks=self.cap_blocks,
            tenants={
                line.tenant: TenantSnapshot(len(line), line.blocks, line.held_blocks)
                for line in lines
                if line or line.held_blocks
            },
        )

    def __repr__(self) -> str:
        name = f"{self.pool}/{self.terms.name}"
        heads = [line.head for line in self.lines.values() if line.head is not None]
        if not heads:
            return f"{name}: nobody waits"
        first = next((head for head in heads if head.line is next(iter(self.turns), None)), heads[0])
        collecting = ", and room collects for it" if first.is_collecting else ""
        return (
            f"{name}: {self.requests} wait for {self.blocks} blocks, "
            f"first is ticket {first.ticket.id} with {first.blocks}, passed {first.passes} times{collecting}"
        )
