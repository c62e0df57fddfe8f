"""The book: what each call answers. Its rules in every combination are in tests/properties/test_book_machine.py."""

import pytest

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName
from gateway.core.outcomes import RejectReason
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket
from support.tickets import A, B, book_with, empty_book, held, ids, ticket, tid, waiting


def refusal(answer: object) -> Refused:
    assert isinstance(answer, Refused)
    return answer


def steady_drain(book: Book) -> float:
    """Twelve releases of 8 blocks, one a second, while somebody waits: a drain of 8 blocks/s on a budget of 64."""
    for number in range(8):
        book.join(ticket(100 + number, 8), now=0.0)
    for number in range(12):
        book.join(ticket(108 + number, 8), now=0.0)
    for second in range(1, 12):
        book.release(tid(99 + second), now=float(second))
    return 11.0


# Granting


def test_what_fits_when_nobody_waits_is_granted_at_once() -> None:
    book = book_with(64)
    answer = book.join(ticket(1, 40, seats=2), now=0.0)
    assert isinstance(answer, Granted)
    assert (answer.backend, answer.worst_blocks, answer.charged_blocks, answer.verdict) == (A, 40, 40, None)
    assert held(book) == 40


def test_what_does_not_fit_waits_and_is_granted_by_the_release_that_makes_room() -> None:
    book = book_with(64)
    book.join(ticket(1, 40), now=0.0)
    assert isinstance(book.join(ticket(2, 40), now=0.0), Queued)
    changes = book.release(tid(1), now=1.0)
    assert ids(changes) == [2]
    assert changes.released_blocks == 40
    assert (held(book), waiting(book)) == (40, 0)


def test_a_second_release_frees_nothing_and_says_so() -> None:
    book = book_with(64)
    book.join(ticket(1, 40), now=0.0)
    assert book.release(tid(1), now=1.0).released_blocks == 40
    assert book.release(tid(1), now=2.0) == Changes((), (), None)
    assert held(book) == 0


def test_one_release_can_serve_several() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    for number in (2, 3, 4, 5):
        book.join(ticket(number, 20), now=0.0)
    assert ids(book.release(tid(1), now=1.0)) == [2, 3, 4]


def test_a_ticket_joins_once() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    book.join(ticket(2, 64), now=0.0)
    for number in (1, 2):
        with pytest.raises(ValueError, match="joined twice"):
            book.join(ticket(number), now=0.0)


def test_who_leaves_the_line_gives_way_and_who_was_granted_is_told_so() -> None:
    book = book_with(64, max_passes=0)
    book.join(ticket(1, 40), now=0.0)
    book.join(ticket(2, 60), now=0.0)
    book.join(ticket(3, 20), now=0.0)
    changes = book.leave(tid(2), now=1.0)
    assert ids(changes) == [3]
    assert changes.released_blocks == 0
    assert book.leave(tid(3), now=1.0).released_blocks is None
    assert book.leave(tid(99), now=1.0).released_blocks is None
    assert held(book) == 60


def test_grant_and_goodbye_in_the_same_tick_lose_no_wake_up() -> None:
    for release_first in (True, False):
        book = book_with(64)
        for number in (1, 2, 3):
            book.join(ticket(number, 64), now=0.0)
        if release_first:
            assert ids(book.release(tid(1), now=1.0)) == [2]
            assert ids(book.release(tid(2), now=1.0)) == [3]
        else:
            assert ids(book.leave(tid(2), now=1.0)) == []
            assert ids(book.release(tid(1), now=1.0)) == [3]
        assert held(book) == 64


def test_when_everybody_left_a_full_line_it_is_empty_and_a_newcomer_waits() -> None:
    book = book_with(64, max_requests=50)
    book.join(ticket(0, 64), now=0.0)
    for number in range(1, 51):
        book.join(ticket(number, 64), now=0.0)
    assert refusal(book.join(ticket(51, 64), now=0.0)).reason is RejectReason.QUEUE_FULL
    for number in range(1, 51):
        book.leave(tid(number), now=1.0)
    assert waiting(book) == 0
    assert book.next_deadline() is None
    assert isinstance(book.join(ticket(52, 64), now=1.0), Queued)


# Revising


def test_an_exact_count_shrinks_a_hold_and_lets_the_next_in() -> None:
    book = book_with(64)
    book.join(ticket(1, 60), now=0.0)
    book.join(ticket(2, 40), now=0.0)
    changes = book.resize(tid(1), 24, now=1.0)
    assert (ids(changes), changes.released_blocks) == ([2], 36)
    assert held(book) == 64


def test_a_hold_may_grow_past_the_limit_and_nobody_is_admitted_until_it_drained() -> None:
    book = book_with(64)
    book.join(ticket(1, 20), now=0.0)
    assert book.resize(tid(1), 80, now=1.0).released_blocks == 0
    assert isinstance(book.join(ticket(2, 1), now=1.0), Queued)
    assert ids(book.release(tid(1), now=2.0)) == [2]


def test_an_exact_count_of_a_waiting_ticket_changes_what_it_waits_for() -> None:
    book = book_with(64)
    book.join(ticket(1, 40), now=0.0)
    book.join(ticket(2, 60), now=0.0)
    changes = book.reweigh(tid(2), {A: Need(24)}, now=1.0)
    assert ids(changes) == [2]
    assert changes.granted[0].worst_blocks == 24
    assert ids(book.reweigh(tid(1), {A: Need(10)}, now=2.0)) == []
    assert held(book) == 34
    assert book.reweigh(tid(99), {A: Need(10)}, now=2.0).released_blocks is None


def test_a_head_found_smaller_collects_no_more_room_than_it_needs() -> None:
    book = book_with(64, max_passes=0)
    book.join(ticket(1, 60), now=0.0)
    book.join(ticket(2, 64), now=0.0)
    book.join(ticket(3, 4), now=0.0)
    assert ids(book.reweigh(tid(2), {B: Need(8)}, now=1.0)) == [3]  # it may not run on a any more


def test_progress_changes_nothing_under_strict_commitment_and_a_hold_needs_a_block() -> None:
    book = book_with(64)
    book.join(ticket(1, 20), now=0.0)
    assert book.progress(tid(1), 500, now=1.0) == Changes()
    assert book.progress(tid(2), 500, now=1.0).released_blocks is None
    with pytest.raises(ValueError):
        book.resize(tid(1), 0, now=1.0)


def test_a_commitment_that_follows_progress_needs_no_other_book() -> None:
    class Halves(StrictCommitment):
        """Counts half at first, and one block more per token, within nine tenths."""

        def charge(self, ticket: Ticket, backend: BackendName, need: Need, output_tokens: int) -> int:
            return min(need.worst_blocks, need.worst_blocks // 2 + output_tokens)

        def limit_blocks(self, backend: BackendName, budget_blocks: int, reserve_blocks: int) -> int:
            return budget_blocks * 9 // 10

    book = Book(mode=Mode.ENFORCE, commitment=Halves(), policy=FifoPolicy, limits=QueueLimits())
    book.set_backend(A, budget=Budget(100), serving=True, now=0.0)
    for number in (1, 2):
        granted = book.join(ticket(number, 80), now=0.0)
        assert isinstance(granted, Granted)
        assert (granted.worst_blocks, granted.charged_blocks) == (80, 40)
    book.progress(tid(1), 30, now=1.0)
    page = book.snapshot(now=1.0).backends[A]
    assert (page.charged_blocks, page.worst_blocks, page.free_blocks) == (110, 160, -20)
    assert isinstance(book.join(ticket(3, 10), now=1.0), Queued)
    assert ids(book.release(tid(1), now=2.0)) == [3]


# Refusing


def test_what_could_never_fit_is_refused_at_once_with_both_numbers_and_nobody_waits_for_it() -> None:
    book = book_with(64, reserve=4)
    refused = refusal(book.join(ticket(1, 65), now=0.0))
    assert (refused.reason, refused.need_blocks, refused.limit_blocks) == (RejectReason.KV_BUDGET, 65, 64)
    assert refused.retry_after_s is None
    assert isinstance(book.join(ticket(2, 60), now=0.0), Granted)


def test_a_backend_that_stopped_serving_still_says_what_could_ever_fit() -> None:
    book = book_with(64)
    book.set_backend(A, budget=Budget(64), serving=False, now=0.0)
    assert refusal(book.join(ticket(1, 65), now=0.0)).reason is RejectReason.KV_BUDGET
    assert refusal(book.join(ticket(2, 64), now=0.0)).reason is RejectReason.NO_BACKEND


def test_without_any_known_capacity_there_is_no_backend() -> None:
    book = empty_book()
    assert refusal(book.join(ticket(1), now=0.0)).reason is RejectReason.NO_BACKEND
    assert refusal(book.join(ticket(2, needs={}), now=0.0)).reason is RejectReason.NO_BACKEND
    book.set_backend(A, budget=None, serving=True, now=0.0)
    assert refusal(book.join(ticket(3, 7), now=0.0)) == Refused(ticket(3, 7), RejectReason.NO_BACKEND, None, None, 7, 0)


def test_the_largest_backend_is_what_a_refusal_names() -> None:
    book = empty_book()
    book.set_backend(A, budget=Budget(10), serving=True, now=0.0)
    book.set_backend(B, budget=Budget(20), serving=True, now=0.0)
    refused = refusal(book.join(ticket(1, needs={A: Need(11), B: Need(22)}), now=0.0))
    assert (refused.need_blocks, refused.limit_blocks) == (22, 20)
    assert isinstance(book.join(ticket(2, needs={A: Need(11), B: Need(20)}), now=0.0), Granted)


def test_a_changed_budget_refuses_at_once_who_can_never_fit_any_more() -> None:
    book = book_with(64)
    book.join(ticket(1, 60), now=0.0)
    book.join(ticket(2, 50), now=0.0)
    book.join(ticket(3, 30), now=0.0)
    changes = book.set_backend(A, budget=Budget(40), serving=True, now=1.0)
    assert [(each.ticket.id, each.reason, each.need_blocks, each.limit_blocks) for each in changes.refused] == [
        (2, RejectReason.KV_BUDGET, 50, 40)
    ]
    assert ids(changes) == []
    assert held(book) == 60  # the budget changed, the hold did not
    assert ids(book.release(tid(1), now=2.0)) == [3]


def test_a_live_request_stays_in_the_books_while_its_backend_comes_and_goes() -> None:
    book = book_with(64)
    book.join(ticket(1, 33), now=0.0)
    book.set_backend(A, budget=Budget(64), serving=False, now=1.0)
    book.set_backend(A, budget=None, serving=False, now=2.0)
    book.set_backend(A, budget=Budget(64), serving=True, now=90.0)
    assert isinstance(book.join(ticket(2, 33), now=90.0), Queued)
    assert ids(book.release(tid(1), now=91.0)) == [2]


def test_a_deadline_ends_the_waiting_and_not_the_running() -> None:
    book = book_with(64)
    book.join(ticket(1, 64, deadline=5.0), now=0.0)
    book.join(ticket(2, 64, deadline=9.0), now=0.0)
    book.join(ticket(3, 64, deadline=7.0), now=0.0)
    assert book.next_deadline() == 7.0
    assert book.expire(now=6.9) == Changes()
    assert [(each.ticket.id, each.reason) for each in book.expire(now=7.0).refused] == [(3, RejectReason.QUEUE_TIMEOUT)]
    assert book.next_deadline() == 9.0
    assert held(book) == 64


def test_a_release_never_grants_somebody_whose_deadline_has_passed() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    book.join(ticket(2, 64, deadline=5.0), now=0.0)
    book.join(ticket(3, 64), now=0.0)
    changes = book.release(tid(1), now=5.0)
    assert ids(changes) == [3]
    assert [each.ticket.id for each in changes.refused] == [2]


def test_who_waited_in_vain_for_a_backend_that_never_came_back_is_told_that() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    book.join(ticket(2, 64, deadline=5.0), now=0.0)
    book.set_backend(A, budget=Budget(64), serving=False, now=1.0)
    assert [each.reason for each in book.expire(now=5.0).refused] == [RejectReason.NO_BACKEND]


def test_a_request_whose_deadline_passed_before_it_came_runs_only_if_it_need_not_wait() -> None:
    book = book_with(64)
    assert isinstance(book.join(ticket(1, 60, deadline=5.0), now=6.0), Granted)
    assert refusal(book.join(ticket(2, 60, deadline=5.0), now=6.0)).reason is RejectReason.QUEUE_TIMEOUT


def test_a_full_line_refuses_but_not_what_fits() -> None:
    book = book_with(64, max_requests=1)
    book.join(ticket(1, 40), now=0.0)
    book.join(ticket(2, 40), now=0.0)
    refused = refusal(book.join(ticket(3, 40), now=0.0))
    assert (refused.reason, refused.retry_after_s) == (RejectReason.QUEUE_FULL, None)
    assert isinstance(book.join(ticket(4, 10), now=0.0), Granted)


def test_refusals_cost_nothing() -> None:
    book = book_with(64, max_requests=0)
    book.join(ticket(1, 64), now=0.0)
    before = book.snapshot(now=0.0)
    for number in range(2, 102):
        book.join(ticket(number, 64), now=0.0)
        book.join(ticket(number, 65), now=0.0)
    assert book.snapshot(now=0.0) == before


def test_a_wait_that_is_known_to_be_too_long_is_refused_now() -> None:
    book = book_with(64)
    now = steady_drain(book)
    assert waiting(book) == 1
    assert isinstance(book.join(ticket(1, 32, deadline=now + 5.1), now=now), Queued)  # 32 + 8 ahead, 0 free, 8 a second
    refused = refusal(book.join(ticket(2, 32, deadline=now + 8.9), now=now))
    assert refused.reason is RejectReason.PREDICTED_WAIT
    assert refused.retry_after_s == refused.predicted_wait_s == pytest.approx(9.0)


def test_when_to_come_back_to_a_full_line_is_for_this_demand() -> None:
    book = book_with(64, max_requests=12)
    now = steady_drain(book)
    for number in range(1, 12):
        book.join(ticket(number, 8), now=now)
    small, large = (refusal(book.join(ticket(20 + blocks, blocks), now=now)) for blocks in (8, 48))
    assert small.reason is RejectReason.QUEUE_FULL
    assert small.retry_after_s == pytest.approx(13.0)
    assert large.retry_after_s == pytest.approx(18.0)


def test_draining_refuses_who_waits_and_who_comes_and_lets_run_what_runs() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    book.join(ticket(2, 64), now=0.0)
    assert [(each.ticket.id, each.reason) for each in book.drain(now=1.0).refused] == [(2, RejectReason.DRAINING)]
    assert refusal(book.join(ticket(3, 1), now=1.0)).reason is RejectReason.DRAINING
    assert held(book) == 64
    assert book.release(tid(1), now=2.0) == Changes((), (), 64)
    assert book.snapshot(now=2.0).draining


# Observing


def test_observing_admits_everything_at_once_and_says_what_the_rules_say() -> None:
    book = book_with(64, mode=Mode.OBSERVE)
    fits, waits, never = (book.join(ticket(number, blocks), now=0.0) for number, blocks in ((1, 40), (2, 40), (3, 65)))
    assert isinstance(fits, Granted)
    assert isinstance(waits, Granted)
    assert isinstance(never, Granted)
    assert fits.verdict is None
    assert waits.verdict == Queued(ticket(2, 40))
    assert isinstance(never.verdict, Refused)
    assert never.verdict.reason is RejectReason.KV_BUDGET
    assert (held(book), waiting(book)) == (145, 0)


def test_observing_runs_even_where_no_capacity_is_known_or_nothing_is_served() -> None:
    book = empty_book(mode=Mode.OBSERVE)
    unknown = book.join(ticket(1), now=0.0)
    assert isinstance(unknown, Granted)
    assert isinstance(unknown.verdict, Refused)
    assert unknown.verdict.reason is RejectReason.NO_BACKEND
    book.set_backend(B, budget=Budget(8), serving=True, now=0.0)
    served = book.join(ticket(2, needs={A: Need(1), B: Need(9)}), now=0.0)
    assert isinstance(served, Granted)
    assert served.backend == B
    assert refusal(book.join(ticket(3, needs={}), now=0.0)).reason is RejectReason.NO_BACKEND


def test_what_would_have_waited_is_charged_so_that_predictions_come_out_of_it() -> None:
    book = book_with(64, mode=Mode.OBSERVE)
    for number in range(20):
        book.join(ticket(number, 8), now=0.0)
    for number in range(11):
        book.release(tid(number), now=1.0 + number)
    late = book.join(ticket(90, 8, deadline=11.5), now=11.0)  # 72 charged of 64: the next 8 are 2 s away
    in_time = book.join(ticket(91, 8, deadline=99.0), now=11.0)
    assert isinstance(late, Granted)
    assert isinstance(late.verdict, Refused)
    assert late.verdict.reason is RejectReason.PREDICTED_WAIT
    assert late.verdict.predicted_wait_s == pytest.approx(2.0)
    assert isinstance(in_time, Granted)
    assert isinstance(in_time.verdict, Queued)


# Seeing


def test_a_snapshot_shows_the_whole_book() -> None:
    book = book_with(64, reserve=4, seats=8)
    book.set_backend(A, budget=Budget(64, 4, 8), serving=True, foreign_blocks=2, now=0.0)
    book.join(ticket(1, 40, seats=3), now=0.0)
    book.join(ticket(2, 30, arrived=1.0), now=2.0)
    snapshot = book.snapshot(now=3.0)
    page = snapshot.backends[A]
    assert (page.budget_blocks, page.reserve_blocks, page.limit_blocks, page.foreign_blocks) == (64, 4, 60, 2)
    assert (page.charged_blocks, page.worst_blocks, page.free_blocks, page.is_alone) == (40, 40, 18, False)
    assert (page.seats, page.seats_held, page.in_flight, page.serving) == (8, 3, 1, True)
    (line,) = snapshot.pools[PoolName("model")].values()
    assert (line.requests, line.blocks, line.oldest_arrived, line.head_passes) == (1, 30, 1.0, 0)
    assert snapshot.drain_blocks_per_s == {"model": None}
    assert (snapshot.mode, snapshot.draining) == (Mode.ENFORCE, False)


def test_an_operator_can_read_it() -> None:
    book = book_with(64)
    book.join(ticket(1, 40), now=0.0)
    assert repr(book) == (
        "Book (enforce): 1 run, 0 wait. "
        "Ledger: a: 40 of 64 blocks held, 0 in reserve, 1 in flight. Queue: model/standard: nobody waits"
    )


def test_it_is_known_whether_somebody_waits_for_a_backend() -> None:
    book = book_with(64)
    book.join(ticket(1, 64), now=0.0)
    assert not book.has_waiting_for(A)
    book.join(ticket(2, 64), now=0.0)
    assert book.has_waiting_for(A)
    assert not book.has_waiting_for(B)
