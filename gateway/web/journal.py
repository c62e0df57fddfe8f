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
from gateway.core.waste import waste
from gateway.dialects.dialect import Watcher
from gateway.metrics import NO_POOL, OTHER_MODEL, Metrics, WaitEnded
from gateway.relay.timeline import Timeline
from gateway.web.open_requests import RequestRow
from gateway.web.recent import Recent, Refusal
from gateway.web.request_line import REQUEST, RequestLine, milliseconds
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

# How a wait in line ended, in the words of kvgate_queue_wait_seconds.
_WAIT_ENDED: Final[Mapping[Outcome, WaitEnded]] = {
    Outcome.TIMEOUT_QUEUE: WaitEnded.TIMEOUT,
    Outcome.CLIENT_GONE_QUEUED: WaitEnded.CLIENT_GONE,
}


class Journal:
    """What is known of one request so far. Facts are attributes that the straight line fills in as it comes to know them."""

    def __init__(self, dialect: str, *, tally: Tally, metrics: Metrics, recent: Recent, now: float) -> None:
        self.ticket_id = next(_ids)
        self.request_id = f"{_INSTANCE}-{self.ticket_id:x}"
        self.timeline = Timeline(arrived=now)
        self.phase = Phase.UPLOAD
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

    def enter(self, phase: Phase) -> None:
        self.phase = phase

    def in_line(self) -> None:
        self._entry.move(Place.QUEUED)

    def granted(self, grant: Grant, now: float) -> None:
        self.grant = grant
        self.timeline.granted = now
        self.phase = Phase.WAITING
        self._entry.move(Place.IN_FLIGHT)
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
    def would_have(self) -> str | None:
        """In observe mode, what enforcing would have done; None where it would have granted at once as well."""
        if self.weighed is not None and self.weighed.would_refuse is not None:
            return f"refused_{self.weighed.would_refuse}"
        verdict = self.grant.granted.verdict if self.grant is not None else None
        if verdict is None:
            return None
        return "waited" if isinstance(verdict, Queued) else f"refused_{verdict.reason}"

    @property
    def blocks(self) -> int | None:
        """Blocks held, or that would be held on the backend where the request is smallest."""
        if self.grant is not None:
            return self.grant.granted.worst_blocks
        if self.weighed is not None and self.weighed.offers:
            return min(offer.worst_blocks for offer in self.weighed.offers.values())
        return None

    def queue_ms(self, now: float) -> int:
        """From the body's arrival to the grant, or until now."""
        waited_s = self._waited_s(now)
        return 0 if waited_s is None or waited_s < 0 else round(waited_s * 1000)

    def _waited_s(self, now: float) -> float | None:
        read, granted = self.timeline.body_read, self.timeline.granted
        return None if read is None else (now if granted is None else granted) - read

    def token_gaps(self, gaps_s: list[float]) -> None:
        self._metrics.token_gaps(self.model_label, gaps_s)
        self._told_tokens += len(gaps_s)
        self._recent.produced(len(gaps_s))

    def end(self, outcome: Outcome, now: float) -> None:
        """The request has ended: count it, measure it, write its line. Its hold was given back before."""
        self.timeline.ended = now
        self._entry.end(outcome)
        usage = self.watcher.usage if self.watcher is not None else None
        would_have = self.would_have
        waited_s = self._waited_s(now) if self.weighed is not None else None
        self._measure(outcome, would_have, waited_s, now)
        if usage is not None:
            self._measure_usage(usage)
        elif self.watcher is not None and outcome in (Outcome.COMPLETED, Outcome.CAPPED):
            self._metrics.usage_missing(self.model_label)
        self._remember(usage, waited_s, now)
        level = logging.ERROR if outcome is Outcome.GATEWAY_ERROR else logging.INFO
        if REQUEST.is_heard(level):
            REQUEST.log(level, self._line(outcome, usage, would_have, now))

    def _measure(self, outcome: Outcome, would_have: str | None, waited_s: float | None, now: float) -> None:
        metrics, model, times = self._metrics, self.model_label, self.timeline
        metrics.request_ended(model, outcome, self.terms.name)
        if self.reason is not None:
            metrics.rejected(self.pool.name if self.pool is not None else NO_POOL, self.lane, self.reason)
        if waited_s is not None:
            ended = WaitEnded.GRANTED if times.granted is not None else _WAIT_ENDED.get(outcome, WaitEnded.REFUSED)
            metrics.waited(self.lane, ended, waited_s)
        if times.time_to_first_token_s is not None and times.upstream_first_token_s is not None:
            metrics.first_token(model, since_arrival_s=times.time_to_first_token_s, since_sent_s=times.upstream_first_token_s)
        metrics.token_gaps(model, times.take_gaps())
        metrics.duration(model, now - times.arrived)
        if self.pool is not None and would_have is not None:
            metrics.would_have(self.pool.name, would_have)
        if self.truncated:
            metrics.prompt_truncated(model)

    def _measure_usage(self, usage: Usage) -> None:
        model, weighed = self.model_label, self.weighed
        self._measure_waste(usage)
        self._metrics.used(model, usage.prompt_tokens, usage.output_tokens)
        if weighed is not None and usage.prompt_tokens and weighed.count.largest is not None:
            self._metrics.estimate_ratio(model, weighed.count.total / usage.prompt_tokens)

    def _measure_waste(self, usage: Usage) -> None:
        """What was held in vain, by cause; where the prompts were not known it cannot be told."""
        times, grant, offer, weighed = self.timeline, self.grant, self.offer, self.weighed
        if grant is None or grant.released_blocks is None or offer is None or offer.weighing is None or weighed is None:
            return
        if times.granted is None or times.upstream_ended is None:
            return
        causes = waste(
            charged_at_start=grant.granted.charged_blocks,
            charged_at_end=grant.released_blocks,
            prompt_tokens=usage.prompt_tokens // (len(weighed.count.tokens) or 1),
            output_tokens=usage.output_tokens,
            seats=offer.seats,
            weighing=offer.weighing,
            has_cap=weighed.cap_tokens is not None,
            seconds=times.upstream_ended - times.granted,
        )
        for cause, block_seconds in causes.items():
            self._metrics.wasted(cause, self.terms.name, block_seconds)

    def _remember(self, usage: Usage | None, waited_s: float | None, now: float) -> None:
        """For who looks at the last minutes: what the metrics count for ever."""
        self._recent.ended(
            now,
            waited_s=waited_s,
            first_token_s=self.timeline.time_to_first_token_s,
            tokens=usage.output_tokens - self._told_tokens if usage is not None else 0,
        )
        if self.reason is not None:
            self._recent.refused(
                Refusal(
                    at=now,
                    request_id=self.request_id,
                    reason=self.reason,
                    status=self.status,
                    message=self.error or "",
                    model=self.model_label,
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

    def _line(self, outcome: Outcome, usage: Usage | None, would_have: str | None, now: float) -> RequestLine:
        times = self.timeline
        line = RequestLine(
            request_id=self.request_id,
            dialect=self._dialect,
            outcome=outcome,
            phase=self.phase,
            model=self.model_label,
            tenant=self.terms.name,
            lane=self.lane,
            queue_ms=self.queue_ms(now),
            total_ms=milliseconds(now - times.arrived),
        )
        line.reason, line.status, line.error, line.would_have = self.reason, self.status, self.error, would_have
        line.blocks = self.blocks
        if self.truncated:
            line.truncated = True
        if self.trace is not None:
            line.trace_id, line.parent_id = self.trace.trace_id, self.trace.parent_id
        if self.request is not None:
            line.stream, line.cap_tokens = self.request.stream, self.request.cap_tokens
        if self.pool is not None:
            line.pool = self.pool.name
        if self.weighed is not None:
            line.prompt_tokens_counted, line.count = self.weighed.count.total, self.weighed.count.kind.value
        if self.offer is not None:
            line.written_cap_tokens = self.offer.cap_to_write
        if self.grant is not None:
            granted = self.grant.granted
            line.backend, line.sequences = granted.backend, granted.ticket.needs[granted.backend].seats
            line.charged_blocks, line.released_blocks = granted.charged_blocks, self.grant.released_blocks
        if usage is not None:
            line.prompt_tokens, line.output_tokens = usage.prompt_tokens, usage.output_tokens
            line.cached_tokens = usage.cached_tokens
        if times.body_read is not None:
            line.upload_ms = milliseconds(times.body_read - times.arrived)
            if times.joined is not None:
                line.count_ms = milliseconds(times.joined - times.body_read)
        if times.time_to_first_token_s is not None:
            line.ttft_ms = milliseconds(times.time_to_first_token_s)
        if times.sent is not None:
            if times.head is not None:
                line.head_ms = milliseconds(times.head - times.sent)
            if times.upstream_ended is not None:
                line.upstream_ms = milliseconds(times.upstream_ended - times.sent)
        return line


def _label_of(model: str | None, pool: Pool) -> str:
    if model and any(model in view.models for view in pool.backends):
        return model
    listed = {name for view in pool.backends for name in view.models}
    return listed.pop() if not model and len(listed) == 1 else OTHER_MODEL
