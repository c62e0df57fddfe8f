"""A request that has ended, in values of its own: all that its log line and the metrics need of it.

What follows from these values is worked out later, for many requests in one go. Done for each as it ends it costs three times
as much, since little of the code for it is still in the processor's caches then, and it has not seen which way it goes. The
line is made by the thread that writes it, and metrics see to it that whoever reads them misses nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway import logs
from gateway.core.geometry import Weighing
from gateway.core.offer import CountKind
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.waste import WasteCause, waste
from gateway.metrics import Metrics, WaitEnded
from gateway.web.request_line import RequestLine, milliseconds, whole_milliseconds

# How a wait in line ended, in the words of kvgate_queue_wait_seconds.
_WAIT_ENDED: Final[Mapping[Outcome, WaitEnded]] = {
    Outcome.TIMEOUT_QUEUE: WaitEnded.TIMEOUT,
    Outcome.CLIENT_GONE_QUEUED: WaitEnded.CLIENT_GONE,
}
_GRANTED: Final = WaitEnded.GRANTED


class Ended(msgspec.Struct, gc=False):
    """None: not known, or it never came so far. Instants in monotonic seconds.

    prompts: how many it has. are_counted: all of them. waited_s: for a grant, with or without one in the end; None where none
    was asked for. gaps_s: between token events, those that the metrics do not have yet. weighing: of what was held for it;
    None where that was by no measure. has_cap: one was asked for.
    """

    request_id: str
    trace_id: str | None
    parent_id: str | None
    dialect: str
    outcome: Outcome
    phase: str
    reason: RejectReason | None
    status: int | None
    error: str | None
    model: str
    tenant: str
    lane: str
    pool: str | None
    backend: str | None
    stream: bool | None
    counted_tokens: int | None
    count_kind: CountKind | None
    cap_tokens: int | None
    written_cap_tokens: int | None
    sequences: int | None
    blocks: int | None
    charged_blocks: int | None
    released_blocks: int | None
    would_have: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    truncated: bool
    arrived: float
    body_read: float | None
    joined: float | None
    granted: float | None
    sent: float | None
    head: float | None
    first_token: float | None
    upstream_ended: float | None
    ended: float
    waited_s: float | None
    gaps_s: Sequence[float]
    prompts: int
    are_counted: bool
    weighing: Weighing | None
    has_cap: bool


def line_of(ended: Ended) -> RequestLine:
    arrived, read, sent, first_token = ended.arrived, ended.body_read, ended.sent, ended.first_token
    granted, head, upstream_ended = ended.granted, ended.head, ended.upstream_ended
    return RequestLine(  # by the place of each field: to name them all would take as long as all the rest here
        ended.request_id,
        ended.trace_id,
        ended.parent_id,
        ended.dialect,
        ended.outcome,
        ended.phase,
        ended.reason,
        ended.status,
        ended.error,
        ended.model,
        ended.tenant,
        ended.lane,
        ended.pool,
        ended.backend,
        ended.stream,
        ended.counted_tokens,
        ended.count_kind,
        ended.cap_tokens,
        ended.written_cap_tokens,
        ended.sequences,
        ended.blocks,
        ended.charged_blocks,
        ended.released_blocks,
        ended.would_have,
        ended.prompt_tokens,
        ended.output_tokens,
        ended.cached_tokens,
        milliseconds(read - arrived) if read is not None else None,
        milliseconds(ended.joined - read) if read is not None and ended.joined is not None else None,
        True if ended.truncated else None,
        whole_milliseconds((ended.ended if granted is None else granted) - read) if read is not None else 0,
        milliseconds(head - sent) if sent is not None and head is not None else None,
        milliseconds(first_token - arrived) if first_token is not None else None,
        milliseconds(upstream_ended - sent) if sent is not None and upstream_ended is not None else None,
        milliseconds(ended.ended - arrived),
    )


REQUEST: Final = logs.FrequentEvent("kvgate.request", "request", line_of)


def add_ended(metrics: Metrics, requests: Iterable[Ended]) -> None:
    """Add all that these requests bring."""
    alike: dict[tuple[str, Outcome, str, str, bool], list[Ended]] = {}
    for ended in requests:
        key = (ended.model, ended.outcome, ended.tenant, ended.lane, ended.granted is not None)
        alike.setdefault(key, []).append(ended)
    for (model, outcome, tenant, lane, was_granted), some in alike.items():
        gaps_s = [gap_s for ended in some for gap_s in ended.gaps_s]
        metrics.requests_ended(model, outcome, tenant, [ended.ended - ended.arrived for ended in some], gaps_s)
        waits_s = [ended.waited_s for ended in some if ended.waited_s is not None]
        if waits_s:
            metrics.waited(lane, _GRANTED if was_granted else _WAIT_ENDED.get(outcome, WaitEnded.REFUSED), waits_s)
        for ended in some:
            if ended.first_token is not None and ended.sent is not None:
                metrics.first_token(
                    model,
                    since_arrival_s=ended.first_token - ended.arrived,
                    since_sent_s=ended.first_token - ended.sent,
                )
        _add_usage(metrics, model, tenant, some)


def _add_usage(metrics: Metrics, model: str, tenant: str, requests: list[Ended]) -> None:
    """Add what is known of those whose usage is known."""
    prompts_tokens = outputs_tokens = 0
    ratios: list[float] = []
    wasted: dict[WasteCause, float] = {}
    has_usage = False
    for ended in requests:
        prompt_tokens, output_tokens, counted_tokens = ended.prompt_tokens, ended.output_tokens, ended.counted_tokens
        if prompt_tokens is None or output_tokens is None:
            continue
        has_usage = True
        prompts_tokens += prompt_tokens
        outputs_tokens += output_tokens
        if counted_tokens is not None and ended.are_counted and prompt_tokens:
            ratios.append(counted_tokens / prompt_tokens)
        charged_blocks, released_blocks, weighing = ended.charged_blocks, ended.released_blocks, ended.weighing
        if charged_blocks is None or released_blocks is None or weighing is None or ended.sequences is None:
            continue
        if ended.granted is None or ended.upstream_ended is None:
            continue
        block_seconds = waste(
            charged_at_start=charged_blocks,
            charged_at_end=released_blocks,
            prompt_tokens=prompt_tokens // (ended.prompts or 1),
            output_tokens=output_tokens,
            seats=ended.sequences,
            weighing=weighing,
            has_cap=ended.has_cap,
            seconds=ended.upstream_ended - ended.granted,
        )
        for cause, amount in block_seconds.items():
            wasted[cause] = wasted.get(cause, 0.0) + amount
    if has_usage:
        metrics.used(model, prompts_tokens, outputs_tokens)
    if wasted:
        metrics.wasted(tenant, wasted)
    if ratios:
        metrics.estimate_ratios(model, ratios)
