"""Who is refused early, who may still join a full line, and what a waiting ticket is told."""

from dataclasses import replace

import pytest

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Mode, Queued, Refused
from gateway.core.ledger import Budget
from gateway.core.outcomes import RejectReason
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Ticket
from support.tickets import A, book_with, ticket, tid

SECOND_S = 1.0


def draining(*, waiting: int = 8, blocks: int = 16, **limits: float) -> tuple[Book, float]:
    """A book of 64 blocks in which so many wait, of one size, and of those that run one has ended each second; and the time."""
    book = Book(
        mode=Mode.ENFORCE,
        commitment=StrictCommitment(),
        policy=FifoPolicy,
        limits=QueueLimits(**limits),  # type: ignore[arg-type]
    )
    book.set_backend(A, budget=Budget(64), serving=True, now=0.0)
    now, number = 0.0, 0
    running = []
    for number in range(1, 64 // blocks + 1):
        book.join(ticket(number, blocks), now=now)
        running.append(number)
    for _ in range(12 + waiting):
        number += 1
        assert isinstance(book.join(ticket(number, blocks, arrived=now), now=now), Queued)
    for _ in range(12):
        now += SECOND_S
        (granted,) = book.release(tid(running.pop(0)), now=now).granted
        running.append(granted.ticket.id)
    return book, now


def newcomer(blocks: int, *, now: float, patience_s: float) -> Ticket:
    return ticket(1_000, blocks, arrived=now, deadline=now + patience_s)


@pytest.mark.parametrize(
    ("margin", "patience_s", "waits"), [(0.0, 8.5, False), (0.0, 9.5, True), (0.5, 4.0, False), (0.5, 5.0, True)]
)
def test_who_could_not_be_in_time_even_if_all_goes_well_is_refused_at_once(
    margin: float, patience_s: float, waits: bool
) -> None:
    book, now = draining(wait_margin=margin)
    decision = book.join(newcomer(16, now=now, patience_s=patience_s), now=now)
    if waits:
        assert isinstance(decision, Queued)
    else:
        assert isinstance(decision, Refused)
        assert decision.reason is RejectReason.PREDICTED_WAIT
        assert decision.retry_after_s == pytest.approx(9.0), "it is told what is expected, not what is possible"


@pytest.mark.parametrize(("blocks", "lookahead", "waits"), [(4, 64, True), (12, 64, False), (4, 2, False)])
def test_a_small_one_that_may_pass_the_others_is_not_refused_for_all_of_their_waits(
    blocks: int, lookahead: int, waits: bool
) -> None:
    book, now = draining(lookahead=lookahead)
    decision = book.join(newcomer(blocks, now=now, patience_s=3.0), now=now)
    assert isinstance(decision, Queued) is waits


def test_a_full_line_has_places_left_for_who_comes_back_as_told_and_they_are_bounded() -> None:
    book = book_with(16, max_requests=8)
    book.join(ticket(1, 16), now=0.0)
    for number in range(2, 10):
        assert isinstance(book.join(ticket(number, 16, arrived=5.0), now=5.0), Queued)
    refused = book.join(ticket(10, 16, arrived=5.0), now=5.0)
    assert isinstance(refused, Refused)
    assert refused.reason is RejectReason.QUEUE_FULL
    returning = [replace(ticket(number, 16, arrived=4.0), returns=True) for number in (11, 12, 13)]
    told = [book.join(each, now=8.0) for each in returning]
    assert [isinstance(decision, Queued) for decision in told] == [True, True, False]
    assert book.release(tid(1), now=9.0).granted[0].ticket.id == 11, "it stands where its first try would stand"


def test_who_waits_is_told_how_many_are_before_it_and_for_how_long() -> None:
    book, now = draining()
    book.join(newcomer(16, now=now, patience_s=100.0), now=now)
    standing = book.standing(tid(1_000), now=now)
    assert standing is not None
    assert standing.ahead == 8
    assert standing.wait_s == pytest.approx(9.0)
    assert book.standing(tid(1), now=now) is None


def test_free_blocks_are_those_below_the_limit_and_never_negative() -> None:
    book = book_with(64, reserve=8)
    book.join(ticket(1, 50), now=0.0)
    assert book.free_blocks(A) == 6
    book.set_backend(A, budget=Budget(32), serving=True, now=0.0)
    assert book.free_blocks(A) == 0
