"""Offer: what one backend would hold for a request, and the output cap that has to be written for that to be true.

This is the step from a request to blocks, for one backend at a time. It promises:
* an offer never holds less than the engine may write, as far as the prompt's count is true or too high;
* a bound may make an offer larger; it never refuses a request and never fixes a cap: `CountFirst` asks for the exact
  count instead, and where none can be had the request is weighed as a whole context and the engine decides;
* an idle backend always serves an uncapped request whose prompt leaves room for one token: where the context is larger
  than the budget, a cap is written, against budget - reserve and never against what happens to be free.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.demand import Demand, SequenceDemand
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.names import BackendName
from gateway.core.outcomes import RejectReason
from gateway.core.request import CapState, InferenceRequest
from gateway.core.ticket import Need

# The least output that a cap of ours leaves where the whole budget has it. llama.cpp's fair share can be smaller than a
# prompt; a bound can be four times the truth. An answer of a few tokens would be no answer.
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

    @property
    def decides(self) -> bool:
        """An absent cap is not left to the engine."""
        return self.require or self.tokens is not None


class CountKind(StrEnum):
    """How far a prompt count can be trusted."""

    EXACT = "exact"
    BOUND = "bound"  # never below the truth; an exact count may still be asked for
    BOUND_ONLY = "bound_only"  # a bound, and no exact count can be had


@dataclass(init=False, slots=True)
class PromptCount:
    """Tokens of each prompt of a request; None where not even a bound is known (media): a whole context then.

    counted_by: the backend whose local tokenizer counted, so that its engine can be asked whether it is right; else None.
    largest: of the longest prompt, None where not all are known. total: of all prompts that are known. Both are asked for
    several times on a request's way.
    """

    tokens: tuple[int | None, ...]
    kind: CountKind
    counted_by: BackendName | None = field(compare=False)
    largest: int | None = field(init=False, compare=False, repr=False)
    total: int = field(init=False, compare=False, repr=False)

    def __init__(self, tokens: tuple[int | None, ...], kind: CountKind, counted_by: BackendName | None = None) -> None:
        self.tokens = tokens
        self.kind = kind
        self.counted_by = counted_by
        if len(tokens) == 1:
            self.largest = tokens[0]
            self.total = tokens[0] or 0
        else:
            known = [count for count in tokens if count is not None]
            self.largest = max(known, default=None) if len(known) == len(tokens) else None
            self.total = sum(known)


def counted(request: InferenceRequest, tokens: tuple[int, ...]) -> PromptCount:
    """What an engine's own count of the prompts is worth: exact, or a close bound where it is known to differ a little."""
    slack_tokens = request.countable.slack_tokens
    if not slack_tokens:
        return PromptCount(tokens, CountKind.EXACT)
    return PromptCount(tuple(count + slack_tokens for count in tokens), CountKind.BOUND_ONLY)


@dataclass(slots=True)
class Offer(Need):
    """What the request needs there. weighing: None where its prompts are not known, so that nothing less can be expected.

    cap_to_write: output tokens per sequence, None: none. demand: the tokens behind it, where it is not `seats` sequences that
    are alike; else None.
    """

    cap_to_write: int | None = None
    demand: Demand | None = None


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


def offer_at_once(
    request: InferenceRequest,
    prompt_tokens: int,
    rules: EngineRules,
    weighing: Weighing,
    budget: Budget,
    default_output: DefaultOutput,
) -> Offer | None:
    """What `make_offer` says of most requests, in a third of its time: one prompt that is written on, with a cap with which
    it is within the context, or of a chat to the end of the context. None: only `make_offer` can tell.

    prompt_tokens: of its one prompt; of a chat without a cap its bound, which nobody refuses for.
    """
    context, cap = weighing.max_context, request.cap_tokens
    if cap is not None:
        tokens = prompt_tokens + cap
        if context is not None and tokens > context:
            return None
    elif context is None or default_output.decides or rules.fair_share_tokens is not None or not request.is_chat:
        return None
    else:
        tokens = cap = context
    samples = _samples_of(request, rules) if request.best_of > 1 else request.n
    blocks = samples * weighing.sequence_blocks(tokens)
    return Offer(blocks, samples, prompt_tokens, cap, weighing) if blocks <= budget.blocks else None


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
    context = weighing.max_context
    samples = _samples_of(request, rules)
    cap = effective_cap(request, rules)
    if cap is None and default_output.require:
        text = f"this gateway requires an output cap: set {request.cap_param}"
        return Unfit(RejectReason.INVALID_REQUEST, text, request.cap_param, {}, limit=0)
    if context is not None and cap is not None and cap > context and rules.refuses_cap_above_context:
        return Unfit(
            RejectReason.CONTEXT_LENGTH,
            f"{request.cap_param} is {cap}, but the context of the model is {context} tokens: ask for at most {context - 1}",
            request.cap_param,
            {"max_tokens": cap, "context_tokens": context, "reduce_by_tokens": cap - context, "largest_cap": context - 1},
            limit=context,
        )

    longest = count.largest
    if longest is None:
        written = default_output.tokens if cap is None else None
        return _whole(samples * len(count.tokens), weighing, budget, cap_to_write=written)
    sequences = _Sequences(request, count, longest, samples, weighing)
    if context is not None and count.kind is CountKind.EXACT:
        passes = cap is not None and longest + cap > context
        # llama.cpp and vLLM both refuse a prompt that leaves no room for one token of output.
        if longest >= context or (passes and overlong is Overlong.REFUSE):
            return _too_long(sequences, cap, context)
    if cap is None:
        return _uncapped(sequences, rules, budget, default_output)
    return _capped(sequences, cap, budget)


def _samples_of(request: InferenceRequest, rules: EngineRules) -> int:
    return request.best_of if rules.has_best_of and request.best_of > request.n else request.n


@dataclass(slots=True)
class _Sequences:
    """All sequences of one request on one backend, as functions of their output cap. longest: the longest prompt (tokens)."""

    request: InferenceRequest
    count: PromptCount
    longest: int
    samples: int
    weighing: Weighing

    @property
    def number(self) -> int:
        return self.samples * len(self.count.tokens)

    def demand(self, cap: int) -> Demand:
        return Demand(tuple([SequenceDemand(tokens or 0, cap, self.samples) for tokens in self.count.tokens]))

    def blocks(self, cap: int) -> int:
        if len(self.count.tokens) == 1:
            return self.samples * self.weighing.sequence_blocks(self.longest + cap)
        return self.weighing.blocks(self.demand(cap))

    def offer(self, cap: int, *, cap_to_write: int | None = None) -> Offer:
        demand = None if len(self.count.tokens) == 1 else self.demand(cap)
        return Offer(self.blocks(cap), self.number, self.longest, cap, self.weighing, cap_to_write, demand)

    def largest_cap(self, blocks: int) -> int:
        """The largest cap with which all fit `blocks` together, and each the context; 0 if none does."""
        context = self.weighing.max_context
        # No engine runs an empty prompt, and none takes a cap as large as its context: one token is the prompt's.
        most = (context if context is not None else blocks * self.weighing.block_tokens + 1) - max(self.longest, 1)
        return bisect_right(range(1, most + 1), blocks, key=self.blocks)


def effective_cap(request: InferenceRequest, rules: EngineRules) -> int | None:
    """The output cap that the engine obeys; None: to the context."""
    if request.cap_tokens is not None or request.is_chat:
        return request.cap_tokens
    return rules.absent_completions_cap if request.cap is CapState.ABSENT else None


def _capped(sequences: _Sequences, cap: int, budget: Budget) -> Offer | CountFirst | Unfit:
    """The caller's own cap. What passes the context is cut there by the engine, and weighed so."""
    weighing, kind = sequences.weighing, sequences.count.kind
    context = weighing.max_context
    offer = sequences.offer(cap)
    passes_context = context is not None and sequences.longest + cap > context
    # A bound below the context is as good as any count for a forecast: the prompt is at most that.
    is_shorter = kind is CountKind.BOUND_ONLY and context is not None and sequences.longest < context
    if offer.worst_blocks <= budget.blocks and (kind is CountKind.EXACT or is_shorter or not passes_context):
        return offer
    match kind:
        case CountKind.BOUND:
            return CountFirst()
        case CountKind.BOUND_ONLY:
            return _whole(sequences.number, weighing, budget)
        case CountKind.EXACT:
            return _too_large(sequences, cap, budget)


def _uncapped(
    sequences: _Sequences, rules: EngineRules, budget: Budget, default_output: DefaultOutput
) -> Offer | CountFirst | Unfit:
    """The request may run as far as the engine lets it, unless a cap of ours is written."""
    weighing, kind = sequences.weighing, sequences.count.kind
    context = weighing.max_context
    wanted: int | None = None
    if default_output.tokens is not None:
        wanted = default_output.tokens
    elif rules.fair_share_tokens is not None:
        wanted = max(rules.fair_share_tokens - sequences.longest, LEAST_WRITTEN_CAP)
    elif context is not None:
        # One whole context, whatever the prompt: this needs no count, and the cap stays the engine's.
        offer = sequences.offer(context)
        if offer.worst_blocks <= budget.blocks:
            return offer

    room = sequences.largest_cap(budget.blocks - budget.reserve_blocks)
    if kind is CountKind.BOUND and (default_output.tokens is None or default_output.tokens > room):
        return CountFirst()
    if room < LEAST_WRITTEN_CAP:
        # Alone a request may take the reserve as well.
        room = min(sequences.largest_cap(budget.blocks), LEAST_WRITTEN_CAP)
    if room < 1 and kind is CountKind.EXACT:
        return _too_large(sequences, 1, budget)
    if room < LEAST_WRITTEN_CAP and kind is CountKind.BOUND_ONLY:
        # The bound may be several times the truth: hold all there is, leave a usable output, let the engine decide.
        usable = LEAST_WRITTEN_CAP if context is None else min(LEAST_WRITTEN_CAP, context - 1)
        return _whole(sequences.number, weighing, budget, cap_to_write=usable if wanted is None else min(wanted, usable))
    cap = room if wanted is None else min(wanted, room)
    return sequences.offer(cap, cap_to_write=cap)


def _whole(sequences: int, weighing: Weighing, budget: Budget, *, cap_to_write: int | None = None) -> Offer:
    """Each sequence as a whole context, at most everything there is: the engine decides, and nothing runs beside it."""
    context = weighing.max_context
    blocks = budget.blocks if context is None else min(sequences * weighing.sequence_blocks(context), budget.blocks)
    tokens = context if context is not None else weighing.block_tokens * budget.blocks
    return Offer(blocks, sequences, output_tokens=tokens, cap_to_write=cap_to_write)


def _too_long(sequences: _Sequences, cap: int | None, context: int) -> Unfit:
    prompt = sequences.longest
    largest_cap = max(context - prompt, 0)
    facts = {"prompt_tokens": prompt, "context_tokens": context, "largest_cap": largest_cap}
    if cap is None or prompt >= context:
        facts["reduce_by_tokens"] = prompt - context + 1
        text = f"the prompt is {prompt} tokens, but the context is {context}: shorten it by at least {prompt - context + 1}"
        return Unfit(RejectReason.CONTEXT_LENGTH, text, sequences.request.prompt_param, facts, limit=context)
    facts |= {"max_tokens": cap, "reduce_by_tokens": prompt + cap - context}
    param = sequences.request.cap_param
    text = (
        f"prompt ({prompt}) and {param} ({cap}) together pass the context of {context} tokens by"
        f" {prompt + cap - context}: the largest {param} that fits is {largest_cap}"
    )
    return Unfit(RejectReason.CONTEXT_LENGTH, text, param, facts, limit=context)


def _too_large(sequences: _Sequences, cap: int, budget: Budget) -> Unfit:
    """reduce_by_tokens: what the cap must lose or, where no cap fits, the prompt; not there where neither is the cure."""
    prompt, number = sequences.longest, sequences.number
    need_blocks = sequences.blocks(cap)
    largest_cap = sequences.largest_cap(budget.blocks)
    facts = {
        "need_blocks": need_blocks,
        "budget_blocks": budget.blocks,
        "prompt_tokens": prompt,
        "max_tokens": cap,
        "sequences": number,
        "largest_cap": largest_cap,
    }
    param, cap_param = sequences.request.prompt_param, sequences.request.cap_param
    if largest_cap:
        param = cap_param
        facts["reduce_by_tokens"] = cap - largest_cap
        cure = f"the largest {cap_param} that fits is {largest_cap}"
    elif (fitting := sequences.weighing.tokens_within(budget.blocks, number)) > 1:
        facts["reduce_by_tokens"] = prompt + 1 - fitting
        cure = f"no {cap_param} makes it fit: shorten the prompt by {prompt + 1 - fitting} tokens"
    else:
        cure = f"no {cap_param} makes it fit" + (": ask for fewer sequences" if number > 1 else "")
    many = f" in each of {number} sequences" if number > 1 else ""
    text = (
        f"this request may need {need_blocks} KV blocks (prompt {prompt} + output {cap} tokens{many}),"
        f" but the whole budget is {budget.blocks}: {cure}"
    )
    return Unfit(RejectReason.KV_BUDGET, text, param, facts, limit=budget.blocks)
