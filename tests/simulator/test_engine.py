"""The engine's task: steps that take time, generations that are followed, ended and stopped."""

import asyncio

import pytest

from gateway.simulator.engine import Engine, EngineBusy, EngineShape, EngineStopped, Generation
from gateway.simulator.pace import Pace
from gateway.simulator.scheduler import Sequence

QUICK = Pace(speed=1000)


async def finished(generation: Generation) -> None:
    async with asyncio.timeout(10):
        while not generation.is_finished:
            await generation.changed.wait()
            generation.changed.clear()


def test_a_pace_is_a_sum_and_speed_divides_it() -> None:
    pace = Pace(step_s=0.02, sequence_s=0.001, prefill_token_s=0.0002, speed=2)
    assert pace.duration_s(sequences=10, prefill_tokens=100) == pytest.approx((0.02 + 0.01 + 0.02) / 2)
    with pytest.raises(ValueError, match="speed"):
        Pace(speed=0)


def test_cache_tokens_are_the_real_engines_figure() -> None:
    assert EngineShape(num_blocks=65, block_tokens=32, max_context=1024).cache_tokens == 2080
    # A context that is no multiple of the block: 64 blocks hold 1,024 tokens, but a context takes 63 for 1,000.
    assert EngineShape(num_blocks=65, block_tokens=16, max_context=1000).cache_tokens == int(65 / 63 * 1000)


def test_a_context_that_does_not_fit_beside_the_null_block_ends_the_start() -> None:
    EngineShape(num_blocks=33, block_tokens=32, max_context=1024)
    with pytest.raises(ValueError, match="never holds tokens"):
        EngineShape(num_blocks=32, block_tokens=32, max_context=1024)


async def test_a_generation_runs_to_its_end_and_leaves_nothing_behind() -> None:
    engine = Engine(EngineShape(num_blocks=65, block_tokens=32, max_context=1024, pace=QUICK))
    engine.start()
    try:
        generation = engine.submit((Sequence(100, 30), Sequence(40, 50)))
        await finished(generation)
        assert [sequence.generated for sequence in generation.sequences] == [30, 50]
        assert (engine.prompt_tokens, engine.generation_tokens) == (140, 80)
        assert engine.scheduler.pool.used == 0
        await asyncio.sleep(0)
        assert (engine.gauges.running, engine.gauges.used_fraction) == (0, 0.0)
    finally:
        await engine.stop()


async def test_an_abort_frees_the_blocks_at_once() -> None:
    engine = Engine(EngineShape(num_blocks=65, block_tokens=32, max_context=1024, pace=Pace(speed=10)))
    engine.start()
    try:
        generation = engine.submit((Sequence(100, 800),))
        async with asyncio.timeout(10):
            await generation.changed.wait()
        assert engine.scheduler.pool.used > 0
        engine.abort(generation)
        engine.abort(generation)
        assert engine.scheduler.pool.used == 0
        assert engine.gauges.used_fraction == 0.0
    finally:
        await engine.stop()


async def test_a_stopped_engine_tells_those_who_wait_and_takes_nobody() -> None:
    engine = Engine(EngineShape(num_blocks=65, block_tokens=32, max_context=1024))
    engine.start()
    generation = engine.submit((Sequence(100, 800),))
    await engine.stop()
    assert generation.changed.is_set()
    assert generation.stopped
    assert engine.scheduler.pool.used == 0
    with pytest.raises(EngineStopped):
        engine.submit((Sequence(1, 1),))


async def test_the_line_has_an_end() -> None:
    engine = Engine(EngineShape(num_blocks=65, block_tokens=32, max_context=1024, max_waiting=2))
    engine.submit((Sequence(1, 1), Sequence(1, 1)))
    with pytest.raises(EngineBusy):
        engine.submit((Sequence(1, 1),))
