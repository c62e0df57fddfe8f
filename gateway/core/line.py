"""A line: the tickets of one lane of one pool, in the order of its policy.

A waiting ticket has its place for as long as it waits: its rank is asked once. Between two lines the older ticket is ahead.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from gateway.core.names import BackendName, LaneName, PoolName
from gateway.core.policies import Policy
from gateway.core.snapshots import LineSnapshot
from gateway.core.ticket import Ticket

_place = attrgetter("place")
_arrived = attrgetter("ticket.arrived")


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

    def is_ahead_of(self, other: "Waiting") -> bool:
        """Whether `other` would pass this ticket by being granted first: by rank within a line, by age between lines."""
        if self.line is other.line:
            return self.place < other.place
        return self.age < other.age


class Line:
    """Tickets of one lane of one pool, first to go first.

    Joining and leaving move list entries in memory, which for ten thousand of them costs a few microseconds.
    """

    def __init__(self, pool: PoolName, lane: LaneName, policy: Policy) -> None:
        self.pool = pool
        self.lane = lane
        self.policy = policy
        self.backends: dict[BackendName, None] = {}  # every backend that a ticket of this line could ever run on, in order
        self.blocks = 0
        self.seats = 0
        self._order: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: int) -> Waiting:
        return self._order[position]

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._order)

    @property
    def head(self) -> Waiting | None:
        """Who goes first, None if nobody waits."""
        return self._order[0] if self._order else None

    def position(self, waiting: Waiting) -> int:
        """How many stand before that ticket, whether it stands in the line or is about to."""
        return bisect_left(self._order, waiting.place, key=_place)

    def join(self, waiting: Waiting) -> None:
        """Take the place that the policy gives."""
        insort(self._order, waiting, key=_place)
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

    def snapshot(self) -> LineSnapshot:
        head = self.head
        return LineSnapshot(
            requests=len(self._order),
            blocks=self.blocks,
            oldest_arrived=min(map(_arrived, self._order), default=None),
            head_passes=0 if head is None else head.passes,
        )

    def __repr__(self) -> str:
        name = f"{self.pool}/{self.lane}"
        head = self.head
        if head is None:
            return f"{name}: nobody waits"
        collecting = ", and room collects for it" if head.is_collecting else ""
        return (
            f"{name}: {len(self)} wait for {self.blocks} blocks, "
            f"first is ticket {head.ticket.id} with {head.blocks}, passed {head.passes} times{collecting}"
        )
