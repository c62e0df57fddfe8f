"""Builders for tickets and books: a test says what matters to it, the rest is ordinary."""

from collections.abc import Mapping

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Changes, Mode
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket

A = BackendName("a")
B = BackendName("b")
C = BackendName("c")


def tid(number: int) -> TicketId:
    return TicketId(number)


def ticket(
    number: int,
    blocks: int = 1,
    *,
    seats: int = 1,
    needs: Mapping[BackendName, Need] | None = None,
    pool: str = "model",
    arrived: float = 0.0,
    deadline: float = 1000.0,
    affinity: bytes = b"",
) -> Ticket:
    """A ticket of `blocks` on backend `a`, unless `needs` says otherwise."""
    if needs is None:
        needs = {A: Need(blocks, seats)}
    return Ticket(tid(number), PoolName(pool), needs, arrived, deadline, affinity=affinity)


def empty_book(*, mode: Mode = Mode.ENFORCE, max_requests: int = 1024, max_passes: int = 16, lookahead: int = 64) -> Book:
    limits = QueueLimits(max_requests=max_requests, max_passes=max_passes, lookahead=lookahead)
    return Book(mode=mode, commitment=StrictCommitment(), policy=FifoPolicy, limits=limits)


def book_with(
    blocks: int = 64,
    *,
    reserve: int = 0,
    seats: int | None = None,
    mode: Mode = Mode.ENFORCE,
    max_requests: int = 1024,
    max_passes: int = 16,
    lookahead: int = 64,
) -> Book:
    """A book with one serving backend, `a`."""
    book = empty_book(mode=mode, max_requests=max_requests, max_passes=max_passes, lookahead=lookahead)
    book.set_backend(A, budget=Budget(blocks, reserve, seats), serving=True, now=0.0)
    return book


def ids(changes: Changes) -> list[int]:
    """The tickets that a call granted, in order."""
    return [granted.ticket.id for granted in changes.granted]


def held(book: Book, backend: BackendName = A) -> int:
    """Blocks charged on a backend."""
    return book.snapshot(now=0.0).backends[backend].charged_blocks


def waiting(book: Book, pool: str = "model") -> int:
    """Tickets that wait in a pool."""
    lines = book.snapshot(now=0.0).pools.get(PoolName(pool), {})
    return sum(line.requests for line in lines.values())
