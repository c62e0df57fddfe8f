"""The scheduler, step by step without a clock: the real engine's edges, and what must hold after every step."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.simulator.block_pool import BlockPool
from gateway.simulator.scheduler import Scheduler, Sequence


def run_to_the_end(scheduler: Scheduler) -> int:
    """Step until nothing is left; the peak of blocks used."""
    peak = 0
    while scheduler.has_work:
        step = scheduler.plan()
        assert step.work, "work is left, and a step does none of it"
        peak = max(peak, scheduler.pool.used)
        scheduler.advance(step)
    return peak


@pytest.mark.parametrize(
    ("count", "prompt", "output", "preemptions"),
    [(4, 200, 313, 0), (4, 200, 314, 1), (8, 100, 157, 0), (8, 100, 158, 1)],
)
def test_the_pool_overflows_exactly_where_the_real_engines_does(count: int, prompt: int, output: int, preemptions: int) -> None:
    # Measured on vLLM 0.32 with 64 usable blocks of 32 tokens; a last token's KV is never written.
    scheduler = Scheduler(BlockPool(65, 32))
    for _ in range(count):
        scheduler.add(Sequence(prompt, output))
    peak = run_to_the_end(scheduler)
    assert scheduler.preemptions == preemptions
    assert peak == 64
    assert scheduler.pool.used == 0


@pytest.mark.parametrize(
    ("prompt", "output", "blocks"), [(10, 22, 1), (10, 23, 1), (32, 33, 2), (100, 92, 6), (100, 93, 6), (500, 100, 19)]
)
def test_one_sequence_peaks_at_prompt_and_output_less_one(prompt: int, output: int, blocks: int) -> None:
    scheduler = Scheduler(BlockPool(65, 32))
    scheduler.add(Sequence(prompt, output))
    assert run_to_the_end(scheduler) == blocks


def test_the_sequence_that_came_last_is_preempted_and_computed_again_from_scratch() -> None:
    scheduler = Scheduler(BlockPool(5, 4))
    first, second = Sequence(8, 5), Sequence(8, 5)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.advance(scheduler.plan())  # both prompts fill all four blocks, and both have a token
    assert (first.generated, second.generated, scheduler.pool.free) == (1, 1, 0)
    step = scheduler.plan()
    assert [sequence for sequence, _ in step.work] == [first]
    assert (second.state, second.blocks, second.computed, second.preemptions) == ("waiting", [], 0, 1)
    while first.state == "running":
        scheduler.advance(step)
        step = scheduler.plan()
    assert step.work == ((second, 9),)  # its prompt and the token that it had generated
    assert step.prefill_tokens == 9
    scheduler.advance(step)
    assert second.generated == 2


def test_nobody_passes_a_prompt_that_does_not_fit_yet() -> None:
    scheduler = Scheduler(BlockPool(5, 4))
    running, large, small = Sequence(8, 8), Sequence(12, 1), Sequence(1, 1)
    for sequence in (running, large, small):
        scheduler.add(sequence)
    assert [sequence for sequence, _ in scheduler.plan().work] == [running]
    assert list(scheduler.waiting) == [large, small]


def test_a_long_prompt_is_computed_in_chunks_beside_the_others_tokens() -> None:
    scheduler = Scheduler(BlockPool(65, 32), step_tokens=100)
    scheduler.add(Sequence(10, 50))
    scheduler.advance(scheduler.plan())
    long = Sequence(250, 2)
    scheduler.add(long)
    chunks = []
    while long.generated == 0:
        step = scheduler.plan()
        chunks.append(dict(step.work)[long])
        assert step.prefill_tokens == chunks[-1]
        assert sum(tokens for _, tokens in step.work) <= 100
        scheduler.advance(step)
    assert chunks == [99, 99, 52]


def test_the_batch_has_a_limit_of_its_own() -> None:
    scheduler = Scheduler(BlockPool(65, 32), max_running=2)
    for _ in range(3):
        scheduler.add(Sequence(1, 5))
    assert len(scheduler.plan().work) == 2
    assert len(scheduler.waiting) == 1


def test_what_could_never_fit_is_not_taken() -> None:
    scheduler = Scheduler(BlockPool(5, 4))
    scheduler.add(Sequence(8, 9))  # 16 tokens are written
    with pytest.raises(ValueError, match="cannot run here"):
        scheduler.add(Sequence(8, 10))


def test_an_abort_frees_the_blocks_at_once_even_while_a_step_runs() -> None:
    scheduler = Scheduler(BlockPool(5, 4))
    sequence = Sequence(8, 9)
    scheduler.add(sequence)
    step = scheduler.plan()
    scheduler.abort(sequence)
    assert scheduler.pool.used == 0
    assert scheduler.advance(step) == []
    assert not scheduler.has_work


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and departures in any order; the promises in scheduler.py hold after each."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(BlockPool(9, 4), max_running=5, step_tokens=16)
        self.alive: list[Sequence] = []
        self.seen: dict[Sequence, int] = {}

    @rule(prompt=st.integers(1, 20), output=st.integers(1, 12))
    def arrive(self, prompt: int, output: int) -> None:
        sequence = Sequence(prompt, output)
        self.scheduler.add(sequence)
        self.alive.append(sequence)
        self.seen[sequence] = 0

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        step = self.scheduler.plan()
        assert step.work
        assert sum(tokens for _, tokens in step.work) <= 16
        if data.draw(st.booleans()):
            self._abort(data)
        for sequence in self.scheduler.advance(step):
            assert sequence.generated == self.seen[sequence] + 1
            self.seen[sequence] = sequence.generated

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._abort(data)

    def _abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.scheduler.abort(sequence)
        assert sequence.state == "finished"

    @invariant()
    def blocks_are_conserved(self) -> None:
        pool = self.scheduler.pool
        owned = [block for sequence in self.scheduler.running for block in sequence.blocks]
        assert len(owned) == len(set(owned)) == pool.used
        assert pool.used + pool.free == pool.usable
        assert 0 not in owned

    @invariant()
    def each_sequence_is_in_one_place(self) -> None:
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        for sequence in self.alive:
            places = {"running": running.count(sequence), "waiting": waiting.count(sequence), "finished": 0}
            assert sum(places.values()) == places[sequence.state] == (sequence.state != "finished")
            if sequence.state != "running":
                assert sequence.blocks == []
            else:
                assert len(sequence.blocks) >= self.scheduler.pool.blocks_for(sequence.computed)

    @invariant()
    def generated_tokens_are_never_lost(self) -> None:
        assert all(sequence.generated == self.seen[sequence] for sequence in self.alive)


SchedulerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
