"""Figures as tables, and the machine that they were measured on."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.proxies.figures import COMPARED, MIB, Figure, Figures, medians, paired_ratio, stream_kib
from benchmarks.proxies.measured import Measured
from benchmarks.proxies.peers import DIRECT
from benchmarks.proxies.scenarios import CROWD, SCENARIOS

_CROWD_PLAN: Final = SCENARIOS[CROWD].plan
_FIRST_DUE_MS: Final = _CROWD_PLAN.gap_ms if _CROWD_PLAN is not None else 0
Rounds = Mapping[str, Sequence[Figures]]
"""The figures of every round, by proxy."""


def machine() -> str:
    """In a line."""
    found = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    model = found[0] if found else platform.machine()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def _cpu_lines() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()


def figures_table(rounds: Rounds) -> str:
    """The medians of the rounds."""
    rows = [[name, *(_shown(medians(each)[figure]) for figure in Figure)] for name, each in rounds.items()]
    return _table(["proxy", *Figure], rows)


def ratios_table(rounds: Rounds) -> str:
    """CPU of every proxy over that of every other, paired by round."""
    proxies = [name for name in rounds if name != DIRECT]
    rows = [
        [f"{one} / {other}", *(_shown(paired_ratio(rounds[one], rounds[other], figure)) for figure in COMPARED)]
        for one in proxies
        for other in proxies
        if one != other
    ]
    return _table(["CPU, paired", *COMPARED.values()], rows)


def crowd_table(crowds: Mapping[str, Measured]) -> str:
    """What it took to hold a crowd of streams, by proxy. late: than the engine sent it; the first chunk: than was due."""
    head = [
        "proxy",
        "streams at once",
        "whole answers",
        "errors",
        "KiB/stream",
        "MiB in all",
        "cores",
        "chunk late ms p50",
        "p99",
        "first late ms p99",
    ]
    rows = []
    for name, each in crowds.items():
        cores = each.proxy_cpu_s / each.wall_s if each.proxy_cpu_s is not None else None
        most = each.resident_most_bytes / MIB if each.resident_most_bytes is not None else None
        late = (each.lag_us.p50 / 1e3, each.lag_us.p99 / 1e3) if each.lag_us is not None else (None, None)
        first = each.ttft_us.p99 / 1e3 - _FIRST_DUE_MS if each.ttft_us is not None else None
        counts = (str(number) for number in (each.most_open, each.ok, each.errors))
        rows.append([name, *counts, *(_shown(value) for value in (stream_kib(each), most, cores, *late, first))])
    return _table(head, rows)


def round_line(number: int, name: str, figures: Figures) -> str:
    shown = (f"{words} {_shown(figures[figure])}" for figure, words in COMPARED.items())
    return f"round {number} {name}: {', '.join(shown)} us; foreign cores {_shown(figures[Figure.FOREIGN_CORES])}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
