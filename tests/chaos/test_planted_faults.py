"""The storm finds what it is there to find: each fault is planted into the gateway by the test, and must be reported.

The plants act once, in the midst of an otherwise faultless storm: what is caught then would be caught as a rare race as
well.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from chaos.report import Report, Storm
from chaos.storm import weather
from gateway.admission.controller import Controller
from gateway.admission.grant import Grant
from gateway.core.ledger import BackendLedger, Ledger, Reservation
from gateway.core.names import TicketId
from gateway.core.ticket import Need

CALM = Storm(400, 7, faults=0.0, clients=60, life_requests=400, weather_every=10_000, slowness=4.0)
NTH = 40


def once(plant: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, but `plant` at its NTH call."""
    calls = itertools.count(1)

    def planted(*arguments: Any, **named: Any) -> Any:
        act = plant if next(calls) == NTH else real
        return act(*arguments, **named)

    return planted


def found(report: Report, words: str) -> bool:
    return any(words in finding for finding in report.findings)


def test_without_a_plant_nothing_is_found() -> None:
    report = weather(CALM)
    assert report.findings == []
    assert report.waited > 0


def test_a_release_that_is_skipped_once_is_found_as_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Controller, "_give_back", once(lambda controller, grant: None, Controller._give_back))
    report = weather(CALM)
    assert found(report, "leak:")
    assert found(report, "blocks are held")


def test_a_grant_that_is_released_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Grant.release

    def twice(grant: Grant) -> None:
        real(grant)
        grant._give_back(grant)

    monkeypatch.setattr(Grant, "release", once(twice, real))
    assert found(weather(CALM), "double release: ticket")


def test_blocks_that_are_given_back_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ledger.release

    def twice(ledger: Ledger, ticket_id: TicketId) -> Reservation | None:
        reservation = real(ledger, ticket_id)
        if reservation is not None:
            ledger.backend(reservation.backend).charged_blocks -= reservation.charged_blocks
        return reservation

    monkeypatch.setattr(Ledger, "release", once(twice, real))
    assert found(weather(CALM), "held is not the sum")


def test_one_request_too_many_is_found_by_the_book_that_is_kept_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BackendLedger.fits_as_charged
    planted: list[int] = []

    def fits(ledger: BackendLedger, need: Need, blocks: int) -> bool:
        if real(ledger, need, blocks):
            return True
        budget = ledger.budget
        # A few of them: a place that fits is not always the one that is taken.
        if len(planted) >= 5 or budget is None or not ledger.serving or not ledger.in_flight or blocks > budget.blocks:
            return False
        planted.append(blocks)
        return True

    monkeypatch.setattr(BackendLedger, "fits_as_charged", fits)
    assert found(weather(CALM), "over-admitted: ticket")


def test_requests_too_many_are_found_by_the_engines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BackendLedger.fits_as_charged

    def always(ledger: BackendLedger, need: Need, blocks: int) -> bool:
        budget = ledger.budget
        return real(ledger, need, blocks) or (budget is not None and ledger.serving and blocks <= budget.blocks)

    monkeypatch.setattr(BackendLedger, "fits_as_charged", always)
    assert found(weather(CALM, checked=False), "over-admitted on ")
