"""In observe mode: what the book said that it would have done is what the same book says when it is given the same again."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.books import memory_book
from gateway.core.book import Book
from gateway.core.decisions import Granted, Mode
from gateway.core.guards import Guards
from gateway.core.names import TicketId
from gateway.core.queue import QueueLimits
from gateway.simulator.engine import EngineShape
from support.simulated_run import Ask, SimulatedRun
from support.tickets import A

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
ARRIVALS_AND_ENDS = frozenset({"set_backend", "join", "release"})
SHAPE = EngineShape(num_blocks=513, max_context=2_048, max_running=256)


class Recorded:
    """A book that notes every call that changes it, and every verdict."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.calls: list[Call] = []
        self.verdicts: dict[TicketId, str] = {}

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._book, name)
        if name in ("snapshot", "pace", "prefill_patience_s", "next_deadline", "has_waiting_for"):
            return member
        return self._noting(name, member)

    def _noting(self, name: str, member: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments, named))
            answer = member(*arguments, **named)
            note(answer, self.verdicts)
            return answer

        return call


def note(answer: object, verdicts: dict[TicketId, str]) -> None:
    if isinstance(answer, Granted):
        verdict = answer.verdict
        reason = getattr(verdict, "reason", None)
        verdicts[answer.ticket.id] = "granted" if verdict is None else str(reason) if reason else "waited"


def new_book(commitment: str, guards: Guards | None) -> Book:
    limits = QueueLimits(max_requests=100_000, wait_margin=0.1)
    return memory_book(mode=Mode.OBSERVE, commitment=commitment, policy="fifo", limits=limits, guards=guards)


def observe(commitment: str, guards: Guards | None) -> Recorded:
    """A minute of more than fits, everything let in."""
    run = SimulatedRun(SHAPE, commitment=commitment, guards=guards, mode=Mode.OBSERVE)
    recorded = Recorded(run.book)
    run.book = recorded  # type: ignore[assignment]
    # What was told before the recording began.
    recorded.set_backend(A, budget=run.budget, serving=True, now=0.0)
    recorded.read_engine(A, 0, overrun_fails_all=False, now=0.0)
    run.patience_s = 5.0
    run.clients(40, lambda client, draw: Ask(draw.randrange(10, 100), draw.randrange(1, 100), draw.choice((None, 600))))
    run.until(60.0)
    return recorded


def replay(calls: list[Call], book: Book) -> dict[TicketId, str]:
    verdicts: dict[TicketId, str] = {}
    for name, arguments, named in calls:
        note(getattr(book, name)(*arguments, **named), verdicts)
    return verdicts


def test_the_verdicts_are_those_of_the_observed_arrivals_and_ends() -> None:
    recorded = observe("strict", None)
    calls = [call for call in recorded.calls if call[0] in ARRIVALS_AND_ENDS]
    assert replay(calls, new_book("strict", None)) == recorded.verdicts
    assert {"granted", "waited"} <= set(recorded.verdicts.values())


@pytest.mark.parametrize("has_guards", [False, True])
def test_with_forecasts_they_are_those_of_everything_that_was_observed(has_guards: bool) -> None:
    recorded = observe("auto", Guards() if has_guards else None)
    assert replay(recorded.calls, new_book("auto", Guards() if has_guards else None)) == recorded.verdicts
    early, late = ([*recorded.verdicts.values()][part] for part in (slice(100), slice(-100, None)))
    assert late.count("granted") > 2 * early.count("granted"), "evidence came in between"
