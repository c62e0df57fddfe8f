"""What `kvgate demo` shows: moving bars on a terminal, plain lines elsewhere, and the comparison at the end."""

import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.simulator.load import Tally
from gateway.simulator.scrape import EngineReading

PLAIN_LINE_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class GateReading:
    """The gateway's own figures, from /kvgate/state. Blocks; queued: requests."""

    held_blocks: int
    budget_blocks: int
    queued: int


@dataclass(frozen=True, slots=True)
class Moment:
    """How one of the two bursts stands. gate: None where nothing stands before the engine."""

    title: str
    elapsed_s: float
    tally: Tally
    engine: EngineReading
    preemptions: int  # since this burst began
    gate: GateReading | None


class DemoView:
    """Writes to standard output, or to standard error where standard output is to carry one JSON object."""

    def __init__(self, *, beside_json: bool) -> None:
        self._console = Console(stderr=beside_json, highlight=False)
        self._live: Live | None = None
        self._last_line_at = 0.0

    def say(self, text: str = "") -> None:
        """A line for people."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, moment: Moment) -> None:
        """The burst as it stands: redrawn on a terminal, a line now and then elsewhere."""
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(_drawn(moment), refresh=True)
        elif time.monotonic() - self._last_line_at >= PLAIN_LINE_EVERY_S:
            self._last_line_at = time.monotonic()
            self.say(f"  {moment.elapsed_s:4.1f} s  {_counts(moment)}, KV in use {moment.engine.used_fraction:.0%}")

    def settle(self) -> None:
        """A burst is over, or the demo is: the bars go away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def compare(self, ungated: dict[str, Any], gated: dict[str, Any]) -> None:
        """Both bursts side by side."""
        table = Table(title="The same burst twice", title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("")
        table.add_column("straight at the engine", justify="right")
        table.add_column("through kvgate", justify="right")
        for label, key, unit in _ROWS:
            table.add_row(label, _figure(ungated[key], unit), _figure(gated[key], unit))
        self._console.print()
        self._console.print(table)
        self._console.print()

    def __enter__(self) -> "DemoView":
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()
        sys.stdout.flush()


_ROWS: Final = (
    ("requests", "requests", ""),
    ("completed", "completed", ""),
    ("preemptions (work thrown away)", "preemptions", ""),
    ("longest pause in a stream, median", "worst_gap_s_median", " s"),
    ("longest pause in a stream, worst", "worst_gap_s_max", " s"),
    ("streams that froze for over 1 s", "frozen_streams", ""),
    ("first token after, median", "ttft_s_p50", " s"),
    ("first token after, 95th percentile", "ttft_s_p95", " s"),
    ("tokens per second, all together", "output_tokens_per_s", ""),
    ("the whole burst took", "wall_s", " s"),
)


def _figure(value: float | int | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}{unit}" if unit else f"{value:.0f}"


def _counts(moment: Moment) -> str:
    tally = moment.tally
    queue = f"{moment.gate.queued} queued in kvgate, " if moment.gate is not None else ""
    return (
        f"{tally.ended} of {tally.total} done, {tally.streaming} streaming, {tally.waiting} without a token yet, {queue}"
        f"{moment.preemptions} preemptions"
    )


def _drawn(moment: Moment) -> Group:
    rows = Table.grid(padding=(0, 2))
    rows.add_row("requests done", _bar(moment.tally.ended, moment.tally.total), f"{moment.tally.ended} of {moment.tally.total}")
    used = moment.engine.used_fraction
    rows.add_row("KV in use", _bar(used, 1), f"{used:.0%}")
    if moment.gate is not None:
        held, budget = moment.gate.held_blocks, moment.gate.budget_blocks
        rows.add_row("KV held by kvgate", _bar(held, budget), f"{held} of {budget} blocks")
        rows.add_row("queued in kvgate", "", str(moment.gate.queued))
    rows.add_row("waiting in the engine", "", str(moment.engine.waiting))
    rows.add_row("preemptions", "", Text(str(moment.preemptions), style="bold red" if moment.preemptions else "green"))
    return Group(Text(f"{moment.title}  {moment.elapsed_s:.0f} s", style="bold"), rows)


def _bar(done: float, total: float) -> ProgressBar:
    return ProgressBar(total=max(total, 1e-9), completed=done, width=40)
