"""From what was measured to figures: what a request and a chunk cost, and what a proxy adds to latency and memory."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from benchmarks.proxies.measured import Measured, Quantiles
from benchmarks.proxies.scenarios import HALF

KIB = 1024
MIB = 1024 * 1024


class Figure(StrEnum):
    """Every figure, by its heading. CPU: of the proxy's whole process tree. added: less the direct figure of the same round."""

    REQUEST_1K = "CPU us/request 1 KB"
    REQUEST_64K = "64 KB"
    BURST_CHUNK = "CPU us/chunk burst"
    PACED_CHUNK = "paced"
    BUSY_CHUNK = "paced, 500 streams"
    REQUESTS_PER_S = "requests/s 1 KB"
    LATENCY_P50 = "added us, one connection p50"
    LATENCY_P99 = "p99"
    TTFT_P50 = "added TTFT us, 500 streams p50"
    TTFT_P99 = "TTFT p99"
    LAG_P50 = "added us/chunk, 500 streams p50"
    LAG_P99 = "chunk p99"
    HALF_LAG_P50 = "added us/chunk, 250 streams p50"
    HALF_LAG_P99 = "chunk p99, 250"
    STREAM_KIB = "KiB/idle stream"
    BASE_MIB = "MiB before it"
    HANG_UP_S = "hang-up seen s"
    VERBATIM = "verbatim"
    ERRORS = "errors"
    FOREIGN_CORES = "foreign cores"


Figures = Mapping[Figure, float | None]

COMPARED = {
    Figure.REQUEST_1K: "request 1 KB",
    Figure.REQUEST_64K: "request 64 KB",
    Figure.PACED_CHUNK: "paced chunk",
    Figure.BURST_CHUNK: "burst chunk",
}
"""Costs that stay comparable between machines as ratios."""


def figures_of(measured: Iterable[Measured], direct: Iterable[Measured]) -> Figures:
    """Of one visit. direct: the visit of the same round without a proxy; None stands where something was not measured."""
    seen = list(measured)
    by_name = {each.scenario: each for each in seen if each.has_figures}
    bare = {each.scenario: each for each in direct}
    request_us = _answer_us(by_name.get("unary1k"))
    idle, ok = by_name.get("idle2000"), sum(each.ok for each in seen)
    unary, abort = by_name.get("unary1k"), by_name.get("abort")
    latency = _added(by_name.get("lat1"), bare.get("lat1"), lambda each: each.latency_us)
    ttft = _added(by_name.get("paced500"), bare.get("paced500"), lambda each: each.ttft_us)
    lag = _added(by_name.get("paced500"), bare.get("paced500"), lambda each: each.lag_us)
    half = _added(by_name.get(HALF), bare.get(HALF), lambda each: each.lag_us)
    return {
        Figure.REQUEST_1K: request_us,
        Figure.REQUEST_64K: _answer_us(by_name.get("unary64k")),
        Figure.BURST_CHUNK: _chunk_us(by_name.get("burst"), request_us),
        Figure.PACED_CHUNK: _chunk_us(by_name.get("paced100"), request_us),
        Figure.BUSY_CHUNK: _chunk_us(by_name.get("paced500"), request_us),
        Figure.REQUESTS_PER_S: unary.ok / unary.wall_s if unary is not None else None,
        Figure.LATENCY_P50: latency.p50 if latency else None,
        Figure.LATENCY_P99: latency.p99 if latency else None,
        Figure.TTFT_P50: ttft.p50 if ttft else None,
        Figure.TTFT_P99: ttft.p99 if ttft else None,
        Figure.LAG_P50: lag.p50 if lag else None,
        Figure.LAG_P99: lag.p99 if lag else None,
        Figure.HALF_LAG_P50: half.p50 if half else None,
        Figure.HALF_LAG_P99: half.p99 if half else None,
        Figure.STREAM_KIB: stream_kib(idle),
        Figure.BASE_MIB: idle.resident_before_bytes / MIB if idle is not None and idle.resident_before_bytes else None,
        Figure.HANG_UP_S: abort.hang_up_s if abort is not None else None,
        Figure.VERBATIM: sum(each.verbatim for each in seen) / ok if ok else None,
        Figure.ERRORS: sum(each.errors for each in seen),
        Figure.FOREIGN_CORES: median(each.foreign_cores for each in seen),
    }


def _answer_us(measured: Measured | None) -> float | None:
    """CPU microseconds of the proxy for each whole answer."""
    if measured is None or measured.proxy_cpu_s is None or not measured.ok:
        return None
    return measured.proxy_cpu_s * 1e6 / measured.ok


def _chunk_us(measured: Measured | None, request_us: float | None) -> float | None:
    """What is left for each chunk of a stream once a plain request is taken off."""
    stream_us = _answer_us(measured)
    if measured is None or stream_us is None or request_us is None or not measured.chunks:
        return None
    return (stream_us - request_us) * measured.ok / measured.chunks


def stream_kib(idle: Measured | None) -> float | None:
    if idle is None or not idle.connections or idle.resident_most_bytes is None or idle.resident_before_bytes is None:
        return None
    return (idle.resident_most_bytes - idle.resident_before_bytes) / KIB / idle.connections


def _added(measured: Measured | None, bare: Measured | None, of: Callable[[Measured], Quantiles | None]) -> Quantiles | None:
    """What the proxy adds to a quantile: the difference of the two quantiles."""
    ours = of(measured) if measured is not None else None
    theirs = of(bare) if bare is not None else None
    return Quantiles(ours.p50 - theirs.p50, ours.p99 - theirs.p99) if ours and theirs else None


def median(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def medians(rounds: Sequence[Figures]) -> Figures:
    return {figure: median(each.get(figure) for each in rounds) for figure in Figure}


def paired_ratio(ours: Sequence[Figures], theirs: Sequence[Figures], figure: Figure) -> float | None:
    """The median of the ratios within each round: what disturbs a whole round disturbs both sides of it."""
    pairs = [(one.get(figure), other.get(figure)) for one, other in zip(ours, theirs, strict=True)]
    return median(one / other for one, other in pairs if one is not None and other)
