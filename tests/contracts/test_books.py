"""Every place that can keep the book keeps the same one."""

import pytest

from gateway.books import BOOKS, BookContract
from gateway.core.decisions import Granted, Mode, Queued, Refused
from gateway.core.ledger import Budget
from gateway.core.outcomes import RejectReason
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need
from support.tickets import A, ids, ticket, tid


@pytest.fixture(params=sorted(BOOKS))
def book(request: pytest.FixtureRequest) -> BookContract:
    book = BOOKS[request.param](mode=Mode.ENFORCE, commitment="strict", policy="fifo", limits=QueueLimits(max_requests=2))
    book.set_backend(A, budget=Budget(64, 4), serving=True, now=0.0)
    return book


def test_a_hold_ends_once_and_lets_the_next_in(book: BookContract) -> None:
    assert isinstance(book.join(ticket(1, 40), now=0.0), Granted)
    assert isinstance(book.join(ticket(2, 40), now=0.0), Queued)
    assert book.has_waiting_for(A)
    first = book.release(tid(1), now=1.0)
    assert (ids(first), first.released_blocks) == ([2], 40)
    assert book.release(tid(1), now=1.0).released_blocks is None
    assert book.release(tid(2), now=2.0).released_blocks == 40
    assert book.snapshot(now=3.0).backends[A].charged_blocks == 0


def test_a_hold_follows_what_is_learned_of_it(book: BookContract) -> None:
    book.join(ticket(1, 50), now=0.0)
    assert book.resize(tid(1), 30, now=1.0).released_blocks == 20
    assert book.reweigh(tid(1), {A: Need(20)}, now=1.0).released_blocks == 10
    assert book.progress(tid(1), 5, now=2.0).released_blocks == 0
    assert book.snapshot(now=3.0).backends[A].worst_blocks == 20


def test_who_cannot_be_served_is_told_why(book: BookContract) -> None:
    too_large = book.join(ticket(1, 65), now=0.0)
    assert isinstance(too_large, Refused)
    assert too_large.reason is RejectReason.KV_BUDGET
    for number in (2, 3, 4):
        book.join(ticket(number, 60, deadline=10.0 + number), now=0.0)
    full = book.join(ticket(5, 60), now=0.0)
    assert isinstance(full, Refused)
    assert full.reason is RejectReason.QUEUE_FULL
    assert book.next_deadline() == 13.0
    assert [each.reason for each in book.expire(now=13.0).refused] == [RejectReason.QUEUE_TIMEOUT]
    assert [each.reason for each in book.drain(now=13.5).refused] == [RejectReason.DRAINING]


def test_a_queued_ticket_can_leave(book: BookContract) -> None:
    book.join(ticket(1, 60), now=0.0)
    book.join(ticket(2, 60), now=0.0)
    assert book.leave(tid(2), now=1.0).released_blocks == 0
    assert book.leave(tid(2), now=1.0).released_blocks is None
    assert ids(book.release(tid(1), now=2.0)) == []


@pytest.mark.parametrize("name", sorted(BOOKS))
def test_a_name_in_no_table_is_a_mistake(name: str) -> None:
    with pytest.raises(KeyError):
        BOOKS[name](mode=Mode.ENFORCE, commitment="hope", policy="fifo", limits=QueueLimits())
    with pytest.raises(KeyError):
        BOOKS[name](mode=Mode.ENFORCE, commitment="strict", policy="whim", limits=QueueLimits())
