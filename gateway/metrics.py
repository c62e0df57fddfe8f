"""Every metric of kvgate: names, labels and buckets, defined once.

Counters and histograms are recorded as things happen. Gauges are read at scrape time from one snapshot, so that they can
never drift from the books. Label values are bounded: backends, lanes, pools, reasons and outcomes are finite; a model is
a name that a backend listed, else `other`; of tenants the first so many have a label of their own, the rest are `other`.

A counter that first appears with its first event looks to Prometheus as if that event had never happened: `rate` and
`increase` see no change. So what can be known of pools, lanes and models is counted from 0 as soon as it is known
(`expect`).
"""

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.waste import WasteCause
from gateway.series import Count, Counters, Family, Histograms, Labels, Spread, gauge_lines

OTHER_MODEL: Final = "other"
OTHER_TENANT: Final = "other"
NO_POOL: Final = ""  # of what was declined before its pool was known
# A server may list hundreds of models. Beyond so many, a model's counters begin with its first request.
_EXPECTED_MODELS: Final = 50
EXPOSITION_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
# Additions that are made in one go, for a tenth of a millisecond.
_TOGETHER: Final = 64
# A scrape is rendered in pieces of about so many characters: a fraction of a millisecond each.
_PIECE: Final = 16_384

# TTFT reaches from a cache hit on an idle engine to ten minutes in a queue.
_LATENCY_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_GAP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REQUEST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)
_BLOCK_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_RATIO_BUCKETS: Final = (0.25, 0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 6, 10)


class WaitEnded(StrEnum):
    """How a wait in line ended."""

    GRANTED = "granted"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    CLIENT_GONE = "client_gone"


class GaugeName(StrEnum):
    """What is read at scrape time, with the labels of each in GAUGE_LABELS."""

    BUDGET_BLOCKS = "kvgate_budget_blocks"
    RESERVE_BLOCKS = "kvgate_reserve_blocks"
    HELD_BLOCKS = "kvgate_held_blocks"
    WORST_CASE_BLOCKS = "kvgate_worst_case_blocks"
    FOREIGN_BLOCKS = "kvgate_foreign_blocks"
    ENGINE_USED_BLOCKS = "kvgate_engine_used_blocks"
    LEDGER_GAP_BLOCKS = "kvgate_ledger_gap_blocks"
    LEDGER_GAP_CAUSE_BLOCKS = "kvgate_ledger_gap_cause_blocks"
    IN_FLIGHT = "kvgate_in_flight"
    BACKEND_UP = "kvgate_backend_up"
    COMMITMENT = "kvgate_commitment"
    HEADROOM = "kvgate_commitment_headroom_ratio"
    UNANSWERED_TOKENS = "kvgate_unanswered_prompt_tokens"
    SEAT_LIMIT = "kvgate_seat_limit"
    OPEN_REQUESTS = "kvgate_open_requests"
    QUEUE_REQUESTS = "kvgate_queue_requests"
    QUEUE_BLOCKS = "kvgate_queue_blocks"
    BACKLOG_SECONDS = "kvgate_backlog_seconds"
    UPSTREAM_CONNECTIONS = "kvgate_upstream_connections"
    UPSTREAM_CONNECTS = "kvgate_upstream_connects_total"
    UPSTREAM_REQUESTS = "kvgate_upstream_requests_total"
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
    GaugeName.LEDGER_GAP_CAUSE_BLOCKS: (
        "Its parts: estimate (charged more or less than is written), orphaned (still runs there, ended here), foreign",
        ("backend", "cause"),
    ),
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
    GaugeName.OPEN_REQUESTS: (
        "Requests that have not ended, by what they do: upload, queued (counted, weighed or in line), waiting, streaming",
        ("phase",),
    ),
    GaugeName.QUEUE_REQUESTS: ("Requests waiting for a grant", ("pool", "lane")),
    GaugeName.QUEUE_BLOCKS: ("KV blocks that waiting requests ask for", ("pool", "lane")),
    GaugeName.BACKLOG_SECONDS: ("Predicted time to serve what waits; the age of the oldest until that is known", ("pool",)),
    GaugeName.UPSTREAM_CONNECTIONS: ("Connections to the engine", ("backend", "state")),
    GaugeName.UPSTREAM_CONNECTS: ("Connections to the engine that opened, or failed to", ("backend", "result")),
    GaugeName.UPSTREAM_REQUESTS: (
        "Requests sent, by whether a connection lay ready or a fresh one was waited for",
        ("backend", "connection"),
    ),
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


@dataclass(slots=True)
class _Ending:
    """The series of requests that end alike, found once: by model, outcome and tenant."""

    requests: Count
    tenants: Count
    duration: Spread
    gap: Spread


_Addition = TypeVar("_Addition")


class Metrics:
    """The counters and histograms of one gateway: no global state. What is observed of each request is observed in place."""

    def __init__(self, version: str, *, tenant_labels: int = 100) -> None:
        """tenant_labels: tenants that have a label of their own, in the order in which they come."""
        self._version = version
        self._lag_s = 0.0
        self._tenant_labels = tenant_labels
        self._named_tenants: set[str] = set()
        self._later: defaultdict[Callable[[Metrics, list[Any]], None], list[Any]] = defaultdict(list)
        self._endings: dict[tuple[str, Outcome, str], _Ending] = {}
        self._expected: set[tuple[str, ...]] = set()
        self._sources: list[Callable[[], Iterable[GaugeRow]]] = []
        self._families: list[Family[Any]] = []

        def counter(name: str, text: str, *labels: str) -> Counters:
            family = Counters(name, text, *labels)
            self._families.append(family)
            return family

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histograms:
            family = Histograms(name, text, buckets, *labels)
            self._families.append(family)
            return family

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

    def read_gauges_from(self, rows: Callable[[], Iterable[GaugeRow]]) -> None:
        """Ask `rows`, beside those named before, for samples of gauges at each scrape."""
        self._sources.append(rows)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The same in pieces, so that other work may go between. All numbers are of the instant of the first."""
        self._settle()
        texts = [*self._gauge_texts(), *(family.lines() for family in self._families), *self._own_texts()]
        lines: list[str] = []
        room = _PIECE
        for some in itertools.chain.from_iterable(texts):
            lines.append(some)
            room -= len(some)
            if room <= 0:
                yield "".join(lines).encode()
                lines, room = [], _PIECE
        yield "".join(lines).encode()

    def add_later(self, add: "Callable[[Metrics, list[_Addition]], None]", addition: _Addition) -> None:
        """Have `add` add this before anybody reads the metrics: now, or together with some that follow."""
        additions = self._later[add]
        additions.append(addition)
        if len(additions) >= _TOGETHER:
            self._settle()

    def _settle(self) -> None:
        later = list(self._later.items())
        self._later.clear()
        for add, additions in later:
            add(self, additions)

    def _gauge_texts(self) -> Iterator[Iterator[str]]:
        values: dict[GaugeName, list[tuple[Labels, float]]] = {name: [] for name in _GAUGES}
        for rows in self._sources:
            for row in rows():
                values[row.gauge].append((row.labels, row.value))
        for name, (text, labels) in _GAUGES.items():
            yield gauge_lines(name, text, labels, values[name])

    def _own_texts(self) -> Iterator[Iterator[str]]:
        yield gauge_lines("kvgate_event_loop_lag_seconds", "How late the event loop ran, last look", (), [((), self._lag_s)])
        yield gauge_lines("kvgate_build_info", "1, with the version as label", ("version",), [((self._version,), 1.0)])

    def expect(self, *, pools: Iterable[str] = (), lanes: Iterable[str] = (), models: Iterable[str] = ()) -> None:
        """Count from 0 what these may be counted by. Asked again with the same names it does nothing."""
        lanes = tuple(lanes)
        for key in ((pool, lane) for pool in (NO_POOL, *pools) for lane in lanes):
            if key not in self._expected:
                self._expected.add(key)
                for reason in RejectReason:
                    self._rejections.begin(*key, reason)
        for lane in lanes:
            for ended in WaitEnded:
                self._queue_wait.begin(lane, ended)
        for model in (OTHER_MODEL, *itertools.islice(models, _EXPECTED_MODELS)):
            if (model,) not in self._expected:
                self._expected.add((model,))
                for outcome in Outcome:
                    self._requests.begin(model, outcome)

    def _tenant_label(self, tenant: str) -> str:
        named = self._named_tenants
        if tenant not in named:
            if len(named) >= self._tenant_labels:
                return OTHER_TENANT
            named.add(tenant)
        return tenant

    def requests_ended(
        self, model: str, outcome: Outcome, tenant: str, seconds: Sequence[float], gaps_s: Sequence[float] = ()
    ) -> None:
        """seconds: of each, from its head's arrival. gaps_s: between token events, those that `token_gaps` was not told of."""
        ending = self._endings.get((model, outcome, tenant))
        if ending is None:
            ending = self._ending(model, outcome, self._tenant_label(tenant))
        ending.requests.total += len(seconds)
        ending.tenants.total += len(seconds)
        ending.duration.observe_all(seconds)
        ending.gap.observe_all(gaps_s)

    def _ending(self, model: str, outcome: Outcome, tenant: str) -> _Ending:
        """tenant: its label, so that there are no more of these than of the series."""
        key = (model, outcome, tenant)
        ending = self._endings.get(key)
        if ending is None:
            ending = self._endings[key] = _Ending(
                self._requests[model, outcome], self._tenants[tenant, outcome], self._duration[model,], self._gap[model,]
            )
        return ending

    def rejected(self, pool: str, lane: str, reason: RejectReason) -> None:
        self._rejections[pool, lane, reason].total += 1

    def waited(self, lane: str, ended: WaitEnded, seconds: Sequence[float]) -> None:
        """seconds: of each that waited."""
        self._queue_wait[lane, ended].observe_all(seconds)

    def granted(self, model: str, blocks: int) -> None:
        series = self._demand[model,]
        series.counts[bisect_left(series.bounds, blocks)] += 1
        series.total += blocks

    def wasted(self, tenant: str, block_seconds: Mapping[WasteCause, float]) -> None:
        label = tenant if tenant in self._named_tenants else self._tenant_label(tenant)
        for cause, amount in block_seconds.items():
            self._waste[cause, label].total += amount

    def would_have(self, pool: str, verdict: str) -> None:
        self._observed[pool, verdict].total += 1

    def first_token(self, model: str, *, since_arrival_s: float, since_sent_s: float) -> None:
        self._ttft[model,].observe(since_arrival_s)
        self._upstream_ttft[model,].observe(since_sent_s)

    def token_gaps(self, model: str, gaps_s: Sequence[float]) -> None:
        self._gap[model,].observe_all(gaps_s)

    def used(self, model: str, prompt_tokens: int, output_tokens: int) -> None:
        labels = (model,)
        self._prompt_tokens[labels].total += prompt_tokens
        self._output_tokens[labels].total += output_tokens

    def estimate_ratios(self, model: str, ratios: Sequence[float]) -> None:
        self._ratio[model,].observe_all(ratios)

    def usage_missing(self, model: str) -> None:
        self._usage_missing[model,].total += 1

    def prompt_truncated(self, model: str) -> None:
        self._truncated[model,].total += 1

    def refused_at_door(self, port: str, reason: str) -> None:
        self._refused_at_door[port, reason].total += 1

    def loop_lag(self, seconds: float) -> None:
        self._lag_s = seconds
