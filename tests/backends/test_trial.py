"""A trial against a pretend engine that keeps real block accounts, and against ones that do not do what is predicted."""

from collections.abc import AsyncIterator

import pytest

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.probe import Prober
from gateway.backends.roster import Roster
from gateway.backends.trial import LENGTHS, TrialResult, lengths_around_edges, run_trial
from gateway.clock import MonotonicClock
from gateway.core.names import BackendName
from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator
from support.engine_scripts import script_vllm
from support.scripted_engine import NO_TLS, ScriptedEngine

A = BackendName("a")


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    shape = EngineShape(num_blocks=65, block_tokens=32, max_context=1024, pace=Pace(speed=4))
    async with Simulator(shape, served=Served(name="tiny", max_context=1024, mean_output_tokens=40)) as running:
        yield running


async def tried(url: str) -> tuple[TrialResult, ...]:
    roster = Roster([BackendSpec(A, url)], prober=Prober(tls=NO_TLS), clock=MonotonicClock(), queue_timeout_s=60.0)
    try:
        await roster.look()
        return await run_trial(roster.watch(A))
    finally:
        await roster.stop()


async def test_blocks_and_prompt_counts_are_what_was_predicted(simulator: Simulator) -> None:
    count, *blocks = await tried(simulator.url)
    assert count.agrees
    assert len(blocks) == LENGTHS
    assert all(result.agrees for result in blocks), [str(result) for result in blocks]
    assert {(result.predicted, result.seen) for result in blocks} == {(number, number) for number in range(2, 6)}


async def test_a_prompt_that_is_counted_otherwise_is_told() -> None:
    async with ScriptedEngine() as engine:
        script_vllm(engine)
        engine.json("/v1/chat/completions", {"usage": {"prompt_tokens": 99, "completion_tokens": 4}})
        engine.json("/v1/completions", {"usage": {"prompt_tokens": 5}})
        count, first, *_ = await tried(engine.url)
    assert not count.agrees
    assert str(count) == "prompt tokens of a short chat: predicted 14 but seen 99"
    assert not first.agrees
    assert "it counts 5 prompt tokens where" in str(first)


async def test_an_engine_that_others_use_is_not_compared() -> None:
    async with ScriptedEngine() as engine:
        script_vllm(engine, running=3, usage=0.5)
        engine.json("/v1/chat/completions", {"usage": {"prompt_tokens": 14}})
        _, *blocks = await tried(engine.url)
    assert all("others use it" in result.trouble for result in blocks)


async def test_a_trial_that_cannot_be_made_is_a_result_and_no_exception() -> None:
    async with ScriptedEngine() as engine:
        script_vllm(engine)
        results = await tried(engine.url)
        await engine.go_away()
        gone = await tried(engine.url)
    assert [result.agrees for result in results] == [False] * (LENGTHS + 1)
    assert "it answered 404" in str(results[0])
    assert not gone[0].agrees


@pytest.mark.parametrize(("block", "context"), [(16, 4096), (32, 1024), (784, 32768), (64, 200)])
def test_lengths_lie_around_the_edges_of_blocks_and_within_the_context(block: int, context: int) -> None:
    lengths = lengths_around_edges(block, context)
    assert 1 <= len(lengths) <= LENGTHS
    assert all(prompt >= 2 and output >= 2 and prompt + output <= context for prompt, output in lengths)
    written = [prompt + output - 1 for prompt, output in lengths]
    for place, (prompt, _) in enumerate(lengths):
        assert written[place] % block in (0, block - 1) or prompt % block == 1


def test_where_every_token_is_an_edge_there_is_nothing_to_compare() -> None:
    assert lengths_around_edges(1, 4096) == []
