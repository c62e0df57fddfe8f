"""Lanes and tenants in the book: whose turn it is, what caps hold back, and that a cap is a matter of its own kind only."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Granted, Mode, Queued, Refused
from gateway.core.lane_table import STANDARD_ONLY, LaneTable, LaneTerms
from gateway.core.lanes import KEPT_IDLE
from gateway.core.ledger import Budget
from gateway.core.names import STANDARD_LANE, LaneName, PoolName, TenantName
from gateway.core.outcomes import RejectReason
from gateway.core.policies import POLICIES
from gateway.core.queue import QueueLimits
from gateway.core.tenant import TenantTerms
from gateway.core.ticket import Need
from support.tickets import A, B, ids, ticket, tid

BATCH = LaneName("batch")
POOL = PoolName("model")


def open_book(
    lanes: LaneTable = STANDARD_ONLY,
    *,
    mode: Mode = Mode.ENFORCE,
    max_passes: int = 16,
    max_age_s: float = 1e9,
    queue: int = 100,
) -> Book:
    limits = QueueLimits(max_requests=queue, max_passes=max_passes, max_age_s=max_age_s)
    book = Book(mode=mode, commitment=StrictCommitment(), policy=POLICIES["fifo"], limits=limits, lanes=lanes)
    book.set_backend(A, budget=Budget(64), serving=True, now=0.0)
    return book


def tenant(name: str, **terms: Any) -> TenantTerms:
    return TenantTerms(TenantName(name), **terms)


def join(
    book: Book,
    number: int,
    blocks: int,
    terms: TenantTerms | None = None,
    *,
    lane: LaneName = STANDARD_LANE,
    pool: str = "model",
    now: float = 0.0,
) -> Granted | Queued | Refused:
    each = ticket(number, blocks, pool=pool, arrived=now)
    return book.join(replace(each, lane=lane, terms=terms or TenantTerms()), now=now)


def runs(answer: object) -> bool:
    return isinstance(answer, Granted)


# Turns


def test_tenants_take_turns_however_many_one_of_them_has_sent() -> None:
    book = open_book()
    join(book, 0, 64)
    for number in range(1, 7):
        join(book, number, 16, tenant("many"))
    for number in range(7, 9):
        join(book, number, 16, tenant("few"))
    assert ids(book.release(tid(0), now=1.0)) == [1, 7, 2, 8]


def test_a_weight_of_three_gets_three_times_the_room() -> None:
    book = open_book()
    join(book, 0, 64)
    for number in range(1, 20):
        join(book, number, 8, tenant("three", weight=3.0))
        join(book, 20 + number, 8, tenant("one"))
    first = ids(book.release(tid(0), now=1.0))
    assert len([number for number in first if number < 20]) == 6
    assert len(first) == 8


def test_lanes_share_by_weight_and_the_tenants_of_each_within_it() -> None:
    book = open_book(LaneTable((LaneTerms(STANDARD_LANE, weight=3.0), LaneTerms(BATCH))))
    join(book, 0, 64)
    for number in range(1, 10):
        join(book, number, 8, tenant("x"), now=1.0)
        join(book, 10 + number, 8, tenant("y"), lane=BATCH, now=1.0)
        join(book, 20 + number, 8, tenant("z"), lane=BATCH, now=1.0)
    first = ids(book.release(tid(0), now=1.0))
    shares = [len([number for number in first if number // 10 == ten]) for ten in range(3)]
    assert shares == [6, 1, 1]


def test_what_a_tenant_still_holds_counts_against_it_for_as_long_as_it_holds_it() -> None:
    book = open_book()
    join(book, 0, 32, tenant("long"))
    join(book, 1, 32, tenant("short"))
    join(book, 2, 32, tenant("long"))
    join(book, 3, 32, tenant("short"))
    assert ids(book.release(tid(1), now=1.0)) == [3]
    join(book, 4, 32, tenant("short"), now=1.0)
    assert ids(book.release(tid(3), now=2.0)) == [4]
    assert ids(book.release(tid(0), now=2.1)) == [2]


def test_who_did_not_wait_has_no_claim_to_what_it_did_not_ask_for() -> None:
    book = open_book()
    join(book, 0, 64, tenant("busy"))
    for number in range(1, 21):
        join(book, number, 64, tenant("busy"))
    now = 0.0
    for number in range(10):
        now += 1.0
        assert ids(book.release(tid(number), now=now)) == [number + 1]
    for number in range(30, 40):
        join(book, number, 64, tenant("late"), now=now)
    order = []
    running = 10
    for _ in range(6):
        now += 1.0
        (running,) = ids(book.release(tid(running), now=now))
        order.append(running >= 30)
    assert order == [True, False, True, False, True, False]


def test_one_lane_does_not_wait_behind_the_head_of_another_that_is_passed_too_often_for_nothing() -> None:
    book = open_book(LaneTable((LaneTerms(STANDARD_LANE), LaneTerms(BATCH))), max_passes=2)
    join(book, 0, 32)
    assert not runs(join(book, 1, 56, lane=BATCH))
    assert [runs(join(book, number, 4)) for number in range(2, 6)] == [True, True, False, False]
    book.leave(tid(1), now=1.0)
    assert runs(join(book, 7, 4))


def test_the_first_of_a_line_is_passed_by_its_own_line_no_more_often_than_any_head() -> None:
    book = open_book(max_passes=3)
    join(book, 0, 40)
    join(book, 1, 60, tenant("first"))  # the head of the pool, which needs more than is free
    join(book, 2, 50, tenant("second"))
    passing = [runs(join(book, number, 2, tenant("second"))) for number in range(3, 9)]
    assert passing == [True, True, True, False, False, False]


def test_a_turn_that_comes_in_the_middle_of_a_release_finds_room_collected_if_its_ticket_was_passed_enough() -> None:
    """The first of a line was passed by its own line, and the head of the pool had no use of that backend. One release let one
    behind that head go, which moved the turn on; nobody looked whose it was, so the next one passed once too often."""
    book = open_book(max_passes=1)
    book.set_backend(B, budget=Budget(64), serving=True, now=0.0)
    assert runs(book.join(ticket(0, needs={B: Need(64)}), now=0.0))
    assert not runs(book.join(replace(ticket(1, needs={B: Need(64)}), terms=tenant("one")), now=0.0))  # the head of the pool
    join(book, 2, 20)
    join(book, 3, 30)
    assert not runs(join(book, 4, 60, tenant("two")))
    assert runs(join(book, 5, 4, tenant("two")))  # passes the first of its line, which is not the head of the pool
    assert not runs(join(book, 6, 12, tenant("one")))
    assert not runs(join(book, 7, 11, tenant("one")))
    assert ids(book.release(tid(2), now=0.0)) == [6]  # now it is the turn of ticket 4, and 7 would fit as well
    assert [ids(book.release(tid(number), now=0.0)) for number in (3, 5, 6)] == [[], [], [4]]


def test_nobody_passes_a_head_that_is_too_old() -> None:
    book = open_book(max_age_s=10.0)
    join(book, 0, 32)
    join(book, 1, 56)
    assert runs(join(book, 2, 4, now=9.9))
    assert not runs(join(book, 3, 4, now=10.0))
    assert ids(book.release(tid(0), now=11.0)) == [1, 3]


def test_a_ticket_of_another_pool_that_was_found_smaller_passes_no_head_that_is_too_old() -> None:
    """Only its own pool was looked at when its count came, so nobody saw that the other's head had grown too old."""
    book = open_book(max_age_s=10.0)
    join(book, 0, 32)
    join(book, 1, 56, pool="other")
    join(book, 2, 40, now=5.0)
    assert ids(book.reweigh(tid(2), {A: Need(4)}, now=11.0)) == []
    assert ids(book.release(tid(0), now=12.0)) == [1, 2]


# Caps


def test_a_lane_at_its_cap_lets_others_go_and_is_not_passed_by_them() -> None:
    book = open_book(LaneTable((LaneTerms(STANDARD_LANE), LaneTerms(BATCH, cap_share=Fraction(1, 4)))), max_passes=1)
    assert runs(join(book, 0, 12, lane=BATCH))
    assert not runs(join(book, 1, 8, lane=BATCH))
    assert all(runs(join(book, number, 4)) for number in range(2, 10))  # none of them counts as passing
    assert not runs(join(book, 11, 4, lane=BATCH))  # it would fit below the cap, but not pass the one before it
    assert ids(book.release(tid(0), now=1.0)) == [1, 11]


def test_what_is_larger_than_the_cap_of_its_lane_runs_when_the_lane_holds_nothing() -> None:
    book = open_book(LaneTable((LaneTerms(STANDARD_LANE), LaneTerms(BATCH, cap_blocks=8))))
    assert runs(join(book, 0, 8, lane=BATCH))
    assert not runs(join(book, 1, 40, lane=BATCH))
    assert ids(book.release(tid(0), now=1.0)) == [1]


def test_a_tenant_never_holds_more_than_its_cap_in_all_pools_together() -> None:
    book = open_book()
    book.set_backend(B, budget=Budget(64), serving=True, now=0.0)
    capped = tenant("capped", cap_blocks=20)
    assert runs(join(book, 0, 12, capped))
    elsewhere = replace(ticket(1, needs={B: Need(12)}, pool="other"), terms=capped)
    assert isinstance(book.join(elsewhere, now=0.0), Queued)
    assert runs(join(book, 2, 12, tenant("free")))
    assert ids(book.release(tid(0), now=1.0)) == [1]


def test_within_a_capped_tenants_line_nobody_passes_who_waits_for_the_cap() -> None:
    book = open_book()
    capped = tenant("capped", cap_blocks=20)
    join(book, 0, 12, capped)
    assert not runs(join(book, 1, 12, capped))
    assert not runs(join(book, 2, 2, capped))
    assert ids(book.release(tid(0), now=1.0)) == [1, 2]


def test_what_is_larger_than_its_tenants_cap_is_refused_with_that_cap() -> None:
    refused = join(open_book(), 0, 21, tenant("capped", cap_blocks=20))
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.need_blocks, refused.limit_blocks) == (RejectReason.KV_BUDGET, 21, 20)
    assert refused.retry_after_s is None


def test_a_tenant_has_only_so_many_requests_running_and_waiting() -> None:
    book = open_book()
    few = tenant("few", cap_requests=2)
    join(book, 0, 60, few)
    assert isinstance(join(book, 1, 60, few), Queued)
    refused = join(book, 2, 1, few)
    assert isinstance(refused, Refused)
    assert refused.reason is RejectReason.TENANT_LIMIT
    assert runs(join(book, 3, 1, tenant("other")))
    book.release(tid(0), now=1.0)
    book.release(tid(1), now=2.0)
    assert runs(join(book, 4, 1, few))


def test_a_tenant_fills_no_more_than_its_part_of_a_queue() -> None:
    book = open_book(queue=4)
    join(book, 0, 64)
    half = tenant("half", queue_share=0.5)
    assert [isinstance(join(book, number, 8, half), Queued) for number in (1, 2)] == [True, True]
    refused = join(book, 3, 8, half)
    assert isinstance(refused, Refused)
    assert refused.reason is RejectReason.TENANT_LIMIT
    assert isinstance(join(book, 4, 8, tenant("other")), Queued)


def test_a_lane_has_a_queue_of_its_own() -> None:
    book = open_book(LaneTable((LaneTerms(STANDARD_LANE), LaneTerms(BATCH, max_requests=1))))
    join(book, 0, 64)
    assert isinstance(join(book, 1, 8, lane=BATCH), Queued)
    refused = join(book, 2, 8, lane=BATCH)
    assert isinstance(refused, Refused)
    assert refused.reason is RejectReason.QUEUE_FULL
    assert isinstance(join(book, 3, 8), Queued)


def test_observing_says_what_a_tenants_terms_would_have_done_and_lets_it_run() -> None:
    answer = join(open_book(mode=Mode.OBSERVE), 0, 21, tenant("capped", cap_blocks=20))
    assert isinstance(answer, Granted)
    assert isinstance(answer.verdict, Refused)
    assert answer.verdict.reason is RejectReason.KV_BUDGET


@pytest.mark.parametrize("grows", [True, False])
def test_held_blocks_of_a_lane_follow_what_running_tickets_are_charged(grows: bool) -> None:
    book = open_book()
    join(book, 0, 10, tenant("x"))
    book.resize(tid(0), 14 if grows else 6, now=1.0)
    (lane,) = book.snapshot(now=1.0).pools[POOL].values()
    assert lane.held_blocks == (14 if grows else 6)
    book.release(tid(0), now=2.0)
    (lane,) = book.snapshot(now=2.0).pools[POOL].values()
    assert (lane.held_blocks, lane.tenants) == (0, {})


# Predicted waits


def test_a_light_tenant_is_not_told_the_wait_of_a_heavy_one() -> None:
    book = open_book()
    now = 0.0
    for number in range(8):
        join(book, number, 8)
    for number in range(100, 150):
        join(book, number, 8, tenant("heavy"))
    running = [*range(8)]
    for _ in range(12):
        now += 1.0
        running += ids(book.release(tid(running.pop(0)), now=now))
    heavy = join(book, 200, 8, replace(tenant("heavy"), cap_requests=None), now=now)
    assert isinstance(heavy, Queued)
    patient = replace(ticket(300, 8, arrived=now, deadline=now + 5.0), terms=tenant("light"))
    assert isinstance(book.join(patient, now=now), Queued)
    late = replace(ticket(301, 8, arrived=now, deadline=now + 5.0), terms=tenant("heavy"))
    refused = book.join(late, now=now)
    assert isinstance(refused, Refused)
    assert refused.reason is RejectReason.PREDICTED_WAIT


# Forgetting


def test_tenants_that_neither_wait_nor_run_are_forgotten_beyond_a_number() -> None:
    book = open_book()
    for number in range(3 * KEPT_IDLE):
        join(book, number, 4, tenant(f"tenant-{number}"))
        book.release(tid(number), now=1.0)
    lane = book._queue.lanes(POOL).lanes[STANDARD_LANE]
    assert len(lane.lines) <= KEPT_IDLE + 1
    assert not book._queue._uses
