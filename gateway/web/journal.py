"""The journal of one request: where it is, what is known of it, and in the end its outcome, its metrics and its log line.

Content never enters it: no prompt, no answer, no key.
"""

import itertools
import logging
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.admission.grant import Grant
from gateway.backends.view import Pool
from gateway.core.decisions import Queued, Refused
from gateway.core.demand import Usage
from gateway.core.names import STANDARD_LANE, TicketId
from gateway.core.offer import Offer, PromptCount
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.request import InferenceRequest
from gateway.core.tenant import ANONYMOUS_TERMS
from gateway.core.waste import waste
from gateway.dialects.dialect import Watcher
from gateway.metrics import OTHER_MODEL, Metrics
from gateway.relay.timeline import Timeline, since
from gateway.web.tally import Place, Tally
from gateway.web.weigh import Weighed

log = logging.getLogger("kvgate.request")

_INSTANCE: Final = secrets.token_hex(4)
_ids: Final = itertools.count(1)


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
_WAIT_ENDED: Final[Mapping[Outcome, str]] = {
    Outcome.TIMEOUT_QUEUE: "timeout",
    Outcome.CLIENT_GONE_QUEUED: "client_gone",
}


class Journal:
    """What is known of one request so far. Facts are attributes that the straight line fills in as it comes to know them."""

    def __init__(self, dialect: str, *, tally: Tally, metrics: Metrics, now: float) -> None:
        self.ticket_id = TicketId(next(_ids))
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
        self.recount: PromptCount | None = None  # what came later than `weighed`
        self.truncated = False  # something behind the gate has cut the prompt
        self._dialect = dialect
        self._metrics = metrics
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
        self._metrics.granted(self.model_label, grant.worst_blocks)

    @property
    def model_label(self) -> str:
        """A name that a backend listed, else `other`: callers cannot grow the label set. Who names none means the only one."""
        if self.request is None or self.pool is None:
            return OTHER_MODEL
        listed = {name for view in self.pool.backends for name in view.models}
        model = self.request.model
        if not model and len(listed) == 1:
            return listed.pop()
        return model if model is not None and model in listed else OTHER_MODEL

    @property
    def would_have(self) -> str | None:
        """In observe mode, what enforcing would have done; None where it would have granted at once as well."""
        if self.weighed is not None and self.weighed.would_refuse is not None:
            return f"refused_{self.weighed.would_refuse.value}"
        match self.grant.granted.verdict if self.grant is not None else None:
            case None:
                return None
            case Queued():
                return "waited"
            case Refused(reason=reason):
                return f"refused_{reason.value}"

    @property
    def blocks(self) -> int | None:
        """Blocks held, or that would be held on the backend where the request is smallest."""
        if self.grant is not None:
            return self.grant.worst_blocks
        if self.weighed is not None and self.weighed.offers:
            return min(offer.blocks for offer in self.weighed.offers.values())
        return None

    def queue_ms(self, now: float) -> int:
        """From the body's arrival to the grant, or until now."""
        waited_s = since(self.timeline.body_read, self.timeline.granted or now) or 0.0
        return round(max(waited_s, 0.0) * 1000)

    def token_gaps(self, gaps_s: list[float]) -> None:
        self._metrics.token_gaps(self.model_label, gaps_s)

    def end(self, outcome: Outcome, now: float) -> None:
        """The request has ended: count it, measure it, write its line. Its hold was given back before."""
        self.timeline.ended = now
        self._entry.end(outcome)
        self._measure(outcome, now)
        log.log(
            logging.ERROR if outcome is Outcome.GATEWAY_ERROR else logging.INFO,
            "request",
            extra={"fields": {name: value for name, value in self._fields(outcome, now).items() if value is not None}},
        )

    def _measure(self, outcome: Outcome, now: float) -> None:
        metrics, model, times = self._metrics, self.model_label, self.timeline
        metrics.request_ended(model, outcome, self.terms.name)
        if self.reason is not None:
            metrics.rejected(self.pool.name if self.pool is not None else "", self.lane, self.reason)
        if times.body_read is not None and self.weighed is not None:
            ended = "granted" if times.granted is not None else _WAIT_ENDED.get(outcome, "refused")
            metrics.waited(self.lane, ended, (times.granted or now) - times.body_read)
        if times.time_to_first_token_s is not None and times.upstream_first_token_s is not None:
            metrics.first_token(model, since_arrival_s=times.time_to_first_token_s, since_sent_s=times.upstream_first_token_s)
        metrics.token_gaps(model, times.take_gaps())
        metrics.duration(model, now - times.arrived)
        if self.pool is not None and self.would_have is not None:
            metrics.would_have(self.pool.name, self.would_have)
        if self.truncated:
            metrics.prompt_truncated(model)
        if self.watcher is not None:
            self._measure_usage(self.watcher, outcome)

    def _measure_waste(self, usage: Usage) -> None:
        """What was held in vain, by cause; where the prompts were not known it cannot be told."""
        times, grant, offer = self.timeline, self.grant, self.offer
        if grant is None or grant.released_blocks is None or offer is None or offer.weighing is None or self.weighed is None:
            return
        seconds = since(times.granted, times.upstream_ended)
        if seconds is None:
            return
        prompts = max(len(self.weighed.count.tokens), 1)
        causes = waste(
            charged_at_start=grant.granted.charged_blocks,
            charged_at_end=grant.released_blocks,
            prompt_tokens=usage.prompt_tokens // prompts,
            output_tokens=usage.output_tokens,
            seats=offer.seats,
            weighing=offer.weighing,
            has_cap=self.weighed.cap_tokens is not None,
            seconds=seconds,
        )
        for cause, block_seconds in causes.items():
            self._metrics.wasted(cause, self.terms.name, block_seconds)

    def _measure_usage(self, watcher: Watcher, outcome: Outcome) -> None:
        usage = watcher.usage
        if usage is not None:
            self._measure_waste(usage)
            self._metrics.used(self.model_label, usage.prompt_tokens, usage.output_tokens)
            if self.weighed is not None and usage.prompt_tokens and self.weighed.count.largest is not None:
                self._metrics.estimate_ratio(self.model_label, self.weighed.count.total / usage.prompt_tokens)
        elif outcome in (Outcome.COMPLETED, Outcome.CAPPED):
            self._metrics.usage_missing(self.model_label)

    def _fields(self, outcome: Outcome, now: float) -> dict[str, object]:
        request, weighed, times = self.request, self.weighed, self.timeline
        usage = self.watcher.usage if self.watcher is not None else None
        return {
            "request_id": self.request_id,
            "dialect": self._dialect,
            "outcome": outcome.value,
            "status": self.status,
            "error": self.error,
            "model": self.model_label,
            "tenant": self.terms.name,
            "lane": self.lane,
            "backend": self.grant.backend if self.grant is not None else None,
            "stream": request.stream if request is not None else None,
            "prompt_tokens_counted": weighed.count.total if weighed is not None else None,
            "count": weighed.count.kind.value if weighed is not None else None,
            "cap_tokens": request.cap_tokens if request is not None else None,
            "written_cap_tokens": self.offer.cap_to_write if self.offer is not None else None,
            "blocks": self.blocks,
            "would_have": self.would_have,
            "prompt_tokens": usage.prompt_tokens if usage is not None else None,
            "output_tokens": usage.output_tokens if usage is not None else None,
            "truncated": self.truncated or None,
            "queue_ms": self.queue_ms(now),
            "ttft_ms": _ms(times.time_to_first_token_s),
            "upstream_ms": _ms(since(times.sent, times.upstream_ended)),
            "total_ms": _ms(times.total_s),
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
