"""What forecasts and guards do before the simulator's own scheduler, on a counted clock."""

import random

import pytest

from gateway.core.commitment import Evidence
from gateway.core.guards import Guards
from gateway.simulator.engine import EngineShape
from gateway.simulator.pace import Pace
from support.simulated_run import Ask, SimulatedRun

CONTEXT = 8_192


def twenty_contexts(**more: object) -> EngineShape:
    return EngineShape(num_blocks=20 * CONTEXT // 16 + 1, max_context=CONTEXT, max_running=1_024, **more)  # type: ignore[arg-type]


def chat(client: int, draw: random.Random) -> Ask:
    """An uncapped chat: no cap is sent, and the answer ends by itself."""
    return Ask(draw.randrange(20, 400), max(1, round(draw.lognormvariate(5.5, 0.6))))


def run_cold(commitment: str, evidence: Evidence | None = None) -> SimulatedRun:
    run = SimulatedRun(twenty_contexts(), commitment=commitment, guards=Guards(), evidence=evidence)
    run.clients(300, chat)
    return run


def test_a_cold_gateway_admits_five_times_as_many_uncapped_chats_within_a_minute_and_nothing_is_preempted() -> None:
    strict, auto = run_cold("strict"), run_cold("auto")
    assert strict.until(60.0).most_in_flight == 19
    assert auto.until(60.0).most_in_flight >= 5 * 19
    assert auto.preemptions == 0
    auto.until(240.0)
    assert auto.preemptions == 0


def test_with_what_an_earlier_process_learned_it_starts_where_that_one_was() -> None:
    before = run_cold("auto")
    before.until(60.0)
    evidence = Evidence()
    evidence.take(before.evidence.record())
    after = run_cold("auto", evidence)
    assert after.until(8.0).most_in_flight >= 5 * 19, "before it has seen a single answer of its own"
    assert after.seen.ended == 0
    after.until(60.0)
    assert after.preemptions == 0


def test_outputs_that_suddenly_run_to_their_caps_end_the_forecast_and_preemptions_stop_within_a_minute() -> None:
    cap = 1_000
    shape = EngineShape(num_blocks=6 * cap // 16 + 1, max_context=4_096, max_running=1_024, pace=Pace(speed=2))
    run = SimulatedRun(shape, commitment="auto", guards=Guards())
    run.clients(60, lambda client, draw: Ask(50, max(1, round(draw.expovariate(1 / 60))), cap_tokens=cap))
    run.until(120.0)
    assert run.seen.most_in_flight > 5 * 5, "strict lets five in"
    assert run.preemptions == 0
    run.clients(60, lambda client, draw: Ask(50, cap, cap_tokens=cap))
    while run.is_forecast:
        run.until(run.now + 2.0)
        assert run.now < 300.0
    assert "preemptions" in run.judged[-1][3]
    within = run.until(run.now + 60.0)
    before = run.preemptions
    run.until(1_200.0)
    assert run.preemptions == before, "tried again since, by what answers have become"
    assert within.ended > 0
    assert [is_forecast for _, is_forecast, _, _ in run.judged][-1:] == [True]


@pytest.mark.parametrize("target_s", [None, 0.03])
def test_the_token_gap_is_held_where_memory_alone_lets_it_triple(target_s: float | None) -> None:
    """A machine whose steps grow with the batch: alone 10 ms, and 1 ms more for each."""
    shape = twenty_contexts(pace=Pace(step_s=0.009, sequence_s=0.001, prefill_token_s=0.00002))

    def run_with(guards: Guards | None) -> tuple[SimulatedRun, float]:
        run = SimulatedRun(shape, commitment="auto", guards=guards)
        for clients in (1, 2, 4, 8, 16, 32, 64, 120):
            run.clients(clients, chat)
            run.until(run.now + 15.0)
        run.until(run.now + 60.0)
        run.forget()
        run.until(run.now + 120.0)
        return run, run.seen.gap(0.9)

    guarded, gap_s = run_with(Guards(gap_target_s=target_s))
    free, free_gap_s = run_with(None)
    snapshot = guarded.book.snapshot(now=guarded.now).backends
    guard = next(iter(snapshot.values())).guards
    assert guard is not None
    assert guard.gap_target_s is not None
    assert free_gap_s > 3 * guard.gap_target_s
    assert gap_s <= 1.25 * guard.gap_target_s
    assert guarded.seen.ended > 0.5 * free.seen.ended
