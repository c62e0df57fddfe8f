"""What a backend would hold for a request, which cap is written, and when the answer is no."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing, ceil_div
from gateway.core.ledger import Budget
from gateway.core.offer import (
    LEAST_WRITTEN_CAP,
    CountFirst,
    CountKind,
    DefaultOutput,
    Offer,
    Overlong,
    PromptCount,
    Unfit,
    make_offer,
    offer_at_once,
)
from gateway.core.outcomes import RejectReason
from gateway.core.request import CapState, InferenceRequest, Prompt

VLLM = EngineRules(absent_completions_cap=16, refuses_cap_above_context=True)
LLAMA = EngineRules(has_best_of=False, fair_share_tokens=500)
PLAIN = Weighing(block_tokens=16, max_context=1024)
ROOMY = Budget(1000, 50)
SMALL = Budget(64, 0)  # one context of PLAIN, exactly
TIGHT = Budget(40, 4)  # less than one context of PLAIN


def asked(
    cap: int | CapState = CapState.ABSENT, *, prompts: int = 1, n: int = 1, best_of: int = 1, chat: bool = True
) -> InferenceRequest:
    """A request; what its prompts count is said beside it."""
    return InferenceRequest(
        model="m",
        prompts=(Prompt(text_bytes=1),) * prompts,
        cap=CapState.SET if isinstance(cap, int) else cap,
        cap_tokens=cap if isinstance(cap, int) else None,
        is_chat=chat,
        n=n,
        best_of=best_of,
    )


def exact(*tokens: int | None) -> PromptCount:
    return PromptCount(tokens, CountKind.EXACT)


def bound(*tokens: int | None) -> PromptCount:
    return PromptCount(tokens, CountKind.BOUND)


def bound_only(*tokens: int | None) -> PromptCount:
    return PromptCount(tokens, CountKind.BOUND_ONLY)


def answer(
    request: InferenceRequest,
    count: PromptCount,
    *,
    rules: EngineRules = VLLM,
    weighing: Weighing = PLAIN,
    budget: Budget = ROOMY,
    default_output: DefaultOutput = DefaultOutput(),  # noqa: B008 - a frozen value
    overlong: Overlong = Overlong.PASS,
) -> Offer | CountFirst | Unfit:
    return make_offer(
        request,
        count,
        rules=rules,
        weighing=weighing,
        budget=budget,
        default_output=default_output,
        overlong=overlong,
    )


def offer_of(found: Offer | CountFirst | Unfit) -> Offer:
    assert isinstance(found, Offer), found
    return found


def unfit_of(found: Offer | CountFirst | Unfit, reason: RejectReason) -> Unfit:
    assert isinstance(found, Unfit), found
    assert found.reason is reason
    return found


# A cap of the caller's


@pytest.mark.parametrize(("prompt", "cap", "blocks"), [(1, 16, 1), (1, 17, 2), (100, 157, 16), (100, 158, 17), (1, 1, 1)])
def test_the_last_token_of_an_answer_takes_no_room(prompt: int, cap: int, blocks: int) -> None:
    offer = offer_of(answer(asked(cap), exact(prompt)))
    assert (offer.worst_blocks, offer.seats, offer.cap_to_write) == (blocks, 1, None)


@given(st.integers(0, 1100), st.integers(1, 1100), st.integers(1, 3), st.sampled_from(CountKind), st.booleans())
def test_one_prompt_alone_is_weighed_as_if_it_came_with_another(
    prompt: int, cap: int, n: int, kind: CountKind, is_tight: bool
) -> None:
    """One prompt is the common case, and has a way of its own."""
    budget = TIGHT if is_tight else ROOMY
    alone = answer(asked(cap, n=n), PromptCount((prompt,), kind), budget=budget)
    beside = answer(asked(cap, n=n, prompts=2), PromptCount((prompt, prompt), kind), budget=Budget(2 * budget.blocks))
    assert type(alone) is type(beside)
    if isinstance(alone, Offer) and isinstance(beside, Offer):
        assert (2 * alone.worst_blocks, 2 * alone.seats) == (beside.worst_blocks, beside.seats)
        assert (alone.prompt_tokens, alone.output_tokens) == (beside.prompt_tokens, beside.output_tokens)


@pytest.mark.parametrize(("n", "best_of", "has_best_of", "sequences"), [(4, 1, True, 4), (2, 5, True, 5), (2, 5, False, 2)])
def test_each_sample_is_a_sequence_and_best_of_counts_where_the_engine_has_it(
    n: int, best_of: int, has_best_of: bool, sequences: int
) -> None:
    rules = EngineRules(has_best_of=has_best_of)
    offer = offer_of(answer(asked(24, n=n, best_of=best_of), exact(8), rules=rules))
    assert (offer.worst_blocks, offer.seats) == (2 * sequences, sequences)


def test_each_prompt_of_a_list_is_rounded_up_for_itself() -> None:
    offer = offer_of(answer(asked(1, prompts=3, n=2, chat=False), exact(16, 17, 1)))
    assert offer.worst_blocks == 2 * (1 + 2 + 1)
    assert offer.seats == 6


def test_spare_blocks_are_held_for_each_sequence() -> None:
    offer = offer_of(answer(asked(16, n=3), exact(1), weighing=replace(PLAIN, spare_blocks=2)))
    assert offer.worst_blocks == 3 * (1 + 2)


def test_where_the_formula_does_not_hold_each_sequence_is_a_whole_context() -> None:
    weighing = replace(PLAIN, whole_context_blocks=77)
    offer = offer_of(answer(asked(1, n=2), exact(1), weighing=weighing))
    assert offer.worst_blocks == 2 * 77


def test_a_cap_beyond_the_context_is_refused_only_where_the_engine_would() -> None:
    unfit = unfit_of(answer(asked(1025), exact(10)), RejectReason.CONTEXT_LENGTH)
    assert unfit.facts == {"max_tokens": 1025, "context_tokens": 1024, "reduce_by_tokens": 1, "largest_cap": 1023}
    assert "1025" in unfit.message
    assert "1024" in unfit.message
    assert offer_of(answer(asked(1025), exact(10), rules=LLAMA)).worst_blocks == 64


def test_a_cap_beyond_the_context_needs_no_count_to_be_refused() -> None:
    unfit_of(answer(asked(1025), bound(10_000)), RejectReason.CONTEXT_LENGTH)


def test_prompt_and_cap_that_pass_the_context_together_are_held_as_one_context() -> None:
    offer = offer_of(answer(asked(1000), exact(500)))
    assert (offer.worst_blocks, offer.cap_to_write) == (64, None)


def test_prompt_and_cap_that_pass_the_context_together_are_refused_where_the_operator_says_so() -> None:
    unfit = unfit_of(answer(asked(1000), exact(500), overlong=Overlong.REFUSE), RejectReason.CONTEXT_LENGTH)
    assert unfit.facts["largest_cap"] == 524
    assert unfit.facts["reduce_by_tokens"] == 476
    assert offer_of(answer(asked(524), exact(500), overlong=Overlong.REFUSE)).worst_blocks == 64


@pytest.mark.parametrize("cap", [5, CapState.ABSENT, CapState.NULL])
@pytest.mark.parametrize("prompt", [1024, 2000])
def test_a_prompt_that_leaves_no_room_for_one_token_is_refused(prompt: int, cap: int | CapState) -> None:
    unfit = unfit_of(answer(asked(cap), exact(prompt)), RejectReason.CONTEXT_LENGTH)
    assert unfit.facts["reduce_by_tokens"] == prompt - 1023
    assert unfit.param == "messages"
    assert unfit_of(answer(asked(cap, chat=False), exact(prompt)), RejectReason.CONTEXT_LENGTH).param == "prompt"


def test_the_longest_prompt_of_a_list_decides_whether_the_context_is_passed() -> None:
    unfit_of(answer(asked(5, prompts=2, chat=False), exact(3, 1024)), RejectReason.CONTEXT_LENGTH)


# The budget


def test_what_is_larger_than_the_whole_budget_is_refused_with_the_largest_cap_that_fits() -> None:
    unfit = unfit_of(answer(asked(900), exact(100), budget=TIGHT), RejectReason.KV_BUDGET)
    largest_cap = unfit.facts["largest_cap"]
    assert unfit.facts["need_blocks"] == 63
    assert unfit.facts["budget_blocks"] == unfit.limit == 40
    assert unfit.facts["reduce_by_tokens"] == 900 - largest_cap
    assert offer_of(answer(asked(largest_cap), exact(100), budget=TIGHT)).worst_blocks == 40
    unfit_of(answer(asked(largest_cap + 1), exact(100), budget=TIGHT), RejectReason.KV_BUDGET)


def test_the_largest_cap_is_exact_for_prompts_of_different_lengths() -> None:
    """Taking all of them to be as long as the longest, it was told too small."""
    request = asked(700, prompts=2, chat=False)
    largest_cap = unfit_of(answer(request, exact(600, 10), budget=SMALL), RejectReason.KV_BUDGET).facts["largest_cap"]
    assert offer_of(answer(asked(largest_cap, prompts=2, chat=False), exact(600, 10), budget=SMALL)).worst_blocks <= 64
    unfit_of(answer(asked(largest_cap + 1, prompts=2, chat=False), exact(600, 10), budget=SMALL), RejectReason.KV_BUDGET)


def test_a_prompt_that_no_cap_makes_fit_is_told_how_much_it_must_lose() -> None:
    unfit = unfit_of(answer(asked(5), exact(700), budget=TIGHT), RejectReason.KV_BUDGET)
    assert (unfit.facts["largest_cap"], unfit.param) == (0, "messages")
    shorter = 700 - unfit.facts["reduce_by_tokens"]
    assert offer_of(answer(asked(1), exact(shorter), budget=TIGHT)).worst_blocks == 40
    unfit_of(answer(asked(1), exact(shorter + 1), budget=TIGHT), RejectReason.KV_BUDGET)


def test_more_sequences_than_blocks_are_told_to_be_fewer() -> None:
    unfit = unfit_of(answer(asked(1, n=41), exact(1), budget=TIGHT), RejectReason.KV_BUDGET)
    assert "fewer sequences" in unfit.message
    assert "reduce_by_tokens" not in unfit.facts


def test_what_fits_only_with_the_reserve_is_offered_all_the_same() -> None:
    assert offer_of(answer(asked(620), exact(20), budget=TIGHT)).worst_blocks == 40


# A bound


def test_a_bound_that_fits_decides_without_a_count() -> None:
    assert offer_of(answer(asked(100), bound(300))).worst_blocks == 25


@pytest.mark.parametrize("prompt", [925, 1024, 100_000])
def test_a_bound_that_passes_the_context_asks_for_a_count_and_refuses_nothing(prompt: int) -> None:
    assert answer(asked(100), bound(prompt)) == CountFirst()
    assert answer(asked(100), bound(prompt), overlong=Overlong.REFUSE) == CountFirst()


def test_a_bound_that_passes_the_budget_asks_for_a_count_and_refuses_nothing() -> None:
    assert answer(asked(600), bound(400), budget=TIGHT) == CountFirst()


@pytest.mark.parametrize("prompt", [500, 100_000])
def test_where_no_count_can_be_had_a_large_bound_is_a_whole_context_and_the_engine_decides(prompt: int) -> None:
    offer = offer_of(answer(asked(600), bound_only(prompt)))
    assert (offer.worst_blocks, offer.cap_to_write) == (64, None)


def test_where_no_count_can_be_had_no_more_than_everything_is_held() -> None:
    offer = offer_of(answer(asked(600, n=3), bound_only(5000), budget=TIGHT))
    assert (offer.worst_blocks, offer.seats) == (40, 3)
    offer = offer_of(answer(asked(5000), bound_only(5000), weighing=Weighing(16), budget=TIGHT))
    assert offer.worst_blocks == 40


# Media: not even a bound


def test_media_are_a_whole_context() -> None:
    offer = offer_of(answer(asked(10), bound(None)))
    assert (offer.worst_blocks, offer.seats, offer.cap_to_write) == (64, 1, None)


def test_one_prompt_without_a_bound_makes_every_sequence_a_whole_context() -> None:
    offer = offer_of(answer(asked(10, prompts=2, n=2, chat=False), bound(None, 5)))
    assert offer.worst_blocks == 4 * 64


def test_media_take_the_default_output_of_the_operator_as_every_request_does() -> None:
    offer = offer_of(answer(asked(), bound(None), default_output=DefaultOutput(tokens=77)))
    assert (offer.worst_blocks, offer.cap_to_write) == (64, 77)
    assert offer_of(answer(asked(10), bound(None), default_output=DefaultOutput(tokens=77))).cap_to_write is None


# No cap


@pytest.mark.parametrize("count", [exact(10), bound(10), bound(100_000), bound_only(100_000)])
def test_an_uncapped_request_is_one_whole_context_and_needs_no_count(count: PromptCount) -> None:
    offer = offer_of(answer(asked(), count, budget=SMALL))
    assert (offer.worst_blocks, offer.cap_to_write) == (64, None)


def test_completions_without_a_cap_have_what_the_engine_makes_of_it_and_null_has_the_context() -> None:
    assert offer_of(answer(asked(chat=False), exact(10))).worst_blocks == ceil_div(10 + 16 - 1, 16)
    assert offer_of(answer(asked(CapState.NULL, chat=False), exact(10))).worst_blocks == 64
    assert offer_of(answer(asked(chat=False), exact(10), rules=EngineRules())).worst_blocks == 64


def test_a_context_larger_than_the_budget_gets_a_cap_against_the_budget_less_the_reserve() -> None:
    offer = offer_of(answer(asked(), exact(100), budget=TIGHT))
    assert offer.cap_to_write == 36 * 16 + 1 - 100
    assert offer.worst_blocks == 36
    assert answer(asked(), bound(100), budget=TIGHT) == CountFirst()


def test_the_cap_is_written_for_all_sequences_of_a_request() -> None:
    offer = offer_of(answer(asked(n=3), exact(100), budget=Budget(150, 12)))
    assert offer.cap_to_write == 46 * 16 + 1 - 100
    assert offer.worst_blocks == 138


def test_where_little_is_left_beside_the_reserve_a_cap_may_use_the_reserve_as_well() -> None:
    """A prompt of nearly the whole budget got an answer of one token, on an engine with nothing else to do."""
    offer = offer_of(answer(asked(), exact(36 * 16), budget=TIGHT))
    assert offer.cap_to_write == 4 * 16 + 1
    assert offer.worst_blocks == 40


def test_an_uncapped_prompt_is_served_as_long_as_there_is_room_for_one_token() -> None:
    assert offer_of(answer(asked(), exact(640), budget=TIGHT)).cap_to_write == 1
    unfit = unfit_of(answer(asked(), exact(641), budget=TIGHT), RejectReason.KV_BUDGET)
    assert unfit.facts["reduce_by_tokens"] == 1


def test_where_no_count_can_be_had_a_usable_cap_is_written_and_everything_held() -> None:
    offer = offer_of(answer(asked(), bound_only(10_000), budget=TIGHT))
    assert (offer.worst_blocks, offer.cap_to_write) == (40, LEAST_WRITTEN_CAP)
    offer = offer_of(answer(asked(), bound_only(100), budget=TIGHT))
    assert (offer.worst_blocks, offer.cap_to_write) == (36, 36 * 16 + 1 - 100)


def test_a_cap_of_ours_never_passes_a_small_context() -> None:
    """vLLM answers 400 to a cap above its context."""
    weighing = Weighing(block_tokens=16, max_context=100)
    offer = offer_of(answer(asked(), bound_only(10_000), weighing=weighing, budget=Budget(5)))
    assert offer.cap_to_write == 99


def test_an_unknown_context_is_as_long_as_the_budget() -> None:
    offer = offer_of(answer(asked(), exact(100), weighing=Weighing(16), budget=TIGHT))
    assert offer.cap_to_write == 36 * 16 + 1 - 100
    assert answer(asked(), bound(100), weighing=Weighing(16), budget=TIGHT) == CountFirst()


# The operator's default output


def test_a_default_output_is_written_and_held_instead_of_a_context() -> None:
    offer = offer_of(answer(asked(), exact(100), default_output=DefaultOutput(tokens=57)))
    assert (offer.worst_blocks, offer.cap_to_write) == (10, 57)
    assert offer_of(answer(asked(), bound(100), default_output=DefaultOutput(tokens=57))).cap_to_write == 57


def test_a_default_output_leaves_a_cap_of_the_callers_alone() -> None:
    offer = offer_of(answer(asked(9), exact(1), default_output=DefaultOutput(tokens=57)))
    assert offer.cap_to_write is None
    assert offer_of(answer(asked(chat=False), exact(1), default_output=DefaultOutput(tokens=57))).cap_to_write is None


def test_a_default_output_is_cut_where_context_or_budget_end() -> None:
    many = DefaultOutput(tokens=5000)
    assert offer_of(answer(asked(), exact(1000), default_output=many)).cap_to_write == 24
    assert offer_of(answer(asked(), exact(100), budget=TIGHT, default_output=many)).cap_to_write == 36 * 16 + 1 - 100
    assert answer(asked(), bound(1000), default_output=many) == CountFirst()


def test_a_required_cap_is_asked_for_before_anything_is_counted() -> None:
    require = DefaultOutput(require=True)
    for count in (exact(1), bound(100_000), bound(None)):
        assert unfit_of(answer(asked(), count, default_output=require), RejectReason.INVALID_REQUEST).param == "max_tokens"
    assert offer_of(answer(asked(5), exact(1), default_output=require)).worst_blocks == 1
    assert offer_of(answer(asked(chat=False), exact(1), default_output=require)).worst_blocks == 1  # the engine's 16 is a cap


# The fair share of slots that share one cache


def test_an_uncapped_request_gets_its_fair_share_of_a_shared_cache() -> None:
    cells = Weighing(block_tokens=1, max_context=2000)
    offer = offer_of(answer(asked(), exact(100), rules=LLAMA, weighing=cells, budget=Budget(2000, 100)))
    assert (offer.worst_blocks, offer.cap_to_write) == (499, 400)


def test_a_prompt_beyond_its_fair_share_still_gets_a_usable_answer() -> None:
    cells = Weighing(block_tokens=1, max_context=2000)
    offer = offer_of(answer(asked(), exact(450), rules=LLAMA, weighing=cells, budget=Budget(2000, 100)))
    assert offer.cap_to_write == LEAST_WRITTEN_CAP


def test_a_fair_share_is_fixed_by_an_exact_count_only() -> None:
    cells = Weighing(block_tokens=1, max_context=2000)
    assert answer(asked(), bound(100), rules=LLAMA, weighing=cells, budget=Budget(2000, 100)) == CountFirst()
    offer = offer_of(answer(asked(), bound_only(400), rules=LLAMA, weighing=cells, budget=Budget(2000, 100)))
    assert offer.cap_to_write == LEAST_WRITTEN_CAP


# What holds for everything

weighings = st.builds(
    Weighing,
    block_tokens=st.sampled_from([1, 16, 64]),
    max_context=st.none() | st.integers(2, 3000),
    spare_blocks=st.integers(0, 2),
)
whole_weighings = st.builds(
    Weighing, block_tokens=st.just(16), max_context=st.integers(2, 3000), whole_context_blocks=st.integers(1, 300)
)
budgets = st.integers(1, 400).flatmap(lambda blocks: st.builds(Budget, st.just(blocks), st.integers(0, blocks - 1)))
all_rules = st.builds(
    EngineRules,
    absent_completions_cap=st.none() | st.just(16),
    refuses_cap_above_context=st.booleans(),
    has_best_of=st.booleans(),
    fair_share_tokens=st.none() | st.integers(1, 1000),
)
outputs = st.builds(DefaultOutput, tokens=st.none() | st.integers(1, 5000))
caps = st.integers(1, 5000) | st.sampled_from([CapState.ABSENT, CapState.NULL])
kinds = st.sampled_from(CountKind)
prompt_lists = st.lists(st.integers(0, 3000), min_size=1, max_size=4)


@given(
    prompts=prompt_lists,
    kind=kinds,
    cap=caps,
    n=st.integers(1, 4),
    chat=st.booleans(),
    rules=all_rules,
    weighing=weighings | whole_weighings,
    budget=budgets,
    default_output=outputs,
    overlong=st.sampled_from(Overlong),
)
def test_what_is_offered_can_be_held_and_covers_what_may_run(
    prompts: list[int],
    kind: CountKind,
    cap: int | CapState,
    n: int,
    chat: bool,
    rules: EngineRules,
    weighing: Weighing,
    budget: Budget,
    default_output: DefaultOutput,
    overlong: Overlong,
) -> None:
    request = asked(cap, prompts=len(prompts), n=n, chat=chat)
    found = answer(
        request,
        PromptCount(tuple(prompts), kind),
        rules=rules,
        weighing=weighing,
        budget=budget,
        default_output=default_output,
        overlong=overlong,
    )
    if kind is not CountKind.BOUND:
        assert not isinstance(found, CountFirst), "there is nothing more to count"
    if kind is not CountKind.EXACT and isinstance(found, Unfit):
        assert found.facts["max_tokens"] > (weighing.max_context or 0), "a bound refused"
    if not isinstance(found, Offer):
        return
    assert 1 <= found.worst_blocks <= budget.blocks
    assert found.seats == n * len(prompts)
    if found.cap_to_write is not None:
        assert found.cap_to_write >= 1
        assert weighing.max_context is None or found.cap_to_write < weighing.max_context
    if kind is CountKind.EXACT:
        # What the engine may write: up to the cap it was sent, else up to the context.
        runs_to = found.cap_to_write or request.cap_tokens
        if runs_to is None and request.cap is CapState.ABSENT and not chat:
            runs_to = rules.absent_completions_cap
        if runs_to is None:
            assert weighing.max_context is not None, "without a cap and without a context nothing bounds it"
            runs_to = weighing.max_context
        may_take = n * sum(weighing.sequence_blocks(prompt + runs_to) for prompt in prompts)
        assert found.worst_blocks >= may_take


@given(
    prompt=st.integers(0, 3000),
    caps_=st.lists(st.integers(1, 3000), min_size=2, max_size=6),
    weighing=weighings,
    budget=budgets,
)
def test_a_larger_cap_never_holds_less(prompt: int, caps_: list[int], weighing: Weighing, budget: Budget) -> None:
    found = [answer(asked(cap), exact(prompt), weighing=weighing, budget=budget, rules=LLAMA) for cap in sorted(caps_)]
    blocks = [each.worst_blocks for each in found if isinstance(each, Offer)]
    assert all(smaller <= larger for smaller, larger in pairwise(blocks))
    refused = [not isinstance(each, Offer) for each in found]
    assert refused == sorted(refused), "a smaller cap was refused where a larger one was not"


@given(prompts=st.lists(st.integers(0, 3000), min_size=2, max_size=6), weighing=weighings, budget=budgets, rules=all_rules)
def test_a_longer_prompt_never_holds_less(prompts: list[int], weighing: Weighing, budget: Budget, rules: EngineRules) -> None:
    found = [answer(asked(100), exact(prompt), weighing=weighing, budget=budget, rules=rules) for prompt in sorted(prompts)]
    blocks = [each.worst_blocks for each in found if isinstance(each, Offer)]
    assert all(smaller <= larger for smaller, larger in pairwise(blocks))


@given(prompt=st.integers(0, 3000), surplus=st.integers(0, 3000), cap=st.integers(1, 3000), weighing=weighings, budget=budgets)
def test_a_bound_holds_at_least_what_the_exact_count_would(
    prompt: int, surplus: int, cap: int, weighing: Weighing, budget: Budget
) -> None:
    by_bound = answer(asked(cap), bound(prompt + surplus), weighing=weighing, budget=budget)
    by_count = answer(asked(cap), exact(prompt), weighing=weighing, budget=budget)
    if isinstance(by_bound, Offer):
        assert isinstance(by_count, Offer), "what a bound lets in, the count does not refuse"
        assert by_bound.worst_blocks >= by_count.worst_blocks


def test_a_cap_of_ours_is_never_the_whole_context_even_before_an_empty_prompt() -> None:
    whole = Weighing(block_tokens=16, max_context=1024, whole_context_blocks=70)
    found = answer(
        asked(CapState.ABSENT), exact(0), weighing=whole, budget=Budget(100, 0), default_output=DefaultOutput(tokens=4096)
    )
    assert isinstance(found, Offer)
    assert found.cap_to_write == 1023


def test_a_bound_below_the_context_leaves_something_to_expect_where_no_exact_count_can_be_had() -> None:
    """Held as a whole context with nothing said of its prompt, such a request could never be charged less by a forecast: before
    an engine without a count, caps as large as the context ran one at a time."""
    found = offer_of(answer(asked(800), bound_only(300)))
    assert found.worst_blocks == 64  # no less than a whole context, as before
    assert (found.prompt_tokens, found.output_tokens) == (300, 800)
    assert found.weighing == PLAIN
    at_the_context = offer_of(answer(asked(800), bound_only(1024)))
    assert at_the_context.worst_blocks == 64
    assert at_the_context.weighing is None  # its prompt may fill it alone


RULES = st.sampled_from([VLLM, LLAMA, EngineRules()])
WEIGHINGS = st.sampled_from(
    [PLAIN, Weighing(16), Weighing(1, 700), Weighing(16, 1024, whole_context_blocks=70), Weighing(16, 1024, spare_blocks=1)]
)
OUTPUTS = st.sampled_from([DefaultOutput(), DefaultOutput(tokens=64), DefaultOutput(require=True)])


@given(
    request=st.builds(
        asked,
        st.sampled_from([CapState.ABSENT, CapState.NULL]) | st.integers(1, 1100),
        n=st.integers(1, 3),
        best_of=st.integers(1, 3),
        chat=st.booleans(),
    ),
    tokens=st.integers(0, 1100),
    kind=st.sampled_from(CountKind),
    rules=RULES,
    weighing=WEIGHINGS,
    budget=st.sampled_from([ROOMY, SMALL, TIGHT]),
    output=OUTPUTS,
    overlong=st.sampled_from(Overlong),
)
def test_what_is_offered_at_once_is_what_a_longer_look_offers(
    request: InferenceRequest,
    tokens: int,
    kind: CountKind,
    rules: EngineRules,
    weighing: Weighing,
    budget: Budget,
    output: DefaultOutput,
    overlong: Overlong,
) -> None:
    at_once = offer_at_once(request, tokens, rules, weighing, budget, output)
    if at_once is not None and (kind is not CountKind.EXACT or request.cap_tokens is not None):
        count = PromptCount((tokens,), kind)
        found = answer(request, count, rules=rules, weighing=weighing, budget=budget, default_output=output, overlong=overlong)
        assert at_once == found
