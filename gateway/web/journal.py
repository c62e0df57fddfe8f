"""The journal of one request: where it is, what is known of it, and in the end its outcome, its metrics and its log line.

Content never enters it: no prompt, no answer, no key.
"""

import itertools
import logging
import secrets
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, cast

from gateway.admission.grant import Grant
from gateway.backends.view import Pool
from gateway.core.decisions import Queued
from gateway.core.demand import Usage
from gateway.core.names import STANDARD_LANE, TicketId
from gateway.core.offer import Offer, PromptCount
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.request import InferenceRequest
from gateway.core.tenant import ANONYMOUS_TERMS
from gateway.dialects.dialect import Watcher
from gateway.metrics import NO_POOL, OTHER_MODEL, Metrics
from gateway.relay.timeline import Timeline
from gateway.web.ended import REQUEST, Ended, add_ended
from gateway.web.open_requests import RequestRow
from gateway.web.recent import Recent, Refusal
from gateway.web.request_line import whole_milliseconds
from gateway.web.tally import Place, Tally
from gateway.web.trace_context import TraceContext
from gateway.web.weigh import Weighed

_INSTANCE: Final = secrets.token_hex(4)
_ids: Final = cast(Iterator[TicketId], itertools.count(1))


class Phase(StrEnum):
    """What a request is doing, in the terms in which a departure or an error is reported."""

    UPLOAD = "upload"
    QUEUED = "queued"  # counted, weighed, or in line
    WAITING = "waiting"  # granted, nothing of the answer yet
    STREAMING = "streaming"


GONE_IN: Final[Mapping[Phase, Outcome]] = {
    Phase.UPLOAD: Outcome.CLIENT_GONE_UPLOAD,
    Phase.QUEUED: Outcome.CLIENT_GONE_QUEUED,
    Phase.WAITING: Outcome.CLIENT_GONE_WAITING,
    Phase.STREAMING: Outcome.CLIENT_GONE_STREAMING,
}

# As a member of its enum each would cost a tenth of a microsecond to find, on every request.
_UPLOAD: Final = Phase.UPLOAD
_WAITING: Final = Phase.WAITING
_QUEUED_PLACE: Final = Place.QUEUED
_IN_FLIGHT_PLACE: Final = Place.IN_FLIGHT
_GATEWAY_ERROR: Final = Outcome.GATEWAY_ERROR


class Journal:
    """What is known of one request so far. Facts are attributes that the straight line fills in as it comes to know them."""

    __slots__ = (
        "_dialect",
        "_entry",
        "_metrics",
        "_model_label",
        "_recent",
        "_told_tokens",
        "error",
        "gone_in",
        "grant",
        "lane",
        "offer",
        "phase",
        "pool",
        "reason",
        "recount",
        "request",
        "request_id",
        "seems_cut",
        "status",
        "terms",
        "ticket_id",
        "timeline",
        "trace",
        "truncated",
        "watcher",
        "weighed",
    )

    def __init__(self, dialect: str, tally: Tally, metrics: Metrics, recent: Recent, now: float) -> None:
        self.ticket_id = ticket_id = next(_ids)
        self.request_id = f"{_INSTANCE}-{ticket_id:x}"
        self.timeline = Timeline(now)
        self.phase = _UPLOAD
        self.gone_in: Phase | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.reason: RejectReason | None = None
        self.terms = ANONYMOUS_TERMS
        self.lane = STANDARD_LANE  # until it is known
        self.request: InferenceRequest | None = None
        self.pool: Pool | None = None
        self.weighed: Weighed | None = None
        self.grant: Grant | None = None
        self.offer: Offer | None = None
        self.watcher: Watcher | None = None
        self.trace: TraceContext | None = None
        self.recount: PromptCount | None = None  # what came later than `weighed`
        self.truncated = False  # something behind the gate has cut the prompt
        self.seems_cut: bool | None = None  # by its words, once somebody has looked
        self._dialect = dialect
        self._metrics = metrics
        self._recent = recent
        self._told_tokens = 0  # of which the last minutes know already
        self._model_label: str | None = None
        self._entry = tally.arrive()

    def in_line(self) -> None:
        self._entry.move(_QUEUED_PLACE)

    def granted(self, grant: Grant, now: float) -> None:
        self.grant = grant
        self.timeline.granted = now
        self.phase = _WAITING
        self._entry.move(_IN_FLIGHT_PLACE)
        self._metrics.granted(self.model_label, grant.granted.worst_blocks)

    @property
    def model_label(self) -> str:
        """A name that a backend listed, else `other`: callers cannot grow the label set. Who names none means the only one."""
        label = self._model_label
        if label is None:
            if self.request is None or self.pool is None:
                return OTHER_MODEL
            label = self._model_label = _label_of(self.request.model, self.pool)
        return label

    @property
    def blocks(self) -> int | None:
        """Blocks held, or that would be held on the backend where the request is smallest."""
        grant, weighed = self.grant, self.weighed
        if grant is not None:
            return grant.granted.worst_blocks
        if weighed is not None and weighed.offers:
            return min(offer.worst_blocks for offer in weighed.offers.values())
        return None

    def queue_ms(self, now: float) -> int:
        """From the body's arrival to the grant, or until now."""
        times = self.timeline
        if times.body_read is None:
            return 0
        return whole_milliseconds((now if times.granted is None else times.granted) - times.body_read)

    def token_gaps(self, gaps_s: list[float]) -> None:
        self._metrics.token_gaps(self.model_label, gaps_s)
        self._told_tokens += len(gaps_s)
        self._recent.produced(len(gaps_s))

    def end(self, outcome: Outcome, now: float) -> None:
        """The request has ended: count it, measure it, write its line. Its hold was given back before."""
        times, watcher, metrics = self.timeline, self.watcher, self._metrics
        first_token = times.first_token
        self._entry.end(outcome)
        usage = watcher.usage if watcher is not None else None
        ended = self._ended(outcome, usage, now)
        metrics.add_later(add_ended, ended)
        if self.reason is not None:
            metrics.rejected(self.pool.name if self.pool is not None else NO_POOL, self.lane, self.reason)
            self._remember(self.reason, ended.model, now)
        if ended.would_have is not None and self.pool is not None:
            metrics.would_have(self.pool.name, ended.would_have)
        if usage is None and watcher is not None and outcome in (Outcome.COMPLETED, Outcome.CAPPED):
            metrics.usage_missing(ended.model)
        if self.truncated:
            metrics.prompt_truncated(ended.model)
        tokens = usage.output_tokens - self._told_tokens if usage is not None else 0
        first_token_s = first_token - times.arrived if first_token is not None else None
        self._recent.ended(now, ended.waited_s, first_token_s, tokens)
        REQUEST.log(logging.ERROR if outcome is _GATEWAY_ERROR else logging.INFO, ended)

    def _ended(self, outcome: Outcome, usage: Usage | None, now: float) -> Ended:
        times, pool, request, weighed, offer = self.timeline, self.pool, self.request, self.weighed, self.offer
        grant, terms, trace = self.grant, self.terms, self.trace
        granted = grant.granted if grant is not None else None
        count = weighed.count if weighed is not None else None
        waited_s = None
        if weighed is not None and times.body_read is not None:
            waited_s = (now if times.granted is None else times.granted) - times.body_read
        # By the place of each field: to name forty of them costs as much as to take them.
        return Ended(
            self.request_id,
            trace.trace_id if trace is not None else None,
            trace.parent_id if trace is not None else None,
            self._dialect,
            outcome,
            self.phase,
            self.reason,
            self.status,
            self.error,
            self._model_label or self.model_label,
            terms.name,
            self.lane,
            pool.name if pool is not None else None,
            granted.backend if granted is not None else None,
            request.stream if request is not None else None,
            count.total if count is not None else None,
            count.kind if count is not None else None,
            request.cap_tokens if request is not None else None,
            offer.cap_to_write if offer is not None else None,
            granted.ticket.needs[granted.backend].seats if granted is not None else None,
            granted.worst_blocks if granted is not None else self.blocks,
            granted.charged_blocks if granted is not None else None,
            grant.released_blocks if grant is not None else None,
            self._would_have(),
            usage.prompt_tokens if usage is not None else None,
            usage.output_tokens if usage is not None else None,
            usage.cached_tokens if usage is not None else None,
            self.truncated,
            times.arrived,
            times.body_read,
            times.joined,
            times.granted,
            times.sent,
            times.head,
            times.first_token,
            times.upstream_ended,
            now,
            waited_s,
            times.take_gaps() if times.gaps else (),
            len(count.tokens) if count is not None else 0,
            count is not None and count.largest is not None,
            offer.weighing if offer is not None else None,
            weighed is not None and weighed.cap_tokens is not None,
        )

    def _would_have(self) -> str | None:
        """In observe mode, what enforcing would have done; None where it would have granted at once as well."""
        weighed, grant = self.weighed, self.grant
        if weighed is not None and weighed.would_refuse is not None:
            return f"refused_{weighed.would_refuse}"
        verdict = grant.granted.verdict if grant is not None else None
        if verdict is None:
            return None
        return "waited" if isinstance(verdict, Queued) else f"refused_{verdict.reason}"

    def _remember(self, reason: RejectReason, model: str, now: float) -> None:
        """For who looks at the last refusals."""
        self._recent.refused(
            Refusal(
                at=now,
                request_id=self.request_id,
                reason=reason,
                status=self.status,
                message=self.error or "",
                model=model,
                lane=self.lane,
                tenant=self.terms.name,
                blocks=self.blocks,
                waited_s=self.queue_ms(now) / 1000,
            )
        )

    def row(self, now: float) -> RequestRow:
        """What is known of it at that instant."""
        request, times = self.request, self.timeline
        since_s = {
            Phase.UPLOAD: times.arrived,
            Phase.QUEUED: times.body_read,
            Phase.WAITING: times.granted,
            Phase.STREAMING: times.head,
        }[self.phase]
        return RequestRow(
            ticket_id=self.ticket_id,
            request_id=self.request_id,
            dialect=self._dialect,
            phase=self.phase.value,
            model=self.model_label,
            tenant=self.terms.name,
            lane=self.lane,
            backend=self.grant.backend if self.grant is not None else None,
            age_s=now - times.arrived,
            phase_s=now - (since_s if since_s is not None else times.arrived),
            blocks=self.blocks,
            prompt_tokens=self.weighed.count.total if self.weighed is not None else None,
            cap_tokens=request.cap_tokens if request is not None else None,
            output_tokens=self.watcher.token_events if self.watcher is not None else None,
            is_stream=request.stream if request is not None else None,
        )


def _label_of(model: str | None, pool: Pool) -> str:
    if model and model in pool.models:
        return model
    return next(iter(pool.models)) if not model and len(pool.models) == 1 else OTHER_MODEL
