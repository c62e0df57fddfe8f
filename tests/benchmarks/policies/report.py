"""From a run to figures, and from figures to a table."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from benchmarks.policies.simulation import Run
from benchmarks.policies.workloads import Workload
from gateway.replay.engine import Sequence


@dataclass(frozen=True, slots=True)
class Figures:
    """One run in figures. Rates and shares are of the requests that count (not the warm-up); preemptions are of all.

    smooth_per_s: requests per second that met their objectives (first token, mean time between tokens) and never froze for
    more than a second. shed_share: refused, or left before the first token. used_share: blocks really used, of the pool.
    """

    workload: str
    load: float
    policy: str
    smooth_per_s: float
    done_per_s: float
    tokens_per_s: float
    smooth_tokens_per_s: float
    shed_share: float
    preemptions_per_1k: float
    frozen_share: float
    recomputed_share: float
    used_share: float
    peak_share: float
    running: float
    queue_wait_p50_s: float
    queue_wait_p99_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p90_s: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(run: Run, workload: Workload, *, load: float, policy: str) -> Figures:
    done = [sequence for sequence in run.counted if sequence.done_at is not None]
    smooth = [sequence for sequence in done if is_smooth(sequence, workload)]
    ttfts = [_ttft_s(sequence) for sequence in done]
    itls = [_itl_s(sequence) for sequence in done if sequence.arrival.output_tokens > 1]
    waits = [sequence.granted_at - sequence.arrival.at for sequence in done if sequence.granted_at is not None]
    return Figures(
        workload=workload.name,
        load=load,
        policy=policy,
        smooth_per_s=len(smooth) / run.span_s,
        done_per_s=len(done) / run.span_s,
        tokens_per_s=sum(sequence.arrival.output_tokens for sequence in done) / run.span_s,
        smooth_tokens_per_s=sum(sequence.arrival.output_tokens for sequence in smooth) / run.span_s,
        shed_share=1 - len(done) / len(run.counted),
        preemptions_per_1k=1000 * run.preemptions / len(run.sequences),
        frozen_share=sum(sequence.frozen for sequence in done) / max(len(done), 1),
        recomputed_share=run.recomputed_share,
        used_share=run.used_share,
        peak_share=run.peak_share,
        running=run.running,
        queue_wait_p50_s=_quantile(waits, 0.5),
        queue_wait_p99_s=_quantile(waits, 0.99),
        ttft_p50_s=_quantile(ttfts, 0.5),
        ttft_p99_s=_quantile(ttfts, 0.99),
        itl_p50_s=_quantile(itls, 0.5),
        itl_p90_s=_quantile(itls, 0.9),
    )


def is_smooth(sequence: Sequence, workload: Workload) -> bool:
    """Whether a finished request was served as its user expects."""
    return not sequence.frozen and _ttft_s(sequence) <= workload.ttft_s and _itl_s(sequence) <= workload.itl_s


def _ttft_s(sequence: Sequence) -> float:
    assert sequence.first_token_at is not None, "it is done"
    return sequence.first_token_at - sequence.arrival.at


def _itl_s(sequence: Sequence) -> float:
    assert sequence.first_token_at is not None, "it is done"
    assert sequence.done_at is not None, "it is done"
    return (sequence.done_at - sequence.first_token_at) / max(sequence.arrival.output_tokens - 1, 1)


def _quantile(values: list[float], share: float) -> float:
    """0 of an empty list: nobody waited."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


HEAD = (
    f"{'workload':10}{'load':>5} {'policy':26}{'smooth/s':>9}{'done/s':>8}{'tok/s':>7}{'shed':>6}{'pre/1k':>8}{'frozen':>8}"
    f"{'used':>6}{'run':>6}  {'wait p50/p99 s':>15} {'TTFT p50/p99 s':>15} {'ITL p50/p90 ms':>15}"
)


def line(figures: Figures) -> str:
    """One row under HEAD."""
    return (
        f"{figures.workload:10}{figures.load:5.1f} {figures.policy:26}{figures.smooth_per_s:9.2f}{figures.done_per_s:8.2f}"
        f"{figures.tokens_per_s:7.0f}{figures.shed_share:6.0%}{figures.preemptions_per_1k:8.1f}{figures.frozen_share:8.1%}"
        f"{figures.used_share:6.0%}{figures.running:6.0f}"
        f"  {figures.queue_wait_p50_s:8.2f}/{figures.queue_wait_p99_s:6.2f} {figures.ttft_p50_s:8.2f}/{figures.ttft_p99_s:6.2f}"
        f" {1000 * figures.itl_p50_s:9.0f}/{1000 * figures.itl_p90_s:5.0f}"
    )


def table(rows: Iterable[Figures]) -> str:
    return "\n".join([HEAD, *map(line, rows)])
