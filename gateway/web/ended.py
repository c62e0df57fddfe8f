"""What a request that has ended adds to the metrics, in values of its own: it is added later, together with others.

To add up what many requests bring in one go costs half of what it costs to do it for each as it ends, since little of it is
still in the processor's caches then. Metrics see to it that whoever reads them misses nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.core.geometry import Weighing
from gateway.core.outcomes import Outcome
from gateway.core.waste import waste
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

    def add_to(self, metrics: Metrics) -> None:
        model, prompt_tokens, output_tokens = self.model, self.prompt_tokens, self.output_tokens
        metrics.request_ended(model, self.outcome, self.tenant, self.seconds, self.gaps_s)
        if self.waited_s is not None:
            ended = _GRANTED if self.was_granted else _WAIT_ENDED.get(self.outcome, WaitEnded.REFUSED)
            metrics.waited(self.lane, ended, self.waited_s)
        if self.first_token_s is not None and self.sent_to_first_token_s is not None:
            metrics.first_token(model, since_arrival_s=self.first_token_s, since_sent_s=self.sent_to_first_token_s)
        if prompt_tokens is None:
            return
        metrics.used(model, prompt_tokens, output_tokens)
        if self.counted_tokens is not None and prompt_tokens:
            metrics.estimate_ratio(model, self.counted_tokens / prompt_tokens)
        held = self.held
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
            metrics.wasted(self.tenant, block_seconds)
