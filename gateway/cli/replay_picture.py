"""A replay as a picture: what was held and used, who waited, who was refused, over time; one line for each setting. Imports
matplotlib, which is an extra."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from gateway.cli.replay_report import Report
from gateway.replay.figures import Result


def draw(path: Path, report: Report) -> None:
    """Write the picture in the format of the file's name (svg, png, pdf). Raises OSError, ValueError."""
    figure, ((held, waiting), (refused, waste)) = pyplot.subplots(2, 2, figsize=(13, 8))
    for result in report.results:
        points = result.timeline.points
        minutes = [point.at_s / 60 for point in points]
        (line,) = held.plot(
            minutes, [100 * point.held_blocks / result.budget_blocks for point in points], label=report.name(result)
        )
        used = [100 * point.used_blocks / result.budget_blocks for point in points]
        held.plot(minutes, used, linestyle=":", color=line.get_color())
        waiting.plot(minutes, [point.waiting for point in points], label=report.name(result))
        refused.plot(minutes, [point.refused for point in points], label=report.name(result))
    held.set(xlabel="minutes", ylabel="% of the blocks", title="held (dotted: really used)")
    waiting.set(xlabel="minutes", ylabel="requests", title="waiting")
    refused.set(xlabel="minutes", ylabel="requests", title="refused or timed out, so far")
    _draw_waste(waste, report)
    held.legend(fontsize="small", loc="lower center")
    figure.suptitle(", ".join(report.files))
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _draw_waste(axes: Axes, report: Report) -> None:
    """What was held, as shares of all blocks at all times: used, or in vain by cause."""
    results = report.results
    names = [report.name(result) for result in results]
    left = [0.0] * len(results)
    in_vain = [sum(result.waste_shares().values()) for result in results]
    parts = {"used": [100 * result.held_share * (1 - share) for result, share in zip(results, in_vain, strict=True)]}
    for cause in results[0].waste_shares():
        parts[cause.value.replace("_", " ")] = [100 * result.held_share * result.waste_shares()[cause] for result in results]
    for label, widths in parts.items():
        axes.barh(names, widths, left=left, label=label)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set(xlabel="% of all blocks at all times", title="what was held, and what for", xlim=(0, 100))
    axes.invert_yaxis()
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, -0.3), ncols=4)


def _blocks(result: Result) -> tuple[list[int], list[int]]:
    """Held and used, at each point."""
    points = result.timeline.points
    return [point.held_blocks for point in points], [point.used_blocks for point in points]
