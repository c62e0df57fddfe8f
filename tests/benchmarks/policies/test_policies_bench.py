"""The bench itself: the engine model against a naive one, and a run of every kind of door in seconds."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.policies.arms import make_arm
from benchmarks.policies.report import measure
from benchmarks.policies.simulation import simulate
from benchmarks.policies.traces import window
from benchmarks.policies.workloads import WORKLOADS
from gateway.replay.engine import Arrival, Engine, Sequence
from gateway.replay.profiles import LLAMA_8B_A10G
from gateway.simulator.block_pool import BlockPool
from gateway.simulator.scheduler import Scheduler
from gateway.simulator.scheduler import Sequence as NaiveSequence


@pytest.mark.parametrize("seed", range(5))
def test_the_engine_model_schedules_step_by_step_as_one_that_looks_at_every_sequence(seed: int) -> None:
    draw = random.Random(seed)
    profile = replace(LLAMA_8B_A10G, blocks=60, step_tokens=64, max_running=8, block_tokens=4)
    pool = BlockPool(profile.blocks + 1, profile.block_tokens)
    engine, naive = Engine(profile), Scheduler(pool, max_running=profile.max_running, step_tokens=profile.step_tokens)
    twins: dict[int, NaiveSequence] = {}
    done: set[int] = set()
    for step in range(6000):
        if step < 1000 and draw.random() < 0.1:
            arrival = Arrival(0.0, draw.randint(1, 90), draw.randint(1, 120))
            sequence = Sequence(len(twins), arrival)
            twins[sequence.id] = NaiveSequence(arrival.prompt_tokens, arrival.output_tokens)
            engine.add(sequence)
            naive.add(twins[sequence.id])
        seconds = engine.plan(now=float(step))
        plan = naive.plan()
        assert (seconds is None) == (not plan.work)
        if seconds is None:
            continue
        assert engine.used_blocks == pool.used
        done |= {sequence.id for sequence in engine.finish_step(seconds, now=float(step + 1))[1]}
        naive.advance(plan)
        assert engine.used_blocks == pool.used
        assert engine.preemptions == naive.preemptions
        assert done == {id for id, twin in twins.items() if twin.state == "finished"}
    assert done == set(twins)
    assert engine.used_blocks == 0
    assert engine.preemptions > 10


@pytest.mark.parametrize("policy", ["none", "cancel", "watermark", "oracle", "seats=16", "strict/absent", "auto+guards/1.5x"])
def test_every_request_of_a_run_is_finished_or_turned_away_and_nothing_stays_held(policy: str) -> None:
    workload = WORKLOADS["mix-a10g"]
    arrivals = window(workload.trace, first=0, requests=250, rate=1.2 * workload.capacity, context=workload.context)
    arm = make_arm(policy, workload)

    run = simulate(arrivals, arm.engine, arm.make_door, warm_share=0.1)

    assert {sequence.state for sequence in run.sequences} <= {"finished", "new"}
    assert all(sequence.done_at is None for sequence in run.sequences if sequence.state == "new")
    figures = measure(run, workload, load=1.2, policy=policy)
    assert 0 < figures.smooth_per_s <= figures.done_per_s
    assert 0 < figures.used_share <= figures.peak_share <= 1
    if policy in ("strict/absent", "auto+guards/1.5x"):
        assert run.preemptions == 0


def test_the_same_run_twice_gives_the_same_figures() -> None:
    workload = WORKLOADS["chat-32b"]
    arrivals = window(workload.trace, first=0, requests=200, rate=workload.capacity, context=workload.context)

    def figures() -> dict[str, object]:
        arm = make_arm("auto+guards/fixed", workload)
        run = simulate(arrivals, arm.engine, arm.make_door, warm_share=0.1)
        return measure(run, workload, load=1.0, policy=arm.name).as_dict()

    assert figures() == figures()


def test_traces_keep_their_bursts_and_come_at_the_rate_asked_for() -> None:
    for workload in WORKLOADS.values():
        arrivals = window(workload.trace, first=0, requests=1000, rate=workload.capacity, context=workload.context)
        assert arrivals[0].at == 0.0
        assert len(arrivals) / arrivals[-1].at == pytest.approx(workload.capacity, rel=1e-9)
        assert all(earlier.at <= later.at for earlier, later in pairwise(arrivals))
