"""The ledger: block and seat arithmetic, per backend. It decides nothing about order; it says what fits and what is held.

Invariants, checked by tests after every step:
* held equals the sum of the live reservations' charges, per backend, and likewise worst blocks and seats;
* what is granted by `fits` keeps charged + foreign within the limit (budget - reserve, or less where charges are forecast),
  or is charged nothing that would not fit with everybody's worst within budget - reserve, and keeps the seats within the
  seats there are; or it is one request alone within budget - foreign;
* a budget that shrinks below what is held admits nobody until it drained;
* a second release frees nothing and says so;
* when all reservations have ended, held is zero.

Every change is O(1): running sums, never summed anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.core.commitment import Commitment
from gateway.core.line import Line
from gateway.core.names import BackendName, LaneName, TicketId
from gateway.core.snapshots import BackendSnapshot
from gateway.core.ticket import Need, Ticket


@dataclass(frozen=True, slots=True)
class Budget:
    """What we may plan with on a backend. reserve_blocks: the part never granted beside others. seats None: no limit known."""

    blocks: int
    reserve_blocks: int = 0
    seats: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_blocks < self.blocks:
            raise ValueError(f"a reserve lies between 0 and the budget: {self}")
        if self.seats is not None and self.seats < 1:
            raise ValueError(f"a backend has at least one seat: {self}")


@dataclass(eq=False, slots=True)
class Reservation:
    """Blocks and seats held for one ticket on one backend. Changed by the ledger only.

    need: what the ticket needs there by the best count so far; its seats stay those that were granted.
    line, hold_s: the queue's: in which line its share is charged, and for how many seconds.
    """

    ticket: Ticket
    backend: BackendName
    need: Need
    seats: int
    charged_blocks: int
    started: float
    output_tokens: int = 0
    line: Line = field(init=False, repr=False)
    hold_s: float = field(init=False, repr=False)

    @property
    def worst_blocks(self) -> int:
        return self.need.worst_blocks


class BackendLedger:
    """One backend's page of the ledger. Read freely; written by the Ledger only."""

    __slots__ = (
        "_commitment",
        "budget",
        "charged_blocks",
        "foreign_blocks",
        "in_flight",
        "name",
        "seat_limit",
        "seats",
        "seats_held",
        "serving",
        "strict_limit_blocks",
        "strict_room_blocks",
        "worst_blocks",
    )

    def __init__(self, name: BackendName, commitment: Commitment) -> None:
        self.name = name
        self._commitment = commitment
        self.budget: Budget | None = None
        self.serving = False
        self.foreign_blocks = 0
        self.strict_limit_blocks = 0  # that may be taken where everybody is charged their worst
        self.strict_room_blocks = -1  # of them that are left to us, however much of it is held; none while nothing is granted
        self.charged_blocks = 0
        self.worst_blocks = 0
        self.seats_held = 0
        self.in_flight = 0
        self.seat_limit: int | None = None  # sequences that a guard lets run at once, whatever seats there are
        # Sequences that may run at once: the engine's seats, or fewer by a guard; None if no limit is known.
        self.seats: int | None = None

    @property
    def taken_blocks(self) -> int:
        """Blocks that count as occupied: ours as charged, and those of strangers."""
        return self.charged_blocks + self.foreign_blocks

    @property
    def limit_blocks(self) -> int:
        """Blocks that may be taken in all; 0 while no capacity is known. A margin is for forecasts: where all are charged
        their worst, there is none."""
        if self.charged_blocks == self.worst_blocks or self.budget is None:
            return self.strict_limit_blocks
        return self._commitment.limit_blocks(self.name, self.budget.blocks, self.budget.reserve_blocks)

    @property
    def free_blocks(self) -> int:
        """Blocks left below the limit; negative while more is taken than may be."""
        return self.limit_blocks - self.charged_blocks - self.foreign_blocks

    @property
    def free_seats(self) -> int | None:
        """Seats left, negative while more are taken than there are; None if no limit is known."""
        seats = self.seats
        return None if seats is None else seats - self.seats_held

    @property
    def has_room(self) -> bool:
        """Whether anything at all could be granted here now: a quick no before many tickets are tried."""
        if not self.serving or self.budget is None:
            return False
        if self.in_flight == 0:
            return True
        free_seats = self.free_seats
        if free_seats is not None and free_seats <= 0:
            return False
        return self.free_blocks > 0 or self.worst_blocks < self.strict_room_blocks

    @property
    def is_over(self) -> bool:
        """More is taken than may be, as far as it is known what may be."""
        if self.budget is None:
            return False
        free_seats = self.free_seats
        return self.free_blocks < 0 or (free_seats is not None and free_seats < 0)

    def fits_as_charged(self, need: Need, blocks: int) -> bool:
        """Whether a charge of `blocks` (at least 1) may be held here now for a need that does not fit strictly.

        Alone is the exception: on an empty backend a request may use the reserve, and more seats than there are, because the
        engine can serve it. Nothing fits beside it afterwards, since it already takes more than the limit.
        """
        budget = self.budget
        if budget is None or not self.serving:
            return False
        charged = self.charged_blocks + blocks
        if charged < self.worst_blocks + need.worst_blocks and self._has_seats(need):
            limit = self._commitment.limit_blocks(self.name, budget.blocks, budget.reserve_blocks)
            if charged + self.foreign_blocks <= limit:
                return True
        return self.in_flight == 0 and blocks <= budget.blocks - self.foreign_blocks

    def _has_seats(self, need: Need) -> bool:
        seats = self.seats
        return seats is None or self.seats_held + need.seats <= seats

    def could_ever_hold(self, ticket: Ticket) -> bool:
        """Whether the ticket may run here and is no larger than the whole budget: what it can wait for."""
        need, budget = ticket.needs.get(self.name), self.budget
        return need is not None and budget is not None and need.worst_blocks <= budget.blocks

    def snapshot(self) -> BackendSnapshot:
        budget = self.budget
        return BackendSnapshot(
            serving=self.serving,
            budget_blocks=None if budget is None else budget.blocks,
            reserve_blocks=None if budget is None else budget.reserve_blocks,
            limit_blocks=None if budget is None else self.limit_blocks,
            foreign_blocks=self.foreign_blocks,
            charged_blocks=self.charged_blocks,
            worst_blocks=self.worst_blocks,
            free_blocks=self.free_blocks,
            seats=None if budget is None else budget.seats,
            seats_held=self.seats_held,
            in_flight=self.in_flight,
            is_alone=self.in_flight == 1 and self.is_over,
            commitment=self._commitment.snapshot(self.name),
        )

    def __repr__(self) -> str:
        if self.budget is None:
            capacity = f"{self.charged_blocks} blocks held, no capacity known"
        else:
            capacity = f"{self.charged_blocks} of {self.budget.blocks} blocks held, {self.budget.reserve_blocks} in reserve"
        seats = "" if self.budget is None or self.budget.seats is None else f", {self.seats_held} of {self.budget.seats} seats"
        foreign = f", {self.foreign_blocks} foreign" if self.foreign_blocks else ""
        state = "" if self.serving else ", not serving"
        return f"{self.name}: {capacity}{foreign}{seats}, {self.in_flight} in flight{state}"


class Ledger:
    """All backends and everything that is held on them."""

    def __init__(self, commitment: Commitment) -> None:
        self._commitment = commitment
        self._backends: dict[BackendName, BackendLedger] = {}
        self._reservations: dict[TicketId, Reservation] = {}
        self.backends: Mapping[BackendName, BackendLedger] = self._backends
        self.reservations: Mapping[TicketId, Reservation] = self._reservations  # what each ticket holds that holds something

    def __len__(self) -> int:
        """Tickets that hold something."""
        return len(self._reservations)

    def backend(self, name: BackendName) -> BackendLedger:
        """The page of a backend; an unknown one gets a page on which nothing fits."""
        backend = self._backends.get(name)
        if backend is None:
            backend = self._backends[name] = BackendLedger(name, self._commitment)
        return backend

    def set_backend(self, name: BackendName, budget: Budget | None, *, serving: bool, foreign_blocks: int) -> None:
        """What is known of a backend now. What is held there stays held: holds end with their requests only."""
        if foreign_blocks < 0:
            raise ValueError(f"foreign blocks of {name} cannot be {foreign_blocks}")
        backend = self.backend(name)
        backend.budget = budget
        backend.serving = serving
        backend.foreign_blocks = foreign_blocks
        backend.strict_limit_blocks = 0 if budget is None else budget.blocks - budget.reserve_blocks
        backend.strict_room_blocks = -1 if budget is None or not serving else backend.strict_limit_blocks - foreign_blocks
        self.limit_seats(name, backend.seat_limit)
        self._commitment.has_budget(name, 0 if budget is None else budget.blocks)

    def limit_seats(self, name: BackendName, seat_limit: int | None) -> None:
        """So many sequences may run there at once by a guard, whatever seats the engine has; None: it sets no limit."""
        backend = self.backend(name)
        backend.seat_limit = seat_limit
        of_engine = None if backend.budget is None else backend.budget.seats
        backend.seats = min([seats for seats in (of_engine, seat_limit) if seats is not None], default=None)

    def least_charge(self, ticket: Ticket) -> tuple[int, int]:
        """Blocks and seats that the ticket would be charged now, on the backend where that is least. It may run somewhere."""
        charges = [(self._commitment.charge(ticket, name, need, 0), need.seats) for name, need in ticket.needs.items()]
        return charges[0] if len(charges) == 1 else min(charges)

    def fits(self, ticket: Ticket, name: BackendName, most_blocks: int | None = None) -> BackendLedger | None:
        """The page of that backend if the ticket fits there now, charged no more than `most_blocks`; else None."""
        backend = self._backends.get(name)
        if backend is None:
            return None
        need, seats = ticket.needs[name], backend.seats
        # Strictly, everybody at their worst: then it fits whatever is forecast.
        at_worst = backend.worst_blocks + need.worst_blocks <= backend.strict_room_blocks and (
            seats is None or backend.seats_held + need.seats <= seats
        )
        if at_worst and most_blocks is None:
            return backend
        charged = self._commitment.charge(ticket, name, need, 0)
        if most_blocks is not None and charged > most_blocks:
            return None
        return backend if at_worst or backend.fits_as_charged(need, charged) else None

    def hold(self, ticket: Ticket, name: BackendName, *, now: float) -> Reservation:
        """Hold what the ticket needs on that backend, whether it fits or not: asking first is the caller's part, so that
        observe mode can charge honestly past the limit.

        Raises KeyError if the ticket may not run there, ValueError if it already holds something.
        """
        ticket_id = ticket.id
        if ticket_id in self._reservations:
            raise ValueError(f"ticket {ticket_id} already holds blocks")
        need = ticket.needs[name]
        charged = self._commitment.begin(ticket, name, need)
        reservation = self._reservations[ticket_id] = Reservation(ticket, name, need, need.seats, charged, now)
        backend = self._backends.get(name) or self.backend(name)
        backend.charged_blocks += charged
        backend.worst_blocks += need.worst_blocks
        backend.seats_held += need.seats
        backend.in_flight += 1
        return reservation

    def release(self, ticket_id: TicketId) -> Reservation | None:
        """End a hold and say what it was; None if the ticket holds nothing, as at a second release."""
        reservation = self._reservations.pop(ticket_id, None)
        if reservation is None:
            return None
        backend = self._backends[reservation.backend]
        backend.charged_blocks -= reservation.charged_blocks
        backend.worst_blocks -= reservation.need.worst_blocks
        backend.seats_held -= reservation.seats
        backend.in_flight -= 1
        self._commitment.ended(reservation.ticket)
        return reservation

    def charged_by_lane(self) -> dict[BackendName, dict[LaneName, int]]:
        """What is charged on each backend where anything is, by lane. It looks at every reservation."""
        charged: dict[BackendName, dict[LaneName, int]] = {}
        for reservation in self._reservations.values():
            lanes = charged.setdefault(reservation.backend, {})
            lane = reservation.ticket.lane
            lanes[lane] = lanes.get(lane, 0) + reservation.charged_blocks
        return charged

    def reservation(self, ticket_id: TicketId) -> Reservation | None:
        """What the ticket holds, None if nothing."""
        return self._reservations.get(ticket_id)

    def revise(self, reservation: Reservation, *, worst_blocks: int, output_tokens: int) -> int:
        """More is known of a running request: charge it anew. Returns the blocks that became free, negative if it grew.

        Growth is always allowed, past the limit too: the engine already gave those blocks. Nothing fits until it drained.
        """
        need = reservation.need
        if need.worst_blocks != worst_blocks:
            need = replace(need, worst_blocks=worst_blocks)
        return self._charge_anew(reservation, need, output_tokens)

    def reweigh(self, reservation: Reservation, need: Need) -> int:
        """A running request was counted exactly and needs this instead. Returns as `revise` does."""
        return self._charge_anew(reservation, need, reservation.output_tokens)

    def charge_anew(self, name: BackendName) -> list[tuple[Reservation, int]]:
        """The commitment answers differently now: charge everything that is held on that backend by it. Returns what it is,
        each with the blocks that became free, negative if it grew."""
        return [
            (reservation, self._charge_anew(reservation, reservation.need, reservation.output_tokens))
            for reservation in self._reservations.values()
            if reservation.backend == name
        ]

    def _charge_anew(self, reservation: Reservation, need: Need, output_tokens: int) -> int:
        ticket = reservation.ticket
        charged = self._commitment.charge(ticket, reservation.backend, need, output_tokens)
        freed = reservation.charged_blocks - charged
        backend = self._backends[reservation.backend]
        backend.charged_blocks -= freed
        backend.worst_blocks += need.worst_blocks - reservation.need.worst_blocks
        reservation.need = need
        reservation.charged_blocks = charged
        reservation.output_tokens = output_tokens
        self._commitment.moved(ticket, reservation.backend, need, charged, output_tokens)
        return freed

    def __repr__(self) -> str:
        return "Ledger: " + ("; ".join(map(repr, self._backends.values())) or "no backend")
