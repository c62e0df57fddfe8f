"""Readings of an engine reach the judge and the evidence, and every change of freedom is one line with its reason."""

import logging
from dataclasses import replace

import pytest

from gateway.admission.controller import Controller
from gateway.backends.capacity import Capacity, Formula
from gateway.backends.view import BackendView
from gateway.books import memory_book
from gateway.core.commitment import Evidence
from gateway.core.decisions import Mode
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.queue import QueueLimits
from gateway.web.engine_readings import EngineReadings
from support.manual_clock import ManualClock
from support.tickets import A

VIEW = BackendView(
    name=A,
    url="http://a",
    engine="vllm",
    engine_version="0.32.0",
    models=("tiny",),
    healthy=True,
    serving=True,
    capacity=Capacity(
        budget=Budget(64),
        weighing=Weighing(16, 512),
        rules=EngineRules(),
        source="engine",
        budgets={},
        formula=Formula.AGREES,
    ),
    rules=EngineRules(),
    used_blocks=0,
    foreign_blocks=0,
    preemptions=0,
    running=0,
    waiting=0,
    state_text="",
)


class Desk:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.evidence = Evidence()
        book = memory_book(mode=Mode.ENFORCE, commitment="auto", policy="fifo", limits=QueueLimits(), evidence=self.evidence)
        self.controller = Controller(book, self.clock)
        self.controller.set_backend(A, budget=Budget(64), serving=True, foreign_blocks=0)
        self.readings = EngineReadings(self.controller, self.evidence)

    def reads(self, view: BackendView, *, after_s: float = 2.0) -> None:
        self.clock.advance(after_s)
        self.readings.read(view)

    def is_forecast(self) -> bool:
        return self.controller.snapshot().backends[A].commitment.is_forecast


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kvgate.commitment")
    return caplog


def test_each_change_of_freedom_is_one_line_that_says_why(lines: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    for preemptions in (0, 0, 1, 1, 9, 9):
        desk.reads(replace(VIEW, preemptions=preemptions))
    said = [(record.levelno, record.getMessage()) for record in lines.records]
    assert [level for level, _ in said] == [logging.INFO, logging.WARNING, logging.WARNING]
    assert "forecast, 10% headroom" in said[0][1]
    assert "a preemption: more headroom" in said[1][1]
    assert "strict: 8 preemptions at a time" in said[2][1]
    assert not desk.is_forecast()
    desk.reads(replace(VIEW, preemptions=9), after_s=70.0)
    assert desk.is_forecast()
    assert "tried again" in lines.records[-1].getMessage()


def test_slots_that_share_a_cache_are_strict(lines: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.reads(replace(VIEW, rules=EngineRules(fair_share_tokens=128)))
    assert not desk.is_forecast()
    assert "would fail every request" in lines.text


def test_a_backend_without_a_capacity_is_not_judged() -> None:
    desk = Desk()
    desk.reads(replace(VIEW, capacity=None))
    assert not desk.is_forecast()


def test_an_engines_own_histogram_is_evidence_for_the_model_that_it_is_of(lines: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.reads(replace(VIEW, models=("tiny", "lora"), answer_lengths={"tiny": ((64, 900), (128, 10))}))
    assert desk.evidence.families() == {"tiny on vllm 0.32.0"}
    assert "begins with the engine's own histogram of answers of tiny" in lines.text


def test_evidence_of_another_version_only_is_said(lines: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.evidence.take({"kvgate_evidence": 1, "classes": [{"class": ["tiny on vllm 0.31"], "completions": 5, "bins": []}]})
    desk.reads(VIEW)
    assert "nothing of tiny on vllm 0.32.0" in lines.text
