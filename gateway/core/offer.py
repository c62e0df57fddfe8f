"""Offer: what one backend would hold for a request, and the output cap that has to be written for that to be true.

This is the step from a request to blocks, for one backend at a time. It promises:
* an offer never holds less than the engine may write, as far as the prompt's count is true or too high;
* a bound may make an offer larger; it never refuses a request and never fixes a cap: `CountFirst` asks for the exact
  count instead, and where none can be had the request is weighed as a whole context and the engine decides;
* an idle backend always serves an uncapped request whose prompt leaves room for one token: where the context is larger
  than the budget, a cap is written, against budget - reserve and never against what happens to be free.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from gateway.core.demand import Demand, SequenceDemand
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing, ceil_div
from gateway.core.ledger import Budget
from gateway.core.outcomes import RejectReason
from gateway.core.request import CapState, InferenceRequest

# The least output that a cap of ours leaves. llama.cpp's fair share can be smaller than a prompt; a bound can be four
# times the truth. An answer of a few tokens would be no answer.
LEAST_WRITTEN_CAP = 256


class Overlong(StrEnum):
    """What becomes of prompt + cap > context where the engine would cut the answer silently: the operator's choice."""

    PASS = "pass"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class DefaultOutput:
    """What an absent output cap means. tokens: a number to write. Without one: to the context, or a refusal."""

    tokens: int | None = None
    require: bool = False


class CountKind(Enum):
    """How far a prompt count can be trusted."""

    EXACT = "exact"
    BOUND = "bound"  # never below the truth; an exact count may still be asked for
    BOUND_ONLY = "bound_only"  # a bound, and no exact count can be had


@dataclass(frozen=True, slots=True)
class PromptCount:
    """Tokens of each prompt of a request; None where not even a bound is known (media): a whole context then."""

    tokens: tuple[int | None, ...]
    kind: CountKind

    @property
    def largest(self) -> int | None:
        known = [count for count in self.tokens if count is not None]
        return max(known) if len(known) == len(self.tokens) else None

    @property
    def total(self) -> int:
        """Tokens of all prompts that are known."""
        return sum(count for count in self.tokens if count is not None)


@dataclass(frozen=True, slots=True)
class Offer:
    """blocks, seats: what is held. demand: tokens behind it. cap_to_write: output tokens per sequence, None: none."""

    blocks: int
    seats: int
    demand: Demand
    cap_to_write: int | None = None


@dataclass(frozen=True, slots=True)
class CountFirst:
    """The bound is too coarse for a decision: count the prompt exactly, then ask again."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """No grant could ever serve this request on this backend. The numbers are those of the request and of the limit.

    largest_cap: the largest output cap with which it would fit, 0 if the prompt alone is too large.
    """

    reason: RejectReason
    message: str
    param: str | None
    facts: dict[str, int]
    limit: int


def make_offer(
    request: InferenceRequest,
    count: PromptCount,
    *,
    rules: EngineRules,
    weighing: Weighing,
    budget: Budget,
    default_output: DefaultOutput,
    overlong: Overlong,
) -> Offer | CountFirst | Unfit:
    """What `budget` would hold for this request by the engine's rules, or why it never can.

    The count has one entry per prompt of the request.
    """
    samples = max(request.n, request.best_of) if rules.has_best_of else request.n
    sequences = samples * len(count.tokens)
    context = weighing.max_context
    exact = count.kind is CountKind.EXACT
    cap = _effective_cap(request, rules)

    if cap is None and default_output.require:
        return _unfit(
            RejectReason.INVALID_REQUEST, "this gateway requires an output cap: set max_tokens", "max_tokens", {}, limit=0
        )
    if context is not None and cap is not None and cap > context and rules.refuses_cap_above_context:
        return _unfit(
            RejectReason.CONTEXT_LENGTH,
            f"max_tokens is {cap}, but the context of the model is {context} tokens: ask for at most {context - 1}",
            "max_tokens",
            {"max_tokens": cap, "context_tokens": context, "reduce_by_tokens": cap - context, "largest_cap": context - 1},
            limit=context,
        )

    largest = count.largest
    if exact and largest is not None and context is not None:
        # llama.cpp and vLLM both refuse a prompt that leaves no room for one token of output.
        if largest >= context and cap != 0:
            return _too_long(largest, cap, context)
        if overlong is Overlong.REFUSE and cap is not None and largest + cap > context:
            return _too_long(largest, cap, context)

    if largest is None:
        return _whole(count, samples, weighing, budget)
    if cap is None:
        return _uncapped(count, largest, samples, rules, weighing, budget, default_output)
    passes_context = context is not None and largest + cap > context
    if passes_context and count.kind is CountKind.BOUND:
        return CountFirst()
    if passes_context and count.kind is CountKind.BOUND_ONLY:
        return _whole(count, samples, weighing, budget)
    demand = _demand(count, cap, samples)
    blocks = weighing.blocks(demand)
    if blocks <= budget.blocks:
        return Offer(blocks, sequences, demand)
    if count.kind is CountKind.BOUND:
        return CountFirst()
    if count.kind is CountKind.BOUND_ONLY:
        return _whole(count, samples, weighing, budget)
    return _too_large(blocks, largest, cap, sequences, weighing, budget)


def _effective_cap(request: InferenceRequest, rules: EngineRules) -> int | None:
    if request.cap is CapState.SET:
        return request.cap_tokens
    if request.cap is CapState.ABSENT and not request.is_chat:
        return rules.absent_completions_cap
    return None


def _uncapped(
    count: PromptCount,
    largest: int,
    samples: int,
    rules: EngineRules,
    weighing: Weighing,
    budget: Budget,
    default_output: DefaultOutput,
) -> Offer | CountFirst | Unfit:
    """The request may run as far as the engine lets it, unless a cap of ours is written."""
    sequences = samples * len(count.tokens)
    context = weighing.max_context
    wanted: int | None = None
    if default_output.tokens is not None:
        wanted = default_output.tokens
    elif rules.fair_share_tokens is not None:
        wanted = max(rules.fair_share_tokens - largest, LEAST_WRITTEN_CAP)
    elif context is not None and sequences * weighing.sequence_blocks(context) <= budget.blocks:
        # One whole context, whatever the prompt: this needs no count, and the cap stays the engine's.
        return Offer(sequences * weighing.sequence_blocks(context), sequences, _demand(count, context, samples))

    # A cap of ours must fit what one request alone may have: budget - reserve, else the whole budget.
    room = max(weighing.tokens_within(budget.blocks - budget.reserve_blocks, sequences) - largest, 0)
    if count.kind is CountKind.BOUND and (default_output.tokens is None or default_output.tokens > room):
        return CountFirst()
    if room < 1:
        room = max(weighing.tokens_within(budget.blocks, sequences) - largest, 0)
    if room < 1 and count.kind is CountKind.EXACT:
        return _too_large(_least_blocks(count, samples, weighing), largest, 1, sequences, weighing, budget)
    if count.kind is CountKind.BOUND_ONLY and room < LEAST_WRITTEN_CAP:
        # The bound may be several times the truth: hold all there is, leave a usable output, let the engine decide.
        offer = _whole(count, samples, weighing, budget)
        return Offer(offer.blocks, offer.seats, offer.demand, cap_to_write=min(wanted or LEAST_WRITTEN_CAP, LEAST_WRITTEN_CAP))
    cap = room if wanted is None else min(wanted, room)
    demand = _demand(count, cap, samples)
    return Offer(weighing.blocks(demand), sequences, demand, cap_to_write=cap)


def _whole(count: PromptCount, samples: int, weighing: Weighing, budget: Budget) -> Offer:
    """Each sequence as a whole context, at most everything there is: the engine decides, and nothing runs beside it."""
    sequences = samples * len(count.tokens)
    context = weighing.max_context
    blocks = budget.blocks if context is None else min(sequences * weighing.sequence_blocks(context), budget.blocks)
    tokens = context if context is not None else weighing.block_tokens * budget.blocks
    return Offer(blocks, sequences, Demand((SequenceDemand(0, tokens, sequences),)))


def _demand(count: PromptCount, cap: int, samples: int) -> Demand:
    return Demand(tuple(SequenceDemand(tokens or 0, cap, samples) for tokens in count.tokens))


def _least_blocks(count: PromptCount, samples: int, weighing: Weighing) -> int:
    return weighing.blocks(_demand(count, 1, samples))


def _too_long(prompt: int, cap: int | None, context: int) -> Unfit:
    largest_cap = max(context - prompt, 0)
    facts = {"prompt_tokens": prompt, "context_tokens": context, "largest_cap": largest_cap}
    if cap is None or prompt >= context:
        facts["reduce_by_tokens"] = prompt - context + 1
        text = f"the prompt is {prompt} tokens, but the context is {context}: shorten it by at least {prompt - context + 1}"
        return _unfit(RejectReason.CONTEXT_LENGTH, text, "messages", facts, limit=context)
    facts |= {"max_tokens": cap, "reduce_by_tokens": prompt + cap - context}
    text = (
        f"prompt ({prompt}) and max_tokens ({cap}) together pass the context of {context} tokens by"
        f" {prompt + cap - context}: the largest max_tokens that fits is {largest_cap}"
    )
    return _unfit(RejectReason.CONTEXT_LENGTH, text, "max_tokens", facts, limit=context)


def _too_large(blocks: int, prompt: int, cap: int, sequences: int, weighing: Weighing, budget: Budget) -> Unfit:
    largest_cap = max(weighing.tokens_within(budget.blocks, sequences) - prompt, 0)
    facts = {
        "need_blocks": blocks,
        "budget_blocks": budget.blocks,
        "prompt_tokens": prompt,
        "max_tokens": cap,
        "sequences": sequences,
        "largest_cap": largest_cap,
        "reduce_by_tokens": max(cap - largest_cap, 0)
        if largest_cap
        else max(prompt + 1 - weighing.tokens_within(budget.blocks, sequences), ceil_div(blocks - budget.blocks, sequences)),
    }
    many = f" in each of {sequences} sequences" if sequences > 1 else ""
    cure = (
        f"the largest max_tokens that fits is {largest_cap}"
        if largest_cap
        else "no max_tokens makes it fit: shorten the prompt or ask for fewer sequences"
    )
    text = (
        f"this request may need {blocks} KV blocks (prompt {prompt} + output {cap} tokens{many}),"
        f" but the whole budget is {budget.blocks}: {cure}"
    )
    return _unfit(RejectReason.KV_BUDGET, text, "max_tokens", facts, limit=budget.blocks)


def _unfit(reason: RejectReason, message: str, param: str | None, facts: dict[str, int], *, limit: int) -> Unfit:
    return Unfit(reason, message, param, facts, limit)
