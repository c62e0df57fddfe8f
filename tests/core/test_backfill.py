"""Backfill: a head that does not fit is passed a bounded number of times, by whomever; then room collects for it."""

from dataclasses import replace

import pytest

from gateway.core.book import Book
from gateway.core.decisions import Granted, Queued
from gateway.core.ledger import Budget
from gateway.core.names import TenantName
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Need
from support.tickets import A, B, C, book_with, empty_book, ids, ticket, tid, waiting


def grants(book: Book, number: int, blocks: int, *, pool: str = "model") -> bool:
    return isinstance(book.join(ticket(number, blocks, pool=pool), now=0.0), Granted)


def test_who_fits_passes_a_head_that_does_not() -> None:
    book = book_with(64)
    assert grants(book, 1, 32)
    assert not grants(book, 2, 56)
    assert grants(book, 3, 4)


@pytest.mark.parametrize("max_passes", [0, 1, 5])
def test_a_blocked_head_is_passed_so_often_and_no_more(max_passes: int) -> None:
    book = book_with(64, max_passes=max_passes)
    grants(book, 1, 32)
    grants(book, 2, 56)
    passed = [grants(book, 3 + small, 1) for small in range(10)]
    assert passed == [True] * max_passes + [False] * (10 - max_passes)


def test_then_freed_room_collects_for_it_and_the_others_follow_in_order() -> None:
    book = book_with(64, max_passes=2)
    grants(book, 1, 32)
    grants(book, 2, 56)
    for small in range(3, 13):
        grants(book, small, 4)
    assert waiting(book) == 9
    assert ids(book.release(tid(3), now=1.0)) == []
    assert ids(book.release(tid(1), now=2.0)) == [2, 5]  # 56 beside the 4 of ticket 4, and 4 are left
    assert ids(book.release(tid(2), now=3.0)) == [6, 7, 8, 9, 10, 11, 12]


def test_grants_to_those_who_waited_count_as_passes_too() -> None:
    book = book_with(64, max_passes=1)
    grants(book, 1, 30)
    grants(book, 2, 34)
    grants(book, 3, 60)
    grants(book, 4, 20)
    grants(book, 5, 10)
    assert ids(book.release(tid(1), now=1.0)) == [4]  # 5 would fit as well
    assert ids(book.release(tid(4), now=1.0)) == []


def test_nobody_passes_by_running_where_the_head_cannot() -> None:
    book = empty_book(max_passes=0)
    book.set_backend(A, budget=Budget(64), serving=True, now=0.0)
    book.set_backend(B, budget=Budget(16), serving=True, now=0.0)
    book.join(ticket(1, 32), now=0.0)
    assert isinstance(book.join(ticket(2, needs={A: Need(40), B: Need(40)}), now=0.0), Queued)
    small = book.join(ticket(3, needs={A: Need(4), B: Need(4)}), now=0.0)
    assert isinstance(small, Granted)
    assert small.backend == B


def test_a_younger_ticket_of_another_pool_counts_as_a_pass_and_waits_once_room_collects() -> None:
    book = book_with(64, max_passes=1)
    grants(book, 1, 32, pool="x")
    assert not grants(book, 2, 56, pool="x")
    assert grants(book, 3, 4, pool="y")
    assert not grants(book, 4, 4, pool="y")
    assert ids(book.release(tid(1), now=1.0)) == [2, 4]


def test_another_pool_goes_on_where_the_head_could_not_run() -> None:
    book = empty_book(max_passes=0)
    for name in (A, B, C):
        book.set_backend(name, budget=Budget(64), serving=True, now=0.0)
    book.join(ticket(1, needs={A: Need(32)}, pool="x"), now=0.0)
    book.join(ticket(2, needs={A: Need(56)}, pool="x"), now=0.0)
    other = book.join(ticket(3, needs={A: Need(4), B: Need(4)}, pool="y"), now=0.0)
    assert isinstance(other, Granted)
    assert other.backend == B


def test_of_two_heads_that_one_release_could_serve_the_older_goes_first() -> None:
    book = book_with(64)
    grants(book, 1, 64, pool="x")
    book.join(ticket(2, 40, pool="y", arrived=2.0), now=2.0)
    book.join(ticket(3, 40, pool="x", arrived=1.0), now=3.0)
    assert ids(book.release(tid(1), now=4.0)) == [3]


@pytest.mark.parametrize("call", ["leave", "expire"])
def test_room_that_was_collected_for_a_head_is_free_for_all_pools_when_it_goes(call: str) -> None:
    book = book_with(64, max_passes=0)
    grants(book, 1, 32, pool="x")
    book.join(ticket(2, 56, pool="x", deadline=5.0), now=0.0)
    assert not grants(book, 3, 4, pool="x")
    assert not grants(book, 4, 4, pool="y")
    changes = book.leave(tid(2), now=5.0) if call == "leave" else book.expire(now=5.0)
    assert ids(changes) == [3, 4]


def test_one_that_arrived_earlier_goes_to_the_front_and_takes_no_promise_from_the_former_head() -> None:
    book = book_with(64, max_passes=1)
    grants(book, 1, 32)
    book.join(ticket(2, 56, arrived=5.0), now=5.0)
    assert isinstance(book.join(ticket(3, 4, arrived=6.0), now=6.0), Granted)
    book.join(ticket(4, 60, arrived=4.0), now=7.0)  # its upload took long
    assert isinstance(book.join(ticket(5, 4, arrived=8.0), now=8.0), Queued)  # room collects for 2, as before
    assert ids(book.release(tid(1), now=9.0)) == [4]
    assert ids(book.release(tid(4), now=10.0)) == [2, 5]


def test_room_given_up_by_one_who_passed_goes_to_heads_first() -> None:
    book = empty_book(max_passes=0)
    for number, (name, blocks) in enumerate([(A, 10), (B, 5), (C, 1)]):
        book.set_backend(name, budget=Budget(10), serving=True, now=0.0)
        book.join(ticket(number, needs={name: Need(blocks)}), now=0.0)
    book.join(ticket(12, needs={A: Need(6), B: Need(6)}, pool="x", arrived=2.0), now=5.0)  # room on b collects for it
    book.join(ticket(13, needs={B: Need(5)}, pool="x", arrived=3.0), now=5.0)
    book.join(ticket(24, needs={B: Need(5)}, pool="y", arrived=4.0), now=5.0)
    book.join(ticket(11, needs={C: Need(10)}, pool="x", arrived=1.0), now=5.0)  # now the head of x, and no use of a
    assert ids(book.release(tid(0), now=6.0)) == [12, 24]


def test_a_head_found_smaller_frees_the_backends_on_which_it_will_not_run() -> None:
    book = empty_book(max_passes=0)
    for name in (A, B):
        book.set_backend(name, budget=Budget(10), serving=True, now=0.0)
        book.join(ticket(1 if name == A else 2, needs={name: Need(5)}), now=0.0)
    book.join(ticket(3, needs={A: Need(8), B: Need(8)}, pool="x"), now=0.0)
    assert isinstance(book.join(ticket(4, needs={B: Need(4)}, pool="y"), now=0.0), Queued)
    assert ids(book.reweigh(tid(3), {A: Need(7)}, now=1.0)) == [4]


def test_who_collects_goes_on_collecting_when_it_is_weighed_anew_behind_an_older_one() -> None:
    """It was counted exactly, or its engine came back as another, after one that arrived earlier had gone before it; and what
    was promised to it was lost, so that a younger one passed."""
    book = empty_book(max_passes=0)
    for name in (A, B):
        book.set_backend(name, budget=Budget(10), serving=True, now=0.0)
        book.join(ticket(1 if name == A else 2, needs={name: Need(6)}), now=0.0)
    book.join(ticket(3, needs={B: Need(9)}, arrived=2.0), now=5.0)  # the head: room on b collects for it
    book.join(ticket(4, needs={A: Need(8)}, arrived=1.0), now=5.0)  # an older one: now it is the head, and no use of b
    book.reweigh(tid(3), {B: Need(8)}, now=6.0)
    assert isinstance(book.join(ticket(5, needs={B: Need(4)}, arrived=7.0), now=7.0), Queued)
    assert ids(book.release(tid(2), now=8.0)) == [3]


def test_no_more_than_the_lookahead_is_considered_and_no_newcomer_overtakes_those_behind_it() -> None:
    book = book_with(64, lookahead=2)
    grants(book, 1, 60)
    for number in (2, 3, 4):
        grants(book, number, 50)
    assert waiting(book) == 3
    assert not grants(book, 5, 4)  # it would fit, but three stand before it
    assert ids(book.leave(tid(3), now=1.0)) == [5]  # now it is among the two behind the head


def test_what_another_pool_collects_keeps_nothing_from_those_who_are_older() -> None:
    book = book_with(64, max_passes=1)
    terms = {name: TenantTerms(TenantName(name)) for name in ("older", "younger")}
    book.join(replace(ticket(1, 61, pool="y"), terms=terms["older"]), now=0.0)  # so that it is the younger one's turn
    for number, name, blocks, arrived in [(2, "older", 8, 1.0), (3, "younger", 30, 3.0)]:
        book.join(replace(ticket(number, blocks, pool="y", arrived=arrived), terms=terms[name]), now=4.0)
    book.join(ticket(4, 50, pool="x", arrived=2.0), now=4.0)
    assert isinstance(book.join(ticket(5, 3, pool="x", arrived=2.5), now=5.0), Granted)  # from here on room collects for 4
    assert ids(book.resize(tid(1), 53, now=6.0)) == [2]
