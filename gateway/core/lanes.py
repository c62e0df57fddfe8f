"""Lanes: the lines of one pool, whose turn it is among them, and what caps hold them back.

The pool's room is divided among the lanes in which somebody waits, and a lane's among its tenants (core/shares.py); within a
tenant's line the policy ranks. It promises:
* held blocks of a lane and of a line are the sums of what their tickets are charged, after every step;
* a lane that holds nothing may go past its cap with one request: a cap makes nothing unservable. A tenant's cap is never passed
  by a grant;
* who would pass a cap waits for its own kind only: others go on without passing it, and those behind it, in its line or for a
  lane's cap in its lane, do not pass it;
* the line of a ticket for which room collects comes before all others of the pool;
* tenants that neither wait nor hold anything are forgotten beyond `KEPT_IDLE`.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final, TypeVar

from gateway.core.lane_table import LaneTable
from gateway.core.line import Lane, Line, Waiting
from gateway.core.names import BackendName, LaneName, PoolName, TenantName
from gateway.core.policies import PolicyFactory
from gateway.core.shares import Turns
from gateway.core.snapshots import LineSnapshot
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Ticket

KEPT_IDLE: Final = 256
_LOOKED_AT: Final = 64  # of the parties to a division, where a wait is predicted

_age = attrgetter("age")


@dataclass(slots=True)
class TenantUse:
    """One tenant, over all pools. requests: running and waiting."""

    requests: int = 0
    held_blocks: int = 0


ShareT = TypeVar("ShareT", Lane, Line)


class Lanes:
    """All lanes of one pool. uses: every tenant's, shared by all pools. max_requests: may wait in a lane whose
    terms do not say. budget_of: blocks of a backend, 0 while unknown."""

    def __init__(
        self,
        pool: PoolName,
        table: LaneTable,
        policy: PolicyFactory,
        uses: dict[TenantName, TenantUse],
        max_requests: int,
        budget_of: Callable[[BackendName], int],
    ) -> None:
        self.pool = pool
        self.backends: dict[BackendName, None] = {}  # every backend that a ticket of this pool could ever run on, in order
        self.lanes: dict[LaneName, Lane] = {}
        self._table = table
        self._policy = policy
        self._uses = uses
        self._max_requests = max_requests
        self._budget_of = budget_of
        self.requests = 0  # that wait
        self._turns: Turns[Lane] = Turns()
        self._collecting: list[Waiting] = []  # by age

    def __iter__(self) -> Iterator[Waiting]:
        """Waiting tickets, in no particular order between lines."""
        return (waiting for lane in self.lanes.values() for line in lane.lines.values() for waiting in line)

    def budget_blocks(self) -> int:
        """Of all its backends, as far as they are known."""
        return sum(map(self._budget_of, self.backends))

    def lane(self, name: LaneName) -> Lane:
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(self.pool, self._table.terms(name), self._max_requests, self.budget_blocks)
        return lane

    def line(self, lane_name: LaneName, terms: TenantTerms, *, now: float) -> Line:
        """The tenant's line in that lane, empty if it was not there. From now on it goes by these terms."""
        lane = self.lanes.get(lane_name) or self.lane(lane_name)
        line = lane.lines.get(terms.name)
        if line is None:
            if len(lane.idle) >= KEPT_IDLE:
                longest = next(iter(lane.idle))
                del lane.idle[longest], lane.lines[longest]
            line = lane.lines[terms.name] = Line(lane, terms, self._policy())
            lane.idle[terms.name] = None
        elif line.terms is not terms:
            line.terms = terms
            if line.is_parked:
                self.unpark(line, now=now)
            line.weight = terms.weight
            lane.turns.moved(line, now)
        return line

    # Who waits

    def join(self, waiting: Waiting, *, now: float) -> None:
        """Stand in line."""
        line, lane = waiting.line, waiting.line.lane
        lane.idle.pop(line.tenant, None)
        line.join(waiting)
        self.requests += 1
        lane.requests += 1
        lane.blocks += waiting.blocks
        lane.seats += waiting.seats
        if line.is_parked and line.head is waiting:
            self.unpark(line, now=now)
        elif line.key is None and not line.is_parked:
            self._enter(line, now=now)

    def remove(self, waiting: Waiting, *, now: float) -> None:
        """Leave the line. Raises ValueError if the ticket does not stand in it."""
        line, lane = waiting.line, waiting.line.lane
        line.remove(waiting)
        self.requests -= 1
        lane.requests -= 1
        lane.blocks -= waiting.blocks
        lane.seats -= waiting.seats
        if not line:
            self._leave(line)
            line.rest()
        elif line.is_parked:
            self.unpark(line, now=now)

    def reweigh(self, waiting: Waiting, ticket: Ticket, *, blocks: int, seats: int, now: float) -> None:
        """A waiting ticket needs something else than it did. Its place stays."""
        line, lane = waiting.line, waiting.line.lane
        lane.blocks += blocks - waiting.blocks
        lane.seats += seats - waiting.seats
        line.reweigh(waiting, ticket, blocks=blocks, seats=seats)
        if line.is_parked:
            self.unpark(line, now=now)

    # Whose turn it is

    def head(self, *, now: float) -> Waiting | None:
        """Whose turn it is, of those whom no cap holds back; None if there is nobody."""
        first = self._pinned() if self._collecting else None
        if first is None and (lane := self._turns.first(now)) is not None:
            first = lane.turns.first(now)
        if first is not None and not first.lane.has_cap and first.terms.cap_blocks is None:
            return first.head
        for _, lines in self._open_lanes(1, now):
            return lines[0].head
        return None

    def considered(self, most: int, *, now: float) -> list[Waiting]:
        """The first `most` in turn whom no cap holds back: the heads of all lines, then who stands second, and so on."""
        lines = [line for _, found in self._open_lanes(most, now) for line in found]
        if len(lines) == 1:
            return lines[0].first(most)
        considered: list[Waiting] = []
        depth = 0
        while lines and len(considered) < most:
            considered += [line[depth] for line in lines[: most - len(considered)]]
            depth += 1
            lines = [line for line in lines if len(line) > depth]
        return considered

    def is_within(self, waiting: Waiting, lookahead: int, *, now: float) -> bool:
        """Whether no more than `lookahead` come before a ticket that is about to join, counted as `considered` does."""
        if self.requests <= lookahead:
            return True
        before = depth = waiting.line.position(waiting)
        for other in (line for lane in self.lanes.values() for line in lane.turns):
            if before > lookahead:
                return False
            if other is not waiting.line:
                before += min(len(other), depth)
                before += len(other) > depth and self.is_line_ahead(other, waiting.line, now=now)
        return before <= lookahead

    def is_ahead(self, one: Waiting, other: Waiting, *, now: float) -> bool:
        """Whether `other` would pass `one` by being granted first. Both are of this pool."""
        if one.line is other.line:
            return one.place < other.place
        return self.is_line_ahead(one.line, other.line, now=now)

    def is_line_ahead(self, one: Line, other: Line, *, now: float) -> bool:
        """Whether it would be the turn of `one`, of two lines, before that of `other`."""
        pinned = self._pinned()
        if pinned is one or pinned is other:
            return pinned is one
        if one.lane is other.lane:
            return one.lane.turns.is_ahead(one, other, now)
        return self._turns.is_ahead(one.lane, other.lane, now)

    def collects(self, waiting: Waiting) -> None:
        """From now on freed room collects for that ticket."""
        insort(self._collecting, waiting, key=_age)

    def collects_no_longer(self, waiting: Waiting) -> None:
        self._collecting.remove(waiting)

    # What caps hold back

    def room(self, line: Line) -> int | None:
        """Blocks that a ticket of that line may be charged now by the caps of its lane and its tenant; None: no cap."""
        lane, terms = line.lane, line.terms
        room: int | None = None
        if lane.held_blocks and (cap_blocks := lane.cap_blocks) is not None:
            room = cap_blocks - lane.held_blocks
        if terms.cap_blocks is not None:
            use = self._uses.get(terms.name)
            left = terms.cap_blocks - (use.held_blocks if use is not None else 0)
            room = left if room is None else min(room, left)
        return room

    def is_capped(self, waiting: Waiting) -> bool:
        """Whether a cap alone keeps a ticket from being granted."""
        room = self.room(waiting.line)
        return room is not None and waiting.blocks > room

    def is_held_back(self, waiting: Waiting, *, now: float) -> bool:
        """Whether a ticket would pass a cap by being granted, or somebody before it who waits for one."""
        line, lane = waiting.line, waiting.line.lane
        if not lane.has_cap and line.terms.cap_blocks is None:
            return False
        if self.is_capped(waiting):
            return True
        first = line.head
        if first is not None and first is not waiting and first.place < waiting.place and self._is_at_cap(line):
            return True
        if not lane.held_blocks or lane.cap_blocks is None:
            return False
        lines = self._first_lines(lane, 1, now)
        first = lines[0].head if lines else None
        if first is None or first is waiting or not self._passes_lane_cap(first):
            return False
        return self.is_ahead(first, waiting, now=now)

    # What is held

    def took(self, line: Line, blocks: int, seconds: float, *, now: float) -> None:
        """A ticket of that line was granted so many blocks, expected for so many seconds."""
        line.lane.turns.served(line, now)
        self._turns.served(line.lane, now)
        self.charge(line, blocks, seconds, now=now)

    def charge(self, line: Line, blocks: int, seconds: float, *, now: float) -> None:
        """A hold of that line, expected to last so many seconds in all, grew by so many blocks; or shrank, if negative."""
        line.lane.turns.charge(line, blocks, seconds, now)
        self._turns.charge(line.lane, blocks, seconds, now)

    # What can be seen

    def ahead(self, waiting: Waiting, *, is_new: bool) -> tuple[float, float]:
        """Blocks and seats that are granted up to and with that ticket, if it goes by turns and weights from here on.

        is_new: it takes its place now; else it comes back later, to the end of its line. Of its own line as many as stand
        before it, each taken for an average one; of every other as much as that one's weight gives it meanwhile.
        """
        line, lane = waiting.line, waiting.line.lane
        part = line.position(waiting) / len(line) if is_new and line else 1.0
        need = line.blocks * part + waiting.blocks, line.seats * part + waiting.seats
        need = _beside(need, line, lane.turns)
        return _beside(need, lane, self._turns)

    def snapshot(self) -> dict[LaneName, LineSnapshot]:
        """Every lane that was ever used."""
        return {name: lane.snapshot() for name, lane in self.lanes.items()}

    # In order

    def _open_lanes(self, most: int, now: float) -> Iterator[tuple[Lane, list[Line]]]:
        """Lanes in turn, with their first lines in turn, of whom no cap holds back; no more than `most` lines in all."""
        for lane in self._lanes_in_turn(now):
            lines = self._first_lines(lane, most, now)
            if not lines:
                continue
            if lines[0].head is not None and self._passes_lane_cap(lines[0].head):
                self._turns.level(lane, now)  # what its own cap keeps from it is no claim on the others
                continue
            yield lane, lines
            most -= len(lines)
            if not most:
                return

    def _lanes_in_turn(self, now: float) -> list[Lane]:
        lanes = self._turns.sorted(now)
        pinned = self._pinned()
        if pinned is not None and len(lanes) > 1:
            lanes.remove(pinned.lane)
            lanes.insert(0, pinned.lane)
        return lanes

    def _first_lines(self, lane: Lane, most: int, now: float) -> list[Line]:
        """The first lines of a lane in turn. Those of tenants at their cap are set aside, until something changes for them."""
        while (first := lane.turns.first(now)) is not None and self._is_at_cap(first):
            self._park(first)
        pinned = self._pinned()
        lines = [pinned] if pinned is not None and pinned.lane is lane else []
        at_cap = []
        for line in lane.turns:
            if len(lines) >= most:
                break
            if self._is_at_cap(line):
                at_cap.append(line)
            elif line is not pinned:
                lines.append(line)
        for line in at_cap:
            self._park(line)
        return lines

    def _pinned(self) -> Line | None:
        """The line of the oldest ticket for which room collects and that no cap holds back: its turn comes first."""
        for waiting in self._collecting:
            if waiting.line.key is not None and not self._is_at_cap(waiting.line) and not self.is_capped(waiting):
                return waiting.line
        return None

    def _is_at_cap(self, line: Line) -> bool:
        """Whether the first of a line would pass its tenant's cap."""
        cap_blocks = line.terms.cap_blocks
        if cap_blocks is None or line.head is None:
            return False
        use = self._uses.get(line.tenant)
        return use is not None and use.held_blocks + line.head.blocks > cap_blocks

    def _passes_lane_cap(self, waiting: Waiting) -> bool:
        lane = waiting.line.lane
        if not lane.held_blocks:
            return False
        cap_blocks = lane.cap_blocks
        return cap_blocks is not None and lane.held_blocks + waiting.blocks > cap_blocks

    def _park(self, line: Line) -> None:
        self._leave(line)
        line.is_parked = True

    def unpark(self, line: Line, *, now: float) -> None:
        """Something has changed for a line that was set aside: it takes turns again, unless it is still at its cap."""
        line.is_parked = False
        if line:
            self._enter(line, now=now)

    def _enter(self, line: Line, *, now: float) -> None:
        if line.lane.key is None:
            self._turns.enter(line.lane, now)
        line.lane.turns.enter(line, now)

    def _leave(self, line: Line) -> None:
        line.is_parked = False
        if line.key is not None:
            line.lane.turns.leave(line)
            if not line.lane.turns:
                self._turns.leave(line.lane)


def _beside(need: tuple[float, float], share: ShareT, turns: Turns[ShareT]) -> tuple[float, float]:
    """What all of a division are granted while one of them is granted so many blocks and seats."""
    if turns.sole() is share:
        return need
    blocks, seats = need
    others_blocks = others_seats = 0.0
    looked_at = 0
    for other in islice(turns, _LOOKED_AT):
        looked_at += 1
        if other is not share and other.blocks:
            meanwhile = min(1.0, blocks * other.weight / share.weight / other.blocks)
            others_blocks += other.blocks * meanwhile
            others_seats += other.seats * meanwhile
    part = len(turns) / looked_at if looked_at else 1.0  # of many the first are taken for all
    return blocks + others_blocks * part, seats + others_seats * part
