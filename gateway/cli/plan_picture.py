"""A plan as a picture: memory against context length, and against sessions. Imports matplotlib, which is an extra."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from gateway.cli.plan_report import Report

_POINTS = 64
_SESSIONS = 32


def draw(path: Path, report: Report) -> None:
    """Write the picture in the format of the file's name (svg, png, pdf). Raises OSError, ValueError."""
    plan, longest = report.plan, report.lengths[-1]
    lengths = sorted({max(1, longest * point // _POINTS) for point in range(1, _POINTS + 1)})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    left.plot(lengths, [plan.bytes_at(tokens) / 2**30 for tokens in lengths], label="exact")
    if not plan.no_pool:
        left.step(lengths, [_block_bytes(report, tokens) / 2**30 for tokens in lengths], label="in whole blocks")
    if report.naive is not None:
        left.plot(lengths, [(report.naive_bytes(tokens) or 0) / 2**30 for tokens in lengths], "--", label="naive formula")
    left.set(xlabel="tokens of one session", ylabel="GiB on one rank", title="memory of one session")
    left.legend()
    sessions = range(1, _SESSIONS + 1)
    for tokens in report.lengths:
        each = _block_bytes(report, tokens) if not plan.no_pool else plan.bytes_at(tokens)
        right.plot(sessions, [count * each / 2**30 for count in sessions], label=f"{tokens:,} tokens")
    if report.memory is not None:
        right.axhline(report.memory.available_bytes / 2**30, color="black", linestyle=":", label="left for the cache")
        right.set_ylim(0, report.memory.available_bytes / 2**30 * 1.5)
    right.set(xlabel="sessions", ylabel="GiB on one rank", title="memory of several")
    right.legend()
    figure.suptitle(f"{plan.model.model_type}, {plan.settings.dtype.name}, {plan.settings.engine}")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _block_bytes(report: Report, tokens: int) -> int:
    pools = report.plan.pools_at(tokens)
    return sum(pool.need(tokens) * pool.bytes_per_block for pool in pools if pool.for_each_block is None)
