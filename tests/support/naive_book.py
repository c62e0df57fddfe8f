"""A second book, as naive as can be: lists, recomputed at every question. It knows the rules, not how to be quick.

It knows strict commitment and the fifo order only. Written from the rules, without a look at how core/book.py keeps them.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.ticket import Ticket


@dataclass(eq=False)
class Running:
    ticket: Ticket
    backend: BackendName
    worst: int


@dataclass(eq=False)
class Entry:
    ticket: Ticket
    order: int
    passes: int = 0
    was_head: bool = False

    @property
    def age(self) -> tuple[float, int]:
        return (self.ticket.arrived, self.order)


@dataclass
class Backend:
    budget: Budget | None = None
    serving: bool = False
    foreign: int = 0


@dataclass
class Drain:
    """Every moment at which waiting began or ended, every release and every shrink."""

    moments: list[tuple[float, bool]] = field(default_factory=list)
    releases: list[tuple[float, int, int]] = field(default_factory=list)
    shrinks: list[tuple[int, int]] = field(default_factory=list)  # after how many releases, blocks

    @property
    def waits(self) -> bool:
        return bool(self.moments) and self.moments[-1][1]

    def say(self, somebody: bool, now: float) -> None:
        if somebody != self.waits:
            self.moments.append((now, somebody))

    def waited_s(self, start: float, end: float) -> float:
        total = 0.0
        for index, (since, somebody) in enumerate(self.moments):
            until = self.moments[index + 1][0] if index + 1 < len(self.moments) else end
            if somebody:
                total += max(0.0, min(until, end) - max(since, start))
        return total

    def sums(self, kept: float) -> tuple[float, float, float]:
        """Seconds of waiting, blocks and seats released, of which at each release so much is kept."""
        last = len(self.releases) - 1
        seconds = blocks_sum = seats_sum = 0.0
        start = float("-inf")
        for index, (end, released_blocks, released_seats) in enumerate(self.releases):
            weight = kept ** (last - index)
            seconds += weight * self.waited_s(start, end)
            blocks_sum += weight * released_blocks
            seats_sum += weight * released_seats
            start = end
        blocks_sum += sum(kept ** (last + 1 - after) * freed for after, freed in self.shrinks)
        return seconds, blocks_sum, seats_sum

    def wait_s(self, blocks: float, seats: float, now: float) -> float | None:
        if len(self.releases) < 10:
            return None
        # The shortest memory that reaches as many releases back as lie ahead, at their mean size of late.
        last = len(self.releases) - 1
        of_late = sum(0.9 ** (last - index) for index in range(last + 1))
        ahead = blocks * of_late / self.sums(0.9)[1] - 1e-9
        kept = next((1.0 - 1.0 / releases for releases in (10, 40, 160) if ahead <= releases), 1.0 - 1.0 / 160)
        seconds, blocks_sum, seats_sum = self.sums(kept)
        seconds = max(seconds, kept * seconds + self.waited_s(self.releases[-1][0], now))
        if seconds <= 0:
            return None
        return max(0.0, blocks * seconds / blocks_sum, seats * seconds / seats_sum)


Decision = BackendName | RejectReason | None
"""Where it runs, why it is refused, or None: it waits."""


class NaiveBook:
    def __init__(self, *, max_requests: int, max_passes: int, lookahead: int, observe: bool) -> None:
        self.max_requests = max_requests
        self.max_passes = max_passes
        self.lookahead = lookahead
        self.observe = observe
        self.backends: dict[BackendName, Backend] = {}
        self.running: list[Running] = []
        self.waiting: list[Entry] = []
        self.drains: dict[PoolName, Drain] = {}
        self.draining = False
        self.order = 0

    # Questions

    def on(self, name: BackendName) -> list[Running]:
        return [run for run in self.running if run.backend == name]

    def charged(self, name: BackendName) -> int:
        return sum(run.worst for run in self.on(name))

    def seats_held(self, name: BackendName) -> int:
        return sum(run.ticket.needs[name].seats for run in self.on(name))

    def is_within(self, name: BackendName, blocks: int, seats: int) -> bool:
        """Whether what is held, with so much more, is within budget - reserve and the seats."""
        backend = self.backends[name]
        assert backend.budget is not None
        budget = backend.budget
        has_blocks = self.charged(name) + backend.foreign + blocks <= budget.blocks - budget.reserve_blocks
        return has_blocks and (budget.seats is None or self.seats_held(name) + seats <= budget.seats)

    def fits(self, ticket: Ticket, name: BackendName) -> bool:
        backend = self.backends.get(name)
        if backend is None or backend.budget is None or not backend.serving:
            return False
        need = ticket.needs[name]
        alone = not self.on(name) and need.worst_blocks <= backend.budget.blocks - backend.foreign
        return self.is_within(name, need.worst_blocks, need.seats) or alone

    def could_hold(self, ticket: Ticket, name: BackendName) -> bool:
        budget = self.backends[name].budget if name in self.backends else None
        return name in ticket.needs and budget is not None and ticket.needs[name].worst_blocks <= budget.blocks

    def never_fits(self, ticket: Ticket) -> bool:
        known = [name for name in ticket.needs if name in self.backends and self.backends[name].budget is not None]
        return bool(known) and not any(self.could_hold(ticket, name) for name in known)

    def servable(self, ticket: Ticket) -> list[BackendName]:
        return [name for name in ticket.needs if self.could_hold(ticket, name) and self.backends[name].serving]

    def line(self, pool: PoolName) -> list[Entry]:
        return sorted((entry for entry in self.waiting if entry.ticket.pool == pool), key=lambda entry: entry.age)

    def heads(self) -> list[Entry]:
        lines = [self.line(pool) for pool in dict.fromkeys(entry.ticket.pool for entry in self.waiting)]
        return sorted((line[0] for line in lines), key=lambda entry: entry.age)

    def collects(self, entry: Entry) -> bool:
        return entry.passes >= self.max_passes and (entry.was_head or entry in self.heads())

    def is_barred(self, entry: Entry, name: BackendName) -> bool:
        ahead = [other for other in self.waiting if other is not entry and other.age < entry.age]
        return any(self.could_hold(other.ticket, name) and self.collects(other) for other in ahead)

    def places(self, entry: Entry) -> list[BackendName]:
        return [name for name in entry.ticket.needs if self.fits(entry.ticket, name) and not self.is_barred(entry, name)]

    def fill(self, name: BackendName) -> Fraction:
        budget = self.backends[name].budget
        return Fraction(self.charged(name) + self.backends[name].foreign, 1 if budget is None else budget.blocks)

    def best_place(self, entry: Entry) -> BackendName | None:
        places = self.places(entry)
        if not places:
            return None
        emptiest = min(places, key=self.fill)
        if not entry.ticket.affinity:
            return emptiest
        favourite = max(
            places, key=lambda name: hashlib.blake2b(entry.ticket.affinity + b"\0" + name.encode(), digest_size=8).digest()
        )
        return emptiest if self.fill(favourite) - self.fill(emptiest) > Fraction(1, 5) else favourite

    def predicted_wait_s(self, ticket: Ticket, now: float, *, at_the_end: bool = False) -> float | None:
        """Before it stand those who are older, each taken for an average one of the line; at the end stands everybody."""
        if ticket.pool not in self.drains:
            return None
        line = self.line(ticket.pool)
        ahead = len(line) if at_the_end else sum(entry.ticket.arrived <= ticket.arrived for entry in line)
        least = [min((need.worst_blocks, need.seats) for need in each.ticket.needs.values()) for each in line]
        own_blocks, own_seats = min((need.worst_blocks, need.seats) for need in ticket.needs.values())
        part = ahead / len(line) if line else 0.0
        blocks = own_blocks + part * sum(pair[0] for pair in least)
        seats = own_seats + part * sum(pair[1] for pair in least)
        endless = False
        for name in self.servable(ticket):
            backend = self.backends[name]
            assert backend.budget is not None
            blocks -= backend.budget.blocks - backend.budget.reserve_blocks - backend.foreign - self.charged(name)
            if backend.budget.seats is None:
                endless = True
            else:
                seats -= backend.budget.seats - self.seats_held(name)
        return self.drains[ticket.pool].wait_s(blocks, 0 if endless else seats, now)

    def is_over(self, name: BackendName) -> bool:
        backend = self.backends.get(name)
        return backend is not None and backend.budget is not None and not self.is_within(name, 0, 0)

    # What happens

    def decide(self, ticket: Ticket, now: float) -> tuple[Decision, Entry]:
        self.order += 1
        entry = Entry(ticket, self.order)
        before = sum(other.age < entry.age for other in self.line(ticket.pool))
        place = self.best_place(entry) if before <= self.lookahead else None
        if place is not None:
            return place, entry
        if self.never_fits(ticket):
            return RejectReason.KV_BUDGET, entry
        if not self.servable(ticket):
            return RejectReason.NO_BACKEND, entry
        if ticket.deadline <= now:
            return RejectReason.QUEUE_TIMEOUT, entry
        if len(self.line(ticket.pool)) >= self.max_requests:
            return RejectReason.QUEUE_FULL, entry
        wait_s = self.predicted_wait_s(ticket, now)
        others = [min(need.worst_blocks for need in other.ticket.needs.values()) for other in self.line(ticket.pool)]
        own = min(need.worst_blocks for need in ticket.needs.values())
        if wait_s is not None and others and 2 * own * len(others) < sum(others):
            wait_s *= max(0.0, 1.0 - self.lookahead / len(others))  # it may pass those before it
        if wait_s is not None and now + wait_s > ticket.deadline:
            return RejectReason.PREDICTED_WAIT, entry
        return None, entry

    def stand_in_line(self, entry: Entry, now: float) -> None:
        self.waiting.append(entry)
        self.drains.setdefault(entry.ticket.pool, Drain())
        self.note_waiting(now)

    def grant(self, entry: Entry, name: BackendName, now: float) -> None:
        """Checks by itself what a grant must never break."""
        if entry in self.waiting:
            self.waiting.remove(entry)
        need = entry.ticket.needs[name]
        if not self.observe:
            assert self.is_within(name, need.worst_blocks, need.seats) or not self.on(name), "over-admitted"
            budget = self.backends[name].budget
            assert budget is not None
            assert need.worst_blocks <= budget.blocks - self.backends[name].foreign, "larger than the budget"
            equals = [other for other in self.line(entry.ticket.pool) if other.ticket.needs == entry.ticket.needs]
            assert all(entry.age < other.age for other in equals), "an equal that is older still waits"
        for head in self.heads():
            if head.age < entry.age and self.could_hold(head.ticket, name):
                head.passes += 1
        self.running.append(Running(entry.ticket, name, need.worst_blocks))
        self.note_pressure(entry.ticket, now)

    def drop(self, entry: Entry, now: float) -> None:
        self.waiting.remove(entry)
        self.note_waiting(now)

    def end(self, run: Running, now: float) -> None:
        drain = self.drains.get(run.ticket.pool)
        if drain is not None and drain.waits:
            drain.releases.append((now, run.worst, run.ticket.needs[run.backend].seats))
        self.running.remove(run)
        self.note_pressure(run.ticket, now)

    def shrink(self, run: Running, worst: int) -> None:
        drain = self.drains.get(run.ticket.pool)
        if drain is not None and drain.waits and worst < run.worst:
            drain.shrinks.append((len(drain.releases), run.worst - worst))
        run.worst = worst

    def note_waiting(self, now: float) -> None:
        if not self.observe:
            for pool, drain in self.drains.items():
                drain.say(any(entry.ticket.pool == pool for entry in self.waiting), now)

    def note_pressure(self, ticket: Ticket, now: float) -> None:
        if self.observe:
            self.drains.setdefault(ticket.pool, Drain()).say(any(self.is_over(name) for name in ticket.needs), now)

    def due(self, now: float) -> list[Entry]:
        return [entry for entry in self.waiting if entry.ticket.deadline <= now]

    def candidates(self) -> Iterator[Entry]:
        """Who is considered, in order: heads and those for whom room collects, the oldest first, then those who may pass
        heads."""
        heads = self.heads()
        collecting = [entry for entry in self.waiting if entry not in heads and self.collects(entry)]
        yield from sorted([*heads, *collecting], key=lambda entry: entry.age)
        for head in heads:
            yield from self.line(head.ticket.pool)[1 : 1 + self.lookahead]

    def settle(self, now: float) -> list[tuple[TicketId, BackendName]]:
        """Grant one, and look at everything anew, until nobody can be granted."""
        granted = []
        while True:
            found = next(((entry, place) for entry in self.candidates() if (place := self.best_place(entry))), None)
            if found is None:
                break
            self.grant(*found, now)
            granted.append((found[0].ticket.id, found[1]))
        self.note_waiting(now)
        self.note_heads()
        return granted

    def note_heads(self) -> None:
        for head in self.heads():
            head.was_head = True
