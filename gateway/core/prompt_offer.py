"""What one backend would hold for prompts that are only read: embeddings.

Nothing is written after them, so a prompt may fill the context, and its tokens are all that it takes. Of many prompts in one
body each ends by itself: what its engine cannot begin yet waits there without memory. So a body is refused only for a single
prompt that never fits, or where the engine may begin all of them at once and they do not fit together.
"""

from gateway.core.demand import Demand, SequenceDemand
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.offer import CountFirst, CountKind, Offer, PromptCount, Unfit
from gateway.core.outcomes import RejectReason
from gateway.core.request import InferenceRequest


def make_prompt_offer(
    request: InferenceRequest, count: PromptCount, *, rules: EngineRules, weighing: Weighing, budget: Budget
) -> Offer | CountFirst | Unfit:
    """What `budget` would hold for these prompts by the engine's rules, or why it never can.

    The count has one entry per prompt of the request; None where a prompt is not known: it is weighed as a whole context.
    """
    context = weighing.max_context
    unknown_tokens = context if context is not None else weighing.block_tokens * budget.blocks
    tokens = sorted((unknown_tokens if known is None else known for known in count.tokens), reverse=True)
    needs = [_prompt_blocks(each, weighing) for each in tokens]
    seats = len(needs) if budget.seats is None else min(len(needs), budget.seats)
    # Those that run at once are at worst the largest.
    blocks = sum(needs[:seats])
    all_known = None not in count.tokens
    is_exact = count.kind is CountKind.EXACT and all_known
    longest = tokens[0]
    demand = Demand(tuple([SequenceDemand(each, 1) for each in tokens])) if len(tokens) > 1 else None
    if is_exact and context is not None and longest > context:
        return _too_long(request, longest, context)
    fits = blocks <= budget.blocks
    passes_context = context is not None and longest > context
    if fits and (is_exact or not passes_context):
        return Offer(blocks, seats, longest, 1, demand=demand)
    if count.kind is CountKind.BOUND and all_known:
        return CountFirst()
    if is_exact and (needs[0] > budget.blocks or not rules.queues_prompts):
        return _too_large(request, needs, blocks, longest, budget)
    # The engine decides, or begins what fits; nothing runs beside it.
    return Offer(min(blocks, budget.blocks), seats, longest, 1, demand=demand)


def _prompt_blocks(tokens: int, weighing: Weighing) -> int:
    """Blocks of a prompt of which every token is written, the last one too."""
    blocks = weighing.sequence_blocks(tokens + 1)
    context = weighing.max_context
    # The formula is cut at the context, of which it leaves out the last token: that one may begin a block.
    begins_block = context is not None and tokens >= context and (context - 1) % weighing.block_tokens == 0
    return blocks + 1 if begins_block else blocks


def _too_long(request: InferenceRequest, longest: int, context: int) -> Unfit:
    over = longest - context
    text = f"the longest prompt is {longest} tokens, but the context is {context}: shorten it by at least {over}"
    facts = {"prompt_tokens": longest, "context_tokens": context, "reduce_by_tokens": over}
    return Unfit(RejectReason.CONTEXT_LENGTH, text, request.prompt_param, facts, limit=context)


def _too_large(request: InferenceRequest, needs: list[int], blocks: int, longest: int, budget: Budget) -> Unfit:
    facts = {"need_blocks": blocks, "budget_blocks": budget.blocks, "prompt_tokens": longest, "sequences": len(needs)}
    if needs[0] > budget.blocks:
        facts["need_blocks"] = needs[0]
        text = f"the longest prompt ({longest} tokens) needs {needs[0]} KV blocks, but the whole budget is {budget.blocks}"
    else:
        text = (
            f"these {len(needs)} prompts may need {blocks} KV blocks at once, but the whole budget is {budget.blocks}:"
            " send fewer of them in one request"
        )
    return Unfit(RejectReason.KV_BUDGET, text, request.prompt_param, facts, limit=budget.blocks)
