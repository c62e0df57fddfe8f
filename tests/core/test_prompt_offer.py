"""What is held for prompts that are only read, on one backend."""

import pytest

from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.offer import CountFirst, CountKind, Offer, PromptCount, Unfit
from gateway.core.outcomes import RejectReason
from gateway.core.prompt_offer import make_prompt_offer
from gateway.core.request import CapState, InferenceRequest, Prompt

PLAIN = Weighing(block_tokens=16, max_context=1024)
QUEUES = EngineRules(queues_prompts=True)
AT_ONCE = EngineRules()
BUDGET = Budget(64, 4)


def answer(
    *tokens: int | None,
    kind: CountKind = CountKind.EXACT,
    rules: EngineRules = QUEUES,
    weighing: Weighing = PLAIN,
    budget: Budget = BUDGET,
) -> Offer | CountFirst | Unfit:
    prompts = (Prompt(text_bytes=1),) * len(tokens)
    request = InferenceRequest("m", prompts, CapState.SET, 1, is_chat=False, is_prompt_only=True, prompt_name="input")
    return make_prompt_offer(request, PromptCount(tokens, kind), rules=rules, weighing=weighing, budget=budget)


def held(found: Offer | CountFirst | Unfit) -> tuple[int, int]:
    assert isinstance(found, Offer), found
    assert found.cap_to_write is None
    return found.worst_blocks, found.seats


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (1008, 63), (1009, 64), (1023, 64), (1024, 64)])
def test_a_prompt_takes_its_own_tokens_and_none_more(tokens: int, blocks: int) -> None:
    assert held(answer(tokens)) == (blocks, 1)


@pytest.mark.parametrize(("block_tokens", "context", "blocks"), [(1, 100, 100), (33, 100, 4), (25, 100, 4), (50, 101, 3)])
def test_the_last_token_of_a_prompt_as_long_as_the_context_is_held_too(block_tokens: int, context: int, blocks: int) -> None:
    assert held(answer(context, weighing=Weighing(block_tokens, context), budget=Budget(1000))) == (blocks, 1)


def test_a_prompt_longer_than_the_context_is_refused_by_how_much() -> None:
    found = answer(5, 1030)
    assert isinstance(found, Unfit)
    assert (found.reason, found.param) == (RejectReason.CONTEXT_LENGTH, "input")
    assert found.facts == {"prompt_tokens": 1030, "context_tokens": 1024, "reduce_by_tokens": 6}


def test_all_prompts_are_held_at_once_each_rounded_up_for_itself() -> None:
    assert held(answer(1, 17, 16)) == (4, 3)


def test_no_more_run_at_once_than_there_are_seats_and_those_may_be_the_largest() -> None:
    assert held(answer(16, 160, 32, 16, rules=AT_ONCE, budget=Budget(64, 4, seats=2))) == (12, 2)


def test_what_the_engine_queues_by_itself_needs_no_more_than_there_is() -> None:
    assert held(answer(*[300] * 200)) == (64, 200)
    found = answer(*[300] * 200, rules=AT_ONCE)
    assert isinstance(found, Unfit)
    assert (found.reason, found.facts["need_blocks"], found.facts["sequences"]) == (RejectReason.KV_BUDGET, 200 * 19, 200)
    assert "fewer" in found.message


def test_a_single_prompt_that_never_fits_is_refused_by_every_engine() -> None:
    for rules in (QUEUES, AT_ONCE):
        found = answer(8, 800, rules=rules, budget=Budget(40))
        assert isinstance(found, Unfit)
        assert (found.facts["need_blocks"], found.facts["budget_blocks"], found.facts["prompt_tokens"]) == (50, 40, 800)


@pytest.mark.parametrize("tokens", [(2000,), (600, 600)])
def test_a_bound_never_refuses(tokens: tuple[int, ...]) -> None:
    assert isinstance(answer(*tokens, kind=CountKind.BOUND, rules=AT_ONCE), CountFirst)
    assert held(answer(*tokens, kind=CountKind.BOUND_ONLY, rules=AT_ONCE)) == (64, len(tokens))


def test_a_prompt_that_nobody_knows_is_a_whole_context() -> None:
    for kind in (CountKind.BOUND, CountKind.BOUND_ONLY):
        assert held(answer(None, kind=kind)) == (64, 1)
        assert held(answer(None, 16, kind=kind, budget=Budget(200))) == (65, 2)
    endless = Weighing(16, None)
    assert held(answer(None, kind=CountKind.BOUND, weighing=endless))[0] <= 64
