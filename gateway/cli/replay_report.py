"""What `kvgate replay` prints: a table with a row for each setting, how it went over time, tenants, and what was assumed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from gateway.core.waste import WasteCause
from gateway.replay.engine_choice import EngineChoice
from gateway.replay.figures import Point, Result, Sample
from gateway.replay.logged import Logged, as_logged
from gateway.replay.setting import Site
from gateway.replay.trace import Trace

_WIDTH: Final = 64
_BARS: Final = " ▁▂▃▄▅▆▇█"
_MOST_PICTURES: Final = 6
_WAITS: Final = ("p50", "p95")
_TTFT: Final = ("p50", "p95", "p99")
_COLUMNS: Final = (
    *("completed", "refused", "timed out", "waited", "wait p50/p95 s", "TTFT p50/p95/p99 s"),
    *("tokens/s", "held", "used", "preempt."),
)

# What is so of every replay, and matters to who reads it.
_ALWAYS: Final = (
    "callers that are refused do not come back",
    "backends are alike, and each is there all the time; nobody but these requests uses them",
)


@dataclass(frozen=True)
class Report:
    """tenants: how many are shown by name."""

    files: tuple[str, ...]
    trace: Trace
    site: Site
    choice: EngineChoice
    results: tuple[Result, ...]
    tenants: int

    @cached_property
    def logged(self) -> Logged | None:
        return as_logged(self.trace)

    @property
    def differing(self) -> list[str]:
        """What is not alike in all settings, or the reserve if all is."""
        settings = [result.setting.as_json() for result in self.results]
        found = [name for name in settings[0] if len({str(setting[name]) for setting in settings}) > 1]
        return found or ["reserve"]

    def name(self, result: Result) -> str:
        """A setting by what makes it another one."""
        setting = result.setting.as_json()
        return ", ".join(f"{name} {setting[name]}" for name in self.differing)

    @property
    def assumed(self) -> list[str]:
        trace, said = self.trace, [*self.choice.assumed]
        if trace.unknown_lengths:
            said.append(
                f"{trace.unknown_lengths:,} answers are of unknown length (refused, left, broken off, or not told): each is"
                " given that of a completed one of its model, cap and tenant, evenly over all these"
            )
        if len(trace.pools) > 1:
            said.append(f"the requests of {len(trace.pools)} pools run on the same engines; see --pool")
        if any(result.setting.backends > 1 for result in self.results):
            said.append("prompts begin differently, so that placement names any engine for them; turns of a session name one")
        if not trace.is_log:
            said.append("prompts are counted exactly, and answers are streams")
        if trace.has_sessions:
            said.append("a turn comes its think time after the one before it ended, or was refused")
            if self.site.has_prefix_cache:
                said.append("what a turn shares with the one before is kept while nobody needs its blocks (--no-prefix-cache)")
        elif trace.is_log:
            said.append("what the engine's prefix cache had of a prompt it has again")
        return said + list(_ALWAYS)


class Progress:
    """A bar on standard error, only on a terminal. Used as a context."""

    def __init__(self, settings: int) -> None:
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._settings = settings
        self._begun = 0
        self._requests = 0
        self._lines = 0
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def reads(self) -> None:
        self._lines += 1
        self._bar.update(self._task, completed=1000 * self._lines)

    def begins(self, requests: int) -> None:
        self._begun += 1
        self._requests = requests
        text = f"setting {self._begun} of {self._settings}"
        self._bar.reset(self._task, total=requests * self._settings, completed=requests * (self._begun - 1), description=text)

    def came(self, requests: int) -> None:
        self._bar.update(self._task, completed=self._requests * (self._begun - 1) + requests)


def report_json(report: Report) -> dict[str, Any]:
    """Everything that is known, as data."""
    trace, choice, site = report.trace, report.choice, report.site
    profile, fit = choice.profile, choice.fit
    return {
        "trace": {
            "files": list(report.files),
            "form": "log" if trace.is_log else "csv",
            "requests": len(trace),
            "skipped": dict(trace.skipped),
            "unknown_lengths": trace.unknown_lengths,
        },
        "engine": {
            "profile": profile.name,
            "blocks": profile.blocks,
            "block_tokens": profile.block_tokens,
            "seats": profile.max_running,
            "step_tokens": profile.step_tokens,
            "max_context": site.max_context,
            "fit": None
            if fit is None
            else {
                "step_ms": round(1000 * fit.fixed_s, 4),
                "sequence_ms": round(1000 * fit.sequence_s, 5),
                "prompt_token_ms": round(1000 * fit.prompt_token_s, 6),
                "answers": fit.answers,
                "prompts": fit.prompts,
                "median_relative_error": {"answers": round(fit.answer_error, 4), "prompts": round(fit.prompt_error, 4)},
            },
        },
        "patience_s": site.patience_s,
        "load": site.load,
        "assumed": report.assumed,
        "as_logged": report.logged.as_json() if report.logged is not None else None,
        "results": [result.as_json(tenants=report.tenants) for result in report.results],
    }


def report_text(report: Report) -> str:
    """The same for a person."""
    trace, site, choice = report.trace, report.site, report.choice
    skipped = "".join(f"; skipped: {number:,} {what}" for what, number in trace.skipped.items())
    profile, fit = choice.profile, choice.fit
    pool = f"{profile.blocks:,} blocks of {profile.block_tokens} tokens"
    lines = [
        f"{', '.join(report.files)}: {len(trace):,} requests{skipped}",
        f"engine   {profile.words}",
        f"         {pool}, context {site.max_context:,}, {profile.max_running} seats",
    ]
    if fit is not None:
        step_ms, sequence_ms, prompt_ms = (1000 * speed for speed in (fit.fixed_s, fit.sequence_s, fit.prompt_token_s))
        answers = f"{fit.answers:,} answers (half within {fit.answer_error:.1%})"
        prompts = f"{fit.prompts:,} first tokens (half within {fit.prompt_error:.1%})"
        lines += [
            f"         a step: {step_ms:.3g} ms + {sequence_ms:.3g} a sequence + {prompt_ms:.3g} a prompt token",
            f"         by least squares over {answers} and {prompts}",
        ]
    lines += ["", *_table(report), ""]
    for result in report.results[:_MOST_PICTURES]:
        lines += [*_picture(report, result), ""]
    for result in report.results[: 1 if len(report.results) > _MOST_PICTURES else None]:
        lines += _tenants(report, result)
    lines += [f"assumed: {sentence}" for sentence in report.assumed]
    return "\n".join(lines)


def _table(report: Report) -> list[str]:
    shown = report.differing
    settings = [{name: str(value) for name, value in result.setting.as_json().items()} for result in report.results]
    rows = [[*shown, *_COLUMNS]]
    if report.logged is not None:
        logged = report.logged
        numbers = [f"{number:,}" for number in (logged.completed, logged.refused, logged.timed_out)]
        rows.append(["as logged", *[""] * (len(shown) - 1), *numbers, ""])
        rows[-1] += [_times(logged.waits, *_WAITS), _times(logged.ttft, *_TTFT), "", "", "", ""]
    waste = [[*shown, "cap above truth", "absent cap", "end from the start", "refused for"]]
    for result, setting in zip(report.results, settings, strict=True):
        all_, named = result.all, [setting[name] for name in shown]
        numbers = [f"{number:,}" for number in (all_.completed, all_.refusals, all_.timed_out, all_.waited)]
        rows.append([*named, *numbers, _times(all_.waits, *_WAITS), _times(all_.ttft, *_TTFT)])
        tokens_per_s = all_.output_tokens / max(result.span_s, 1e-9)
        rows[-1] += [f"{tokens_per_s:,.0f}", f"{result.held_share:.1%}", f"{result.used_share:.1%}", f"{result.preemptions:,}"]
        shares = result.waste_shares()
        causes = (WasteCause.CAP_ABOVE_TRUTH, WasteCause.ABSENT_CAP, WasteCause.END_FROM_START)
        reasons = ", ".join(f"{reason.value} {number:,}" for reason, number in sorted(all_.refused.items()))
        waste.append([*named, *(f"{shares[cause]:.1%}" for cause in causes), reasons or "–"])
    alike = [f"{name} {value}" for name, value in settings[0].items() if name not in shown]
    return [
        f"in every row: {', '.join(alike)}",
        *_aligned(rows, left=len(shown)),
        "",
        "held in vain, of what was held",
        *_aligned(waste, left=len(shown)),
    ]


def _aligned(rows: list[list[str]], *, left: int) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _times(sample: Sample, *names: str) -> str:
    quantiles = sample.quantiles()
    return "–" if quantiles is None else " / ".join(f"{quantiles[name]:.2f}" for name in names)


def _picture(report: Report, result: Result) -> list[str]:
    """How it went, from the first arrival to the last end, each line scaled to its own largest value."""
    points = result.timeline.points
    if not points:
        return []
    minutes = points[-1].at_s / 60
    budget, waiting = result.budget_blocks, max(point.waiting for point in points)
    return [
        f"{report.name(result)}: {minutes:,.1f} min",
        f"  held     {_sparks(points, [point.held_blocks for point in points], budget)} of {budget:,} blocks",
        f"  used     {_sparks(points, [point.used_blocks for point in points], budget)}",
        f"  waiting  {_sparks(points, [point.waiting for point in points], max(waiting, 1))} at most {waiting:,}",
    ]


def _sparks(points: list[Point], values: list[int], most: int) -> str:
    """The largest value of each part of the time."""
    columns = [0] * _WIDTH
    end = max(points[-1].at_s, 1e-9)
    for point, value in zip(points, values, strict=True):
        column = min(int(point.at_s / end * _WIDTH), _WIDTH - 1)
        columns[column] = max(columns[column], value)
    steps = len(_BARS) - 1
    return "".join(_BARS[min(-(-value * steps // most), steps)] for value in columns)


def _tenants(report: Report, result: Result) -> list[str]:
    found = result.largest_tenants(report.tenants)
    if not found:
        return []
    rows = [["tenant", "requests", "completed", "refused", "timed out", "wait p50/p95 s", "TTFT p50/p95 s", "of what was held"]]
    held = max(result.all.held_block_s, 1e-9)
    rows += [
        [
            name,
            f"{fates.requests:,}",
            f"{fates.completed:,}",
            f"{fates.refusals:,}",
            f"{fates.timed_out:,}",
            _times(fates.waits, *_WAITS),
            _times(fates.ttft, *_WAITS),
            f"{fates.held_block_s / held:.1%}",
        ]
        for name, fates in found
    ]
    return [f"tenants, {report.name(result)}", *_aligned(rows, left=1), ""]
