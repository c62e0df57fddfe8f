"""Why a ticket waits: each reason where it is the true one, and what the operator is told beside it."""

from collections.abc import Mapping
from dataclasses import replace

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Mode
from gateway.core.guards import Guards
from gateway.core.lane_table import LaneTable, LaneTerms
from gateway.core.ledger import Budget
from gateway.core.names import STANDARD_LANE, TenantName
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import QueueLimits
from gateway.core.snapshots import Holding
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Need
from gateway.core.waits import WaitReason, WaitSnapshot
from support.tickets import A, B, book_with, empty_book, ticket, tid


def waits(book: Book, most: int = 50, now: float = 1.0) -> Mapping[int, WaitSnapshot]:
    return {wait.ticket_id: wait for wait in book.waits(most=most, now=now)}


def reasons(book: Book) -> dict[int, WaitReason]:
    return {number: wait.reason for number, wait in waits(book).items()}


def test_nobody_waits_and_nothing_is_told() -> None:
    assert book_with(64).waits(most=50, now=1.0) == ()


def test_who_does_not_fit_waits_for_blocks_and_is_told_how_many_are_free() -> None:
    book = book_with(64, reserve=4)
    book.join(ticket(1, 40), now=0.0)
    book.join(ticket(2, 30, arrived=1.0, deadline=61.0), now=1.0)
    (wait,) = book.waits(most=50, now=1.0)
    assert (wait.reason, wait.needs_blocks, wait.free_blocks, wait.backend) == (WaitReason.BLOCKS, 30, 20, A)
    assert (wait.position, wait.arrived, wait.deadline, wait.passes) == (0, 1.0, 61.0, 0)


def test_whose_blocks_fit_and_who_finds_no_seat_waits_for_seats() -> None:
    book = book_with(64, seats=1)
    book.join(ticket(1, 4), now=0.0)
    book.join(ticket(2, 4), now=0.0)
    assert reasons(book) == {2: WaitReason.SEATS}


def test_a_head_passed_often_enough_has_the_room_collected_for_it_and_the_others_wait_for_that() -> None:
    book = book_with(64, max_passes=1)
    book.join(ticket(1, 32), now=0.0)
    book.join(ticket(2, 56), now=0.0)
    book.join(ticket(3, 4), now=0.0)
    book.join(ticket(4, 4), now=0.0)
    assert reasons(book) == {2: WaitReason.BLOCKS, 4: WaitReason.COLLECTING}
    assert (waits(book)[2].passes, waits(book)[2].is_collecting, waits(book)[4].position) == (1, True, 1)


def test_who_waits_behind_unanswered_prompts_is_told_so() -> None:
    book = Book(
        mode=Mode.ENFORCE, commitment=StrictCommitment(), policy=FifoPolicy, limits=QueueLimits(), guards=Guards(is_on=True)
    )
    book.set_backend(A, budget=Budget(1000), serving=True, now=0.0)
    for number in (1, 2):
        one = ticket(number, 10)
        book.join(type(one)(one.id, one.pool, one.needs, 0.0, 1000.0, prompt_tokens=8000), now=0.0)
    assert reasons(book) == {2: WaitReason.PROMPTS}
    book.waits(most=50, now=1.0)
    assert [each.ticket.id for each in book.first_token(tid(1), now=1.0).granted] == [2], "looking has changed nothing"


def test_who_fits_and_whose_lane_holds_as_much_as_it_may_is_told_so() -> None:
    lanes = LaneTable((LaneTerms(STANDARD_LANE, cap_blocks=10),))
    book = Book(mode=Mode.ENFORCE, commitment=StrictCommitment(), policy=FifoPolicy, limits=QueueLimits(), lanes=lanes)
    book.set_backend(A, budget=Budget(64), serving=True, now=0.0)
    book.join(ticket(1, 8), now=0.0)
    book.join(ticket(2, 8), now=0.0)
    assert reasons(book) == {2: WaitReason.CAP}
    assert waits(book)[2].free_blocks == 56


def test_the_first_of_each_tenant_is_told_of_before_the_second_of_any() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    for number, tenant in ((2, "a"), (3, "a"), (4, "b")):
        terms = TenantTerms(TenantName(tenant))
        book.join(replace(ticket(number, 64, arrived=float(number)), terms=terms), now=float(number))
    assert [(wait.ticket_id, wait.position) for wait in book.waits(most=50, now=5.0)] == [(2, 0), (4, 0), (3, 1)]


def test_who_has_no_serving_backend_waits_for_one() -> None:
    book = book_with(64)
    book.join(ticket(1, 40), now=0.0)
    book.join(ticket(2, 40), now=0.0)
    book.set_backend(A, budget=Budget(64), serving=False, now=1.0)
    (wait,) = book.waits(most=50, now=1.0)
    assert (wait.reason, wait.backend, wait.free_blocks) == (WaitReason.AWAY, None, None)


def test_of_two_backends_the_nearer_one_is_told() -> None:
    book = empty_book()
    for name, seats in ((A, None), (B, 1)):
        book.set_backend(name, budget=Budget(64, 0, seats), serving=True, now=0.0)
    book.join(ticket(1, needs={A: Need(64)}), now=0.0)
    book.join(ticket(2, needs={B: Need(4)}), now=0.0)
    book.join(ticket(3, needs={A: Need(8), B: Need(8)}), now=0.0)
    (wait,) = book.waits(most=50, now=1.0)
    assert (wait.reason, wait.backend) == (WaitReason.SEATS, B), "one seat is nearer than eight blocks"


def test_beyond_the_first_so_many_nobody_is_told_of() -> None:
    book = book_with(64)
    for number in range(1, 100):
        book.join(ticket(number, 64), now=0.0)
    assert [wait.position for wait in book.waits(most=7, now=1.0)] == [0, 1, 2, 3, 4, 5, 6]


def test_what_a_running_ticket_holds_is_told_until_it_ends() -> None:
    book = book_with(64)
    book.join(ticket(1, 40), now=0.0)
    book.progress(tid(1), 7, now=1.0)
    assert book.holding(tid(1)) == Holding(40, 40, 7)
    book.release(tid(1), now=2.0)
    assert book.holding(tid(1)) is None
