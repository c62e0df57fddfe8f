"""The table: the real run, and each prediction with its error and a verdict."""

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.replay_run.figures import LEAST_WAIT_S, Figures, relative_error
from benchmarks.replay_run.real import Played
from benchmarks.replay_run.scenes import Scene
from gateway.replay.fit import Fit
from gateway.simulator.pace import Pace

P50_WITHIN: Final = 0.25
P95_WITHIN: Final = 0.50
_LABEL: Final = 34
_CELL: Final = 30


def misses(real: Figures, predicted: Figures) -> list[str]:
    """The bounds that a prediction does not keep."""
    bounds = (("p50", predicted.p50_s, real.p50_s, P50_WITHIN), ("p95", predicted.p95_s, real.p95_s, P95_WITHIN))
    return [
        f"{name} {predicted_s:.3f} s for {real_s:.3f} s ({relative_error(predicted_s, real_s):+.0%})"
        for name, predicted_s, real_s, within in bounds
        if abs(relative_error(predicted_s, real_s)) > within
    ]


def table(real: Figures, predictions: Mapping[str, Figures]) -> str:
    """A line a figure, a column a prediction."""
    lines = [_line("", "real", predictions)]
    for label, name in (("completed", "completed"), ("refused", "refused"), ("timed out", "timed_out"), ("failed", "failed")):
        lines.append(_line(label, getattr(real, name), [getattr(each, name) for each in predictions.values()]))
    for label, name, within in (
        ("queue wait p50 s", "p50_s", P50_WITHIN),
        ("queue wait p95 s", "p95_s", P95_WITHIN),
        ("mean of those who waited s", "mean_wait_s", None),
        ("grant to end, p50 s", "engine_s", None),
    ):
        of_real: float = getattr(real, name)
        cells = [_compared(getattr(each, name), of_real, within) for each in predictions.values()]
        lines.append(_line(label, f"{of_real:.3f}", cells))
    shares = [f"{each.waited_share:.0%}" for each in predictions.values()]
    lines.append(_line(f"waited {LEAST_WAIT_S * 1000:.0f} ms or more", f"{real.waited_share:.0%}", shares))
    for part, of_real in enumerate(real.parts_s):
        cells = [_compared(each.parts_s[part], of_real, None) for each in predictions.values()]
        lines.append(_line(f"mean wait in fifth {part + 1} s", f"{of_real:.3f}", cells))
    return "\n".join(lines)


def machine_lines(scene: Scene, played: Played, fit: Fit | None) -> list[str]:
    """What the machine had to do with it: how late it was, and the engine's speeds as they were and as they should be."""
    late_s = sorted(played.late_s)
    cores = ", ".join(f"{name} {busy:.2f}" for name, busy in played.cores.items())
    lines = [f"cores busy: {cores}"]
    if late_s:
        lines.append(
            f"clients sent late by {1000 * late_s[len(late_s) // 2]:.1f} ms (half of them), at most {late_s[-1]:.3f} s"
        )
    if fit is not None:
        own = Pace(speed=scene.speed)
        pairs = (
            ("step", fit.fixed_s, own.step_s),
            ("sequence", fit.sequence_s, own.sequence_s),
            ("prompt token", fit.prompt_token_s, own.prefill_token_s),
        )
        words = ", ".join(f"{name} {1000 * was:.4f} ({1000 * meant / own.speed:.4f})" for name, was, meant in pairs)
        lines.append(f"engine as fitted, and as it is set, in ms: {words}")
        lines.append(
            f"half of the answers are fitted within {fit.answer_error:.1%}, half of the prompts within {fit.prompt_error:.1%}"
        )
    return lines


def sensitivity_line(predicted: Mapping[str, Figures]) -> str:
    """What the same arrivals wait before nearly the same engine. Where this differs much, the load is near what it serves."""
    words = ", ".join(f"{name} {each.p50_s:.3f} / {each.p95_s:.3f}" for name, each in predicted.items())
    return f"log before the engine, p50 / p95 s: {words}"


def _compared(predicted: float, real: float, within: float | None) -> str:
    error = relative_error(predicted, real)
    verdict = "" if within is None else f" {'within' if abs(error) <= within else 'NOT WITHIN'} {within:.0%}"
    return f"{predicted:.3f} ({error:+.0%}){verdict}"


def _line(label: str, real: object, cells: Sequence[object] | Mapping[str, object]) -> str:
    return f"{label:<{_LABEL}}{real!s:<12}" + "".join(f"{cell!s:<{_CELL}}" for cell in cells).rstrip()
