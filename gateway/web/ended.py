"""What a request that has ended adds to the metrics, in values of its own: it is added later, together with others.

To add up what many requests bring in one go costs a third of what it costs to do it for each as it ends: little of it is
still in the processor's caches then, and most of them end alike. Metrics see to it that whoever reads them misses nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.core.geometry import Weighing
from gateway.core.outcomes import Outcome
from gateway.core.waste import WasteCause, waste
from gateway.metrics import Metrics, WaitEnded

# How a wait in line ended, in the words of kvgate_queue_wait_seconds.
_WAIT_ENDED: Final[Mapping[Outcome, WaitEnded]] = {
    Outcome.TIMEOUT_QUEUE: WaitEnded.TIMEOUT,
    Outcome.CLIENT_GONE_QUEUED: WaitEnded.CLIENT_GONE,
}
_GRANTED: Final = WaitEnded.GRANTED


class Held(msgspec.Struct, gc=False):
    """What a request held, for how long, and by which measure. prompts: how many it has."""

    charged_at_start: int
    charged_at_end: int
    prompts: int
    seats: int
    weighing: Weighing
    has_cap: bool
    seconds: float


class Ended(msgspec.Struct, gc=False):
    """None: it did not come to that, or it cannot be told. seconds, first_token_s: from its head's arrival.

    prompt_tokens, output_tokens: as its usage tells; None and 0 without one. counted_tokens: of all its prompts, as they were
    counted before the engine did. held: where that can be compared with what was used.
    """

    model: str
    outcome: Outcome
    tenant: str
    lane: str
    seconds: float
    was_granted: bool
    waited_s: float | None
    first_token_s: float | None
    sent_to_first_token_s: float | None
    gaps_s: Sequence[float]
    prompt_tokens: int | None
    output_tokens: int
    counted_tokens: int | None
    held: Held | None


def add_ended(metrics: Metrics, requests: Iterable[Ended]) -> None:
    """Add all that these requests bring."""
    alike: dict[tuple[str, Outcome, str, str, bool], list[Ended]] = {}
    for ended in requests:
        alike.setdefault((ended.model, ended.outcome, ended.tenant, ended.lane, ended.was_granted), []).append(ended)
    for (model, outcome, tenant, lane, was_granted), some in alike.items():
        gaps_s = [gap_s for ended in some for gap_s in ended.gaps_s]
        metrics.requests_ended(model, outcome, tenant, [ended.seconds for ended in some], gaps_s)
        waits_s = [ended.waited_s for ended in some if ended.waited_s is not None]
        if waits_s:
            metrics.waited(lane, _GRANTED if was_granted else _WAIT_ENDED.get(outcome, WaitEnded.REFUSED), waits_s)
        for ended in some:
            if ended.first_token_s is not None and ended.sent_to_first_token_s is not None:
                metrics.first_token(model, since_arrival_s=ended.first_token_s, since_sent_s=ended.sent_to_first_token_s)
        _add_usage(metrics, model, tenant, some)


def _add_usage(metrics: Metrics, model: str, tenant: str, requests: list[Ended]) -> None:
    """Add what is known of those whose usage is known."""
    prompts_tokens = outputs_tokens = 0
    ratios: list[float] = []
    wasted: dict[WasteCause, float] = {}
    has_usage = False
    for ended in requests:
        prompt_tokens, output_tokens, held = ended.prompt_tokens, ended.output_tokens, ended.held
        if prompt_tokens is None:
            continue
        has_usage = True
        prompts_tokens += prompt_tokens
        outputs_tokens += output_tokens
        if ended.counted_tokens is not None and prompt_tokens:
            ratios.append(ended.counted_tokens / prompt_tokens)
        if held is not None:
            block_seconds = waste(
                charged_at_start=held.charged_at_start,
                charged_at_end=held.charged_at_end,
                prompt_tokens=prompt_tokens // (held.prompts or 1),
                output_tokens=output_tokens,
                seats=held.seats,
                weighing=held.weighing,
                has_cap=held.has_cap,
                seconds=held.seconds,
            )
            for cause, amount in block_seconds.items():
                wasted[cause] = wasted.get(cause, 0.0) + amount
    if has_usage:
        metrics.used(model, prompts_tokens, outputs_tokens)
    if wasted:
        metrics.wasted(tenant, wasted)
    if ratios:
        metrics.estimate_ratios(model, ratios)
