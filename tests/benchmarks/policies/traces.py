"""Request traces: when requests came, how long their prompts and answers were. Extracts in traces/, with their sources."""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

from gateway.replay.engine import Arrival

_FOLDER = Path(__file__).parent / "traces"


def window(name: str, *, first: int, requests: int, rate: float, context: int) -> list[Arrival]:
    """Requests `first` .. `first + requests` of a trace, their times stretched so that `rate` come per second on average.

    Bursts stay bursts: all gaps are stretched alike. Requests longer than `context` are left out: no engine would run them.
    """
    with gzip.open(_FOLDER / f"{name}.csv.gz", "rt", encoding="ascii", newline="") as file:
        rows = [(float(row["arrival_s"]), int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
    chosen = [row for row in rows[first : first + requests] if row[1] + row[2] <= context]
    start, end = chosen[0][0], chosen[-1][0]
    stretch = len(chosen) / (rate * (end - start))
    return [Arrival((at - start) * stretch, max(prompt, 1), max(output, 1)) for at, prompt, output in chosen]


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One turn of a session. think_s: from the end of the turn before, of its user or of the tools that it ran."""

    think_s: float
    prompt_tokens: int
    output_tokens: int


def sessions(name: str) -> list[list[SessionTurn]]:
    """The sessions of a trace, each with its turns in order."""
    with gzip.open(_FOLDER / f"{name}.csv.gz", "rt", encoding="ascii", newline="") as file:
        found: dict[str, list[SessionTurn]] = {}
        for row in csv.DictReader(file):
            turn = SessionTurn(float(row["think_s"]), max(int(row["input_tokens"]), 1), max(int(row["output_tokens"]), 1))
            found.setdefault(row["session"], []).append(turn)
    return list(found.values())
