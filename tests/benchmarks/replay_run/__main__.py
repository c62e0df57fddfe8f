"""python -m benchmarks.replay_run: a trace through a real gateway and the pretend engine, beside what `kvgate replay` predicts.

See ../README.md.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.replay_run.figures import figures_of, seen_in_log
from benchmarks.replay_run.predictions import Gate, nearly_as_fast, predict_by_log, predict_by_trace
from benchmarks.replay_run.real import play
from benchmarks.replay_run.report import machine_lines, misses, sensitivity_line, table
from benchmarks.replay_run.scenes import SCENES, Scene, write_trace
from gateway.core.commitment import COMMITMENTS
from gateway.core.policies import POLICIES
from gateway.replay.reader import read_trace

_MOST_S = 180.0


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a bound is missed, 2 for a run that would take too long."""
    given = _parser().parse_args(arguments)
    scene = SCENES[given.trace]
    chosen = {name: value for name in ("requests", "speed", "load", "blocks", "sessions") if (value := getattr(given, name))}
    scene = replace(scene, **chosen, cap_tokens=scene.cap_tokens if given.cap is None else given.cap or None)
    gate = Gate(given.reserve, given.policy, given.commitment)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) if given.keep is None else given.keep
        folder.mkdir(parents=True, exist_ok=True)
        return _run(scene, gate, folder)


def _run(scene: Scene, gate: Gate, folder: Path) -> int:
    played_csv, log = folder / f"{scene.trace}.csv", folder / f"{scene.trace}.log"
    trace = scene.played()
    write_trace(trace, played_csv)
    by_trace = predict_by_trace(played_csv, scene, gate)
    if by_trace.span_s > _MOST_S:
        print(
            f"this would take {by_trace.span_s:.0f} s: choose fewer --requests, or another --speed or --load", file=sys.stderr
        )
        return 2
    played = play(trace, scene, gate.environment, log, within_s=2 * _MOST_S)
    by_log = predict_by_log(log, scene, gate)
    real = figures_of(seen_in_log(read_trace([log])))
    predicted = {each.name: figures_of(each.seen) for each in (by_trace, by_log)}
    print(f"{scene}\n{gate}\n{len(trace)} requests in {played.span_s:.0f} s; statuses {dict(played.statuses)}\n")
    sensitivity = sensitivity_line({name: figures_of(each.seen) for name, each in nearly_as_fast(log, scene, gate).items()})
    print(table(real, predicted), *machine_lines(scene, played, by_log.fit), sensitivity, sep="\n", end="\n\n")
    print(by_trace.command, by_log.command, sep="\n")
    missed = [f"{name}: {miss}" for name, figures in predicted.items() for miss in misses(real, figures)]
    for miss in missed:
        print(f"MISSED: {miss}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.replay_run", description=__doc__)
    parser.add_argument("--trace", choices=tuple(SCENES), required=True)
    parser.add_argument("--requests", type=int, help="at most so many of it")
    parser.add_argument("--speed", type=float, help="of the engine, by which time is compressed as well")
    parser.add_argument("--load", type=float, help="requests come so many times as fast as that")
    parser.add_argument("--blocks", type=int, help="usable KV blocks of the engine")
    parser.add_argument("--sessions", type=int, help="sessions at work at once")
    parser.add_argument("--cap", type=_cap, help="that every client sends: a number, or absent")
    gate = Gate()
    parser.add_argument("--reserve", default=gate.reserve, help="[%(default)s]")
    parser.add_argument("--policy", choices=tuple(POLICIES), default=gate.policy)
    parser.add_argument("--commitment", choices=tuple(COMMITMENTS), default=gate.commitment)
    parser.add_argument("--keep", type=Path, help="a folder in which the trace as played and the log are left")
    return parser


def _cap(text: str) -> int:
    """0: absent."""
    return 0 if text == "absent" else max(int(text), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
