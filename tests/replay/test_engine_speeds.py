"""How fast an engine is: the simulator's own pace, speeds that an operator gives, and speeds that a log tells."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.replay.engine import Arrival, Engine, Sequence
from gateway.replay.engine_choice import EngineWish, choose_engine
from gateway.replay.fit import fit_speeds
from gateway.replay.profiles import ENGINES, find_engine, simulator, with_speed
from gateway.replay.reader import read_trace
from gateway.replay.setting import Site
from gateway.replay.trace import Request
from gateway.simulator.block_pool import BlockPool
from gateway.simulator.engine import EngineShape
from gateway.simulator.pace import Pace
from gateway.simulator.scheduler import Scheduler
from gateway.simulator.scheduler import Sequence as SimulatedSequence
from support.replays import setting, trace_of, write_log


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_a_step_of_the_simulators_profile_takes_as_long_as_one_of_the_simulator(speed: float) -> None:
    draw = random.Random(7)
    shape = EngineShape(num_blocks=301, max_context=4096, max_running=12, step_tokens=512)
    pace = Pace(speed=speed)
    real = Scheduler(
        BlockPool(shape.num_blocks, shape.block_tokens), max_running=shape.max_running, step_tokens=shape.step_tokens
    )
    profile = replace(simulator(speed), blocks=300, max_running=shape.max_running, step_tokens=shape.step_tokens)
    engine = Engine(profile)
    lengths = []
    for number in range(3000):
        if number < 400 and draw.random() < 0.2:
            prompt, output = draw.randint(2, 1500), draw.randint(1, 300)
            engine.add(Sequence(number, Arrival(0.0, prompt, output)))
            real.add(SimulatedSequence(prompt, output))
        step = real.plan()
        seconds = engine.plan(now=0.0)
        assert (seconds is None) == (not step.work)
        if seconds is not None:
            lengths.append(seconds)
            # The last token of a prompt, left over for a step of its own, counts as one of the answer there.
            expected_s = pace.duration_s(sequences=len(step.work), prefill_tokens=step.prefill_tokens)
            assert seconds == pytest.approx(expected_s, abs=pace.prefill_token_s / speed * 1.01)
            engine.finish_step(seconds, now=0.0)
            real.advance(step)
    assert real.preemptions == engine.preemptions > 0
    assert max(lengths) > 2 * min(lengths)


def test_the_simulators_profile_has_its_defaults() -> None:
    shape, profile = EngineShape(), find_engine("simulator:8")
    assert (profile.blocks, profile.block_tokens) == (shape.num_blocks - 1, shape.block_tokens)
    assert (profile.max_running, profile.step_tokens) == (shape.max_running, shape.step_tokens)


@pytest.mark.parametrize("text", ["simulator:0", "simulator:x", "simulator:nan", "h200", "h100-8b:2", ""])
def test_an_engine_that_nobody_knows_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=f"is no engine: there are {', '.join(ENGINES)} and simulator"):
        find_engine(text)


def test_speeds_of_ones_own_replace_those_of_the_profile() -> None:
    profile = with_speed(ENGINES["h100-8b"], "prefill=8000, step=20ms, sequence=0.1ms")
    engine = Engine(profile)
    engine.add(Sequence(1, Arrival(0.0, 4000, 5)))
    assert engine.plan(now=0.0) == pytest.approx(0.5 + 0.020 + 0.0001)


@pytest.mark.parametrize("text", ["prefill", "prefill=0", "prefill=-1", "step=20parsecs", "pace=3", "", "step=20ms,"])
def test_a_speed_that_makes_no_sense_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is no speed: write prefill=8000,step=20ms"):
        with_speed(ENGINES["h100-8b"], text)


def _crowd(number: int) -> list[Request]:
    draw = random.Random(3)
    at = 0.0
    requests = []
    for _ in range(number):
        at += draw.expovariate(6.0)
        requests.append(Request(at, draw.randint(50, 1500), draw.randint(10, 300)))
    return requests


def test_speeds_are_fitted_from_a_log(tmp_path: Path) -> None:
    profile = simulator(2.0)
    write_log(tmp_path / "log", trace_of(_crowd(600)), Site(profile, 4096), setting())

    fit = fit_speeds(read_trace([tmp_path / "log"]), step_tokens=profile.step_tokens)

    assert fit is not None
    assert fit.fixed_s == pytest.approx(profile.fixed_s, rel=0.05)
    assert fit.prompt_token_s == pytest.approx(profile.prompt_token_s, rel=0.1)
    assert fit.sequence_s == pytest.approx(profile.sequence_s, rel=0.3)
    assert fit.answer_error < 0.02
    assert fit.prompt_error < 0.2


def test_a_prompt_that_is_half_computed_at_an_answers_end_counts_half(tmp_path: Path) -> None:
    # Counted whole or not at all, it made a step of these a seventh too long. On agents' logs it was a thirtieth, by which the
    # line that was predicted became half as long again.
    draw = random.Random(5)
    profile = replace(simulator(16.0), blocks=8192)
    long = [Request(0.5 * number, draw.randint(8_000, 30_000), draw.randint(30, 200)) for number in range(300)]
    write_log(tmp_path / "log", trace_of(long), Site(profile, 32_768), setting())

    fit = fit_speeds(read_trace([tmp_path / "log"]), step_tokens=profile.step_tokens)

    assert fit is not None
    running = 5
    step_s = profile.fixed_s + running * profile.sequence_s
    assert fit.fixed_s + running * fit.sequence_s == pytest.approx(step_s, rel=0.01)
    assert fit.prompt_token_s == pytest.approx(profile.prompt_token_s, rel=0.01)
    assert fit.answer_error < 0.005


def test_who_runs_beside_an_answer_counts_also_where_it_was_no_stream(tmp_path: Path) -> None:
    profile = replace(simulator(), sequence_s=0.002)
    plain = [replace(request, is_stream=number % 3 > 0) for number, request in enumerate(_crowd(500))]
    write_log(tmp_path / "log", trace_of(plain), Site(profile, 4096), setting())

    fit = fit_speeds(read_trace([tmp_path / "log"]), step_tokens=profile.step_tokens)

    assert fit is not None
    assert fit.sequence_s == pytest.approx(profile.sequence_s, rel=0.1)


def test_where_nothing_runs_beside_an_answer_first_tokens_tell_what_a_prompt_costs(tmp_path: Path) -> None:
    profile = simulator()
    alone = [Request(20.0 * number, 200 + 37 * number, 50) for number in range(50)]
    write_log(tmp_path / "log", trace_of(alone), Site(profile, 4096), setting())

    fit = fit_speeds(read_trace([tmp_path / "log"]), step_tokens=profile.step_tokens)

    assert fit is not None
    assert fit.prompt_token_s == pytest.approx(profile.prompt_token_s, rel=0.1)
    assert fit.fixed_s + fit.sequence_s == pytest.approx(profile.fixed_s + profile.sequence_s, rel=0.05)


def test_a_log_of_a_few_lines_tells_no_speed(tmp_path: Path) -> None:
    write_log(tmp_path / "log", trace_of(_crowd(20)), Site(simulator(), 4096), setting())
    log = read_trace([tmp_path / "log"])

    assert fit_speeds(log, step_tokens=2048) is None
    with pytest.raises(ValueError, match="too few requests in it tell how fast the engine was"):
        choose_engine(log, EngineWish(name="fit", kv_blocks=100))


def test_what_is_taken_for_granted_is_said(tmp_path: Path) -> None:
    write_log(tmp_path / "log", trace_of(_crowd(100)), Site(simulator(), 4096), setting())
    log = read_trace([tmp_path / "log"])

    with pytest.raises(ValueError, match="a log does not tell how large the cache was: give --kv-blocks"):
        choose_engine(log, EngineWish())
    by_log = choose_engine(log, EngineWish(kv_blocks=1024, seats=256, step_tokens=2048, max_context=4096))
    assert (by_log.profile.name, by_log.assumed) == ("fitted from the log", ())
    by_default = choose_engine(trace_of(_crowd(10)), EngineWish())
    assert by_default.assumed[0].startswith("nothing tells how fast the engine is")
    assert any("context is taken to be 2048 tokens" in sentence for sentence in by_default.assumed)


def test_blocks_beside_the_formula_are_read_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, trace_of(_crowd(60)), Site(simulator(), 4096), setting())
    lines = path.read_text().splitlines()
    weighed = [line.replace('"count"', '"blocks": 93, "count"') for line in lines if '"prompt_tokens_counted"' in line]
    path.write_text("\n".join(weighed))
    wish = EngineWish(name="simulator", max_context=4096)
    assert any("blocks in the log are not ceil" in said for said in choose_engine(read_trace([path]), wish).assumed)
