"""Every metric of kvgate: names, labels and buckets, defined once. The only file that imports prometheus_client.

Counters and histograms are recorded as things happen. Gauges are read at scrape time from one snapshot, so that they can
never drift from the books. Label values are bounded: backends, lanes, pools, reasons and outcomes are finite; a model is
a name that a backend listed, else `other`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.waste import WasteCause

OTHER_MODEL: Final = "other"
OTHER_TENANT: Final = "other"
EXPOSITION_TYPE: Final = CONTENT_TYPE_LATEST

# TTFT reaches from a cache hit on an idle engine to ten minutes in a queue.
_LATENCY_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_GAP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REQUEST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)
_BLOCK_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_RATIO_BUCKETS: Final = (0.25, 0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 6, 10)


class GaugeName(StrEnum):
    """What is read at scrape time, with the labels of each in GAUGE_LABELS."""

    BUDGET_BLOCKS = "kvgate_budget_blocks"
    RESERVE_BLOCKS = "kvgate_reserve_blocks"
    HELD_BLOCKS = "kvgate_held_blocks"
    WORST_CASE_BLOCKS = "kvgate_worst_case_blocks"
    FOREIGN_BLOCKS = "kvgate_foreign_blocks"
    ENGINE_USED_BLOCKS = "kvgate_engine_used_blocks"
    LEDGER_GAP_BLOCKS = "kvgate_ledger_gap_blocks"
    IN_FLIGHT = "kvgate_in_flight"
    BACKEND_UP = "kvgate_backend_up"
    COMMITMENT = "kvgate_commitment"
    HEADROOM = "kvgate_commitment_headroom_ratio"
    UNANSWERED_TOKENS = "kvgate_unanswered_prompt_tokens"
    SEAT_LIMIT = "kvgate_seat_limit"
    QUEUE_REQUESTS = "kvgate_queue_requests"
    QUEUE_BLOCKS = "kvgate_queue_blocks"
    BACKLOG_SECONDS = "kvgate_backlog_seconds"
    UPSTREAM_CONNECTIONS = "kvgate_upstream_connections"
    CONNECTIONS = "kvgate_connections"
    LOG_LINES_DROPPED = "kvgate_log_lines_dropped_total"
    ENGINE_PREEMPTIONS = "kvgate_engine_preemptions_total"


_GAUGES: Final[dict[GaugeName, tuple[str, tuple[str, ...]]]] = {
    GaugeName.BUDGET_BLOCKS: ("KV blocks that may be planned with, reserve included", ("backend",)),
    GaugeName.RESERVE_BLOCKS: ("KV blocks of the budget that are never granted", ("backend",)),
    GaugeName.HELD_BLOCKS: ("KV blocks charged for running requests", ("backend",)),
    GaugeName.WORST_CASE_BLOCKS: ("KV blocks that running requests may take at most", ("backend",)),
    GaugeName.FOREIGN_BLOCKS: ("KV blocks that somebody other than this gateway's requests occupies", ("backend",)),
    GaugeName.ENGINE_USED_BLOCKS: ("KV blocks in use by the engine's own gauge", ("backend",)),
    GaugeName.LEDGER_GAP_BLOCKS: ("held + foreign blocks less the engine's own gauge", ("backend",)),
    GaugeName.IN_FLIGHT: ("Requests granted and not ended", ("backend",)),
    GaugeName.BACKEND_UP: ("1 if the backend is healthy", ("backend",)),
    GaugeName.COMMITMENT: ("1 for the commitment in force", ("backend", "mode")),
    GaugeName.HEADROOM: ("Part of the budget that forecasts leave free", ("backend",)),
    GaugeName.UNANSWERED_TOKENS: (
        "Prompt tokens granted that have no first token yet, as expected to be computed",
        ("backend",),
    ),
    GaugeName.SEAT_LIMIT: (
        "Sequences at once that the gap between tokens allows; absent while it asks for no limit",
        ("backend",),
    ),
    GaugeName.QUEUE_REQUESTS: ("Requests waiting for a grant", ("pool", "lane")),
    GaugeName.QUEUE_BLOCKS: ("KV blocks that waiting requests ask for", ("pool", "lane")),
    GaugeName.BACKLOG_SECONDS: ("Predicted time to serve what waits; the age of the oldest until that is known", ("pool",)),
    GaugeName.UPSTREAM_CONNECTIONS: ("Connections to the engine", ("backend", "state")),
    GaugeName.CONNECTIONS: ("Clients' connections", ("port",)),
    GaugeName.LOG_LINES_DROPPED: ("Log lines that were dropped because nobody took them", ()),
    GaugeName.ENGINE_PREEMPTIONS: ("Preemptions that the engine has counted", ("backend",)),
}


@dataclass(frozen=True, slots=True)
class GaugeRow:
    """One sample: labels in the order of the gauge's label names."""

    gauge: GaugeName
    labels: tuple[str, ...]
    value: float


class _SnapshotCollector:
    """Turns the rows of one snapshot into gauges at scrape time."""

    def __init__(self) -> None:
        self.sources: list[Callable[[], Iterable[GaugeRow]]] = []

    def collect(self) -> Iterator[Metric]:
        families: dict[GaugeName, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, (text, labels) in _GAUGES.items():
            kind = CounterMetricFamily if name.value.endswith("_total") else GaugeMetricFamily
            families[name] = kind(name.value, text, labels=labels)
        for rows in self.sources:
            for row in rows():
                families[row.gauge].add_metric(row.labels, row.value)
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        return ()


class Metrics:
    """The counters and histograms of one gateway, in a registry of its own: no global state."""

    def __init__(self, version: str, *, tenant_labels: int = 100) -> None:
        """tenant_labels: tenants that are shown by name, the first that come; all others are `other`."""
        self._tenant_labels = tenant_labels
        self._named_tenants: set[str] = set()
        self._registry = registry = CollectorRegistry(auto_describe=False)
        self._gauges = _SnapshotCollector()
        registry.register(self._gauges)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=buckets)

        self._requests = counter("kvgate_requests", "Requests by how they ended", "model", "outcome")
        self._rejections = counter("kvgate_rejections", "Requests that kvgate declined", "pool", "lane", "reason")
        self._tenants = counter("kvgate_tenant_requests", "Requests by tenant", "tenant", "outcome")
        self._queue_wait = histogram(
            "kvgate_queue_wait_seconds", "From the body's arrival to the end of the wait", _LATENCY_BUCKETS, "lane", "outcome"
        )
        self._ttft = histogram(
            "kvgate_time_to_first_token_seconds", "From the head's arrival to the first token sent", _LATENCY_BUCKETS, "model"
        )
        self._upstream_ttft = histogram(
            "kvgate_upstream_first_token_seconds", "From sending to the engine's first token", _LATENCY_BUCKETS, "model"
        )
        self._gap = histogram("kvgate_inter_token_seconds", "Between two token-bearing events", _GAP_BUCKETS, "model")
        self._duration = histogram("kvgate_request_seconds", "From the head's arrival to the end", _REQUEST_BUCKETS, "model")
        self._prompt_tokens = counter("kvgate_prompt_tokens", "Prompt tokens, as engines reported them", "model")
        self._output_tokens = counter("kvgate_output_tokens", "Output tokens, as engines reported them", "model")
        self._demand = histogram("kvgate_demand_blocks", "KV blocks that a granted request may take", _BLOCK_BUCKETS, "model")
        self._ratio = histogram(
            "kvgate_prompt_estimate_ratio", "Counted prompt tokens over those the engine reported", _RATIO_BUCKETS, "model"
        )
        self._usage_missing = counter("kvgate_usage_missing", "Answers without a usage that made sense", "model")
        self._truncated = counter(
            "kvgate_prompts_truncated", "Prompts of which the engine counted clearly fewer tokens than they have", "model"
        )
        self._waste = counter(
            "kvgate_waste_block_seconds", "Blocks held and not used, over the time that they were held", "cause", "tenant"
        )
        self._observed = counter("kvgate_would_have", "In observe mode: what enforcing would have done", "pool", "verdict")
        self._refused_at_door = counter(
            "kvgate_connections_refused", "Connections turned away or ended at the door", "port", "reason"
        )
        self._lag = Gauge("kvgate_event_loop_lag_seconds", "How late the event loop ran, last look", registry=registry)
        info = Gauge("kvgate_build_info", "1, with the version as label", ("version",), registry=registry)
        info.labels(version).set(1)

    def read_gauges_from(self, rows: Callable[[], Iterable[GaugeRow]]) -> None:
        """Ask `rows`, beside those named before, for samples of gauges at each scrape."""
        self._gauges.sources.append(rows)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def request_ended(self, model: str, outcome: Outcome, tenant: str) -> None:
        self._requests.labels(model, outcome.value).inc()
        self._tenants.labels(self._tenant_label(tenant), outcome.value).inc()

    def rejected(self, pool: str, lane: str, reason: RejectReason) -> None:
        self._rejections.labels(pool, lane, reason.value).inc()

    def waited(self, lane: str, outcome: str, seconds: float) -> None:
        """outcome: granted, refused, timeout or client_gone."""
        self._queue_wait.labels(lane, outcome).observe(seconds)

    def granted(self, model: str, blocks: int) -> None:
        self._demand.labels(model).observe(blocks)

    def wasted(self, cause: WasteCause, tenant: str, block_seconds: float) -> None:
        self._waste.labels(cause.value, self._tenant_label(tenant)).inc(block_seconds)

    def would_have(self, pool: str, verdict: str) -> None:
        self._observed.labels(pool, verdict).inc()

    def first_token(self, model: str, *, since_arrival_s: float, since_sent_s: float) -> None:
        self._ttft.labels(model).observe(since_arrival_s)
        self._upstream_ttft.labels(model).observe(since_sent_s)

    def token_gaps(self, model: str, gaps_s: Iterable[float]) -> None:
        child = self._gap.labels(model)
        for gap_s in gaps_s:
            child.observe(gap_s)

    def duration(self, model: str, seconds: float) -> None:
        self._duration.labels(model).observe(seconds)

    def used(self, model: str, prompt_tokens: int, output_tokens: int) -> None:
        self._prompt_tokens.labels(model).inc(prompt_tokens)
        self._output_tokens.labels(model).inc(output_tokens)

    def estimate_ratio(self, model: str, ratio: float) -> None:
        self._ratio.labels(model).observe(ratio)

    def usage_missing(self, model: str) -> None:
        self._usage_missing.labels(model).inc()

    def prompt_truncated(self, model: str) -> None:
        self._truncated.labels(model).inc()

    def refused_at_door(self, port: str, reason: str) -> None:
        self._refused_at_door.labels(port, reason).inc()

    def _tenant_label(self, tenant: str) -> str:
        named = self._named_tenants
        if tenant not in named:
            if len(named) >= self._tenant_labels:
                return OTHER_TENANT
            named.add(tenant)
        return tenant

    def loop_lag(self, seconds: float) -> None:
        self._lag.set(seconds)
