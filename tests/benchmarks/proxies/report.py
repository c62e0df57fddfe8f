"""Figures as tables, and the machine that they were measured on."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.proxies.figures import COMPARED, Figure, Figures, medians, paired_ratio
from benchmarks.proxies.peers import DIRECT

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
