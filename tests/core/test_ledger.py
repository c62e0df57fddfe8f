"""The ledger: what fits, what is held, and that every hold ends exactly once."""

import pytest

from gateway.core.commitment.strict import StrictCommitment
from gateway.core.ledger import Budget, Ledger
from gateway.core.ticket import Need
from support.tickets import A, ticket, tid


def ledger_with(blocks: int = 64, reserve: int = 0, seats: int | None = None, foreign: int = 0) -> Ledger:
    ledger = Ledger(StrictCommitment())
    ledger.set_backend(A, Budget(blocks, reserve, seats), serving=True, foreign_blocks=foreign)
    return ledger


def fits(ledger: Ledger, need: Need) -> bool:
    return ledger.fits(ticket(99, needs={A: need}), A) is not None


def test_what_is_charged_stays_within_budget_less_reserve() -> None:
    ledger = ledger_with(64, reserve=4)
    ledger.hold(ticket(1, 40), A, now=0.0)
    assert fits(ledger, Need(20))
    assert not fits(ledger, Need(21))


def test_alone_a_request_may_use_the_reserve_and_nothing_runs_beside_it() -> None:
    ledger = ledger_with(64, reserve=4)
    assert fits(ledger, Need(64))
    assert not fits(ledger, Need(65))
    ledger.hold(ticket(1, 61), A, now=0.0)
    assert not fits(ledger, Need(1))
    assert ledger.backend(A).snapshot().is_alone


def test_alone_a_request_may_need_more_seats_than_there_are_and_nothing_runs_beside_it() -> None:
    ledger = ledger_with(64, seats=2)
    assert fits(ledger, Need(4, 3))
    ledger.hold(ticket(1, 4, seats=3), A, now=0.0)
    assert not fits(ledger, Need(1))
    assert ledger.backend(A).snapshot().is_alone


def test_nobody_is_alone_while_anything_else_is_held() -> None:
    ledger = ledger_with(64, reserve=4)
    ledger.hold(ticket(1, 1), A, now=0.0)
    assert not fits(ledger, Need(61))


def test_seats_run_out_although_blocks_are_free() -> None:
    ledger = ledger_with(64, seats=2)
    ledger.hold(ticket(1, 1), A, now=0.0)
    assert fits(ledger, Need(1))
    assert not fits(ledger, Need(1, 2))


def test_foreign_blocks_are_taken_off_also_from_who_is_alone() -> None:
    ledger = ledger_with(64, reserve=4, foreign=10)
    assert fits(ledger, Need(54))
    assert not fits(ledger, Need(55))


def test_a_budget_below_what_is_held_admits_nobody_until_it_drained() -> None:
    ledger = ledger_with(64)
    ledger.hold(ticket(1, 20), A, now=0.0)
    ledger.hold(ticket(2, 20), A, now=0.0)
    ledger.set_backend(A, Budget(30), serving=True, foreign_blocks=0)
    assert ledger.backend(A).free_blocks == -10
    assert not fits(ledger, Need(1))
    ledger.release(tid(1))
    assert fits(ledger, Need(10))
    assert not fits(ledger, Need(11))


def test_a_hold_may_always_grow_and_then_nothing_fits_beside_it() -> None:
    ledger = ledger_with(64)
    small = ledger.hold(ticket(1, 10), A, now=0.0)
    ledger.hold(ticket(2, 50), A, now=0.0)
    assert ledger.revise(small, worst_blocks=30, output_tokens=0) == -20
    assert ledger.backend(A).charged_blocks == 80
    assert not fits(ledger, Need(1))
    assert ledger.revise(small, worst_blocks=2, output_tokens=0) == 28
    assert fits(ledger, Need(12))


def test_a_second_release_frees_nothing_and_says_so() -> None:
    ledger = ledger_with(64)
    ledger.hold(ticket(1, 40, seats=2), A, now=0.0)
    first = ledger.release(tid(1))
    assert first is not None
    assert first.charged_blocks == 40
    assert ledger.release(tid(1)) is None
    page = ledger.backend(A)
    assert (page.charged_blocks, page.worst_blocks, page.seats_held, page.in_flight) == (0, 0, 0, 0)


def test_a_ticket_holds_once() -> None:
    ledger = ledger_with(64)
    ledger.hold(ticket(1, 4), A, now=0.0)
    with pytest.raises(ValueError, match="already holds"):
        ledger.hold(ticket(1, 4), A, now=0.0)


def test_a_shrunk_hold_gives_back_what_it_holds_then() -> None:
    ledger = ledger_with(64)
    reservation = ledger.hold(ticket(1, 40), A, now=0.0)
    ledger.revise(reservation, worst_blocks=12, output_tokens=0)
    released = ledger.release(tid(1))
    assert released is not None
    assert released.charged_blocks == 12
    assert ledger.backend(A).charged_blocks == 0


def test_nothing_fits_where_no_capacity_is_known_or_nothing_is_served() -> None:
    ledger = Ledger(StrictCommitment())
    assert ledger.fits(ticket(1), A) is None
    ledger.set_backend(A, None, serving=True, foreign_blocks=0)
    assert ledger.fits(ticket(1), A) is None
    ledger.set_backend(A, Budget(64), serving=False, foreign_blocks=0)
    assert ledger.fits(ticket(1), A) is None
    assert ledger.backend(A).could_ever_hold(ticket(1, 64))


def test_a_lost_capacity_ends_no_hold() -> None:
    ledger = ledger_with(64)
    ledger.hold(ticket(1, 40), A, now=0.0)
    ledger.set_backend(A, None, serving=False, foreign_blocks=0)
    ledger.set_backend(A, Budget(64), serving=True, foreign_blocks=0)
    assert not fits(ledger, Need(25))


@pytest.mark.parametrize(("blocks", "reserve", "seats"), [(0, 0, None), (4, 4, None), (4, -1, None), (4, 0, 0)])
def test_a_budget_that_makes_no_sense_is_not_taken(blocks: int, reserve: int, seats: int | None) -> None:
    with pytest.raises(ValueError):
        Budget(blocks, reserve, seats)


def test_foreign_blocks_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="foreign"):
        ledger_with(foreign=-1)


def test_an_operator_can_read_it() -> None:
    ledger = ledger_with(64, reserve=4, seats=8, foreign=3)
    ledger.hold(ticket(1, 40), A, now=0.0)
    assert repr(ledger) == "Ledger: a: 40 of 64 blocks held, 4 in reserve, 3 foreign, 1 of 8 seats, 1 in flight"
    assert repr(Ledger(StrictCommitment())) == "Ledger: no backend"
