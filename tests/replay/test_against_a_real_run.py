"""What a replay predicts is what a real gateway makes of the same requests: a trace, its time compressed, is played through
`kvgate serve` and the pretend engine, each a process of its own. The longer form is benchmarks/replay_run."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.replay_run.figures import figures_of, seen_in_log
from benchmarks.replay_run.predictions import Gate, predict_by_log, predict_by_trace
from benchmarks.replay_run.real import play
from benchmarks.replay_run.report import misses, table
from benchmarks.replay_run.scenes import SCENES, write_trace
from gateway.replay.reader import read_trace

SCENE = replace(SCENES["azure_conv"], requests=120, speed=12, load=1.5)
MOST_RUNS = 3
LIMIT_S = 60.0


@pytest.mark.slow
def test_waits_in_line_are_predicted_as_a_real_gateway_has_them(tmp_path: Path) -> None:
    """The best of up to three runs counts. A replay has no noise and says the same each time; a real run on a machine that
    others use has, and its line remembers each moment in which the engine stood still. A prediction that is wrong is so in
    every run."""
    gate = Gate()
    trace, played, log = SCENE.played(), tmp_path / "trace.csv", tmp_path / "access.log"
    write_trace(trace, played)
    by_trace = predict_by_trace(played, SCENE, gate)
    missed: list[str] = []
    for _ in range(MOST_RUNS):
        seen = play(trace, SCENE, gate.environment, log, within_s=LIMIT_S)
        real = figures_of(seen_in_log(read_trace([log])))
        predicted = {each.name: figures_of(each.seen) for each in (by_trace, predict_by_log(log, SCENE, gate))}
        print(f"\n{table(real, predicted)}")

        assert seen.statuses.total() == len(trace)
        assert real.completed + real.refused + real.timed_out == len(trace)
        assert real.waited_share > 0.5, "there was a line to predict"
        missed = [f"{name}: {miss}" for name, figures in predicted.items() for miss in misses(real, figures)]
        missed += [
            f"{name}: {figures.completed} completed of {real.completed}"
            for name, figures in predicted.items()
            if abs(figures.completed - real.completed) > len(trace) / 20
        ]
        if not missed:
            return
    pytest.fail("\n".join(missed))
