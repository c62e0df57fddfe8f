"""From what an engine says and what the operator gave to what may be planned with."""

from dataclasses import replace

import pytest

from gateway.backends.capacity import Capacity, Formula, GivenCapacity, NoCapacity, conflict_in, work_out
from gateway.backends.engines import EngineReport
from gateway.core.engine_rules import EngineRules
from gateway.core.reserve import Reserve

NO_RESERVE = Reserve.parse("0")
VLLM = EngineReport(
    "vllm", models={"tiny": 1024}, block_tokens=32, usable_blocks=64, total_blocks=65, cache_tokens=2080, rules=EngineRules()
)
LLAMA = EngineReport(
    "llama_cpp",
    models={"a": 1024},
    block_tokens=1,
    usable_blocks=1024,
    total_blocks=1024,
    cells=True,
    seats=4,
    slots_share=True,
)


def planned(report: EngineReport, given: GivenCapacity | None = None, *, distrust: str | None = None) -> Capacity:
    capacity = work_out(report, given or GivenCapacity(reserve=NO_RESERVE), distrust=distrust)
    assert isinstance(capacity, Capacity), capacity
    return capacity


def refused(report: EngineReport, given: GivenCapacity) -> NoCapacity:
    outcome = work_out(report, given)
    assert isinstance(outcome, NoCapacity), outcome
    return outcome


def test_the_engine_s_own_figure_is_the_budget_where_the_operator_gave_none() -> None:
    capacity = planned(VLLM)
    assert (capacity.budget.blocks, capacity.source, capacity.budgets) == (64, "engine", {"engine": 64})


def test_what_the_operator_gave_comes_first_and_both_are_shown() -> None:
    capacity = planned(VLLM, GivenCapacity(kv_blocks=40, reserve=NO_RESERVE))
    assert capacity.budget.blocks == 40
    assert capacity.budgets == {"KVGATE_KV_BLOCKS": 40, "engine": 64}
    assert capacity.warnings == ()


def test_more_than_the_engine_has_is_a_warning_with_both_numbers() -> None:
    capacity = planned(VLLM, GivenCapacity(kv_blocks=128, block_tokens=16, max_context=4096, reserve=NO_RESERVE))
    assert capacity.warnings == (
        "KVGATE_KV_BLOCKS=128, but the engine says 64",
        "KVGATE_MAX_CONTEXT=4096, but the engine says 1024",
        "KVGATE_BLOCK_TOKENS=16, but the engine says 32",
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (GivenCapacity(), ("KVGATE_KV_BLOCKS", "KVGATE_BLOCK_TOKENS")),
        (GivenCapacity(kv_blocks=64), ("KVGATE_BLOCK_TOKENS",)),
        (GivenCapacity(block_tokens=16), ("KVGATE_KV_BLOCKS",)),
    ],
)
def test_an_engine_that_tells_nothing_has_no_capacity_and_the_missing_settings_are_named(
    given: GivenCapacity, named: tuple[str, ...]
) -> None:
    outcome = refused(EngineReport("static"), given)
    assert [name for name in ("KVGATE_KV_BLOCKS", "KVGATE_BLOCK_TOKENS") if name in outcome.message] == list(named)
    assert not outcome.conflict


def test_settings_alone_are_enough() -> None:
    given = GivenCapacity(kv_blocks=64, block_tokens=16, max_context=2048, seats=8)
    capacity = planned(EngineReport("static"), given)
    assert (capacity.budget.blocks, capacity.budget.reserve_blocks, capacity.budget.seats) == (64, 4, 8)
    assert (capacity.weighing.block_tokens, capacity.weighing.max_context) == (16, 2048)
    assert capacity.formula is Formula.ASSUMED


def test_a_share_is_rounded_down_exactly() -> None:
    assert planned(VLLM, GivenCapacity(kv_blocks=100, share=0.29, reserve=NO_RESERVE)).budget.blocks == 29
    outcome = refused(VLLM, GivenCapacity(kv_blocks=3, share=0.3, reserve=NO_RESERVE))
    assert outcome.conflict
    assert "KVGATE_SHARE" in outcome.message


def test_a_reserve_of_everything_is_a_conflict_that_is_known_before_any_question_where_the_blocks_were_given() -> None:
    given = GivenCapacity(kv_blocks=64, block_tokens=16, reserve=Reserve.parse("64"))
    assert "64 blocks" in (conflict_in(given) or "")
    assert conflict_in(replace(given, reserve=Reserve.parse("63"))) is None
    assert conflict_in(GivenCapacity(reserve=Reserve.parse("64"))) is None
    assert refused(VLLM, GivenCapacity(reserve=Reserve.parse("64"))).conflict


def test_a_reserve_in_memory_that_cannot_be_turned_into_blocks_is_named_and_is_no_conflict() -> None:
    outcome = refused(VLLM, GivenCapacity(reserve=Reserve.parse("2GiB")))
    assert "KVGATE_RESERVE" in outcome.message
    assert not outcome.conflict


@pytest.mark.parametrize(
    ("blocks", "block_tokens", "context", "cache_tokens"),
    [
        (65, 32, 1024, 2080),
        (1487, 16, 1000, int(1487 / 63 * 1000)),  # a context that is no whole number of blocks
        (2666, 16, 32768, 2666 * 16),
    ],
)
def test_a_figure_that_agrees_to_the_token_makes_the_plain_formula_trusted(
    blocks: int, block_tokens: int, context: int, cache_tokens: int
) -> None:
    report = replace(
        VLLM,
        models={"m": context},
        block_tokens=block_tokens,
        total_blocks=blocks,
        usable_blocks=blocks - 1,
        cache_tokens=cache_tokens,
    )
    capacity = planned(report)
    assert capacity.formula is Formula.AGREES
    assert capacity.weighing.whole_context_blocks is None
    assert capacity.assumptions == ()


def test_a_figure_that_disagrees_makes_every_sequence_a_whole_context() -> None:
    # 1,487 blocks of 784 tokens hold 33.04 requests of 32,768 tokens: 45 blocks each, where the plain formula says 42. The
    # figure is cut to whole tokens, so that rounding up makes it 46: one too many rather than one too few.
    report = replace(
        VLLM, models={"m": 32768}, block_tokens=784, total_blocks=1487, usable_blocks=1486, cache_tokens=int(1487 / 45 * 32768)
    )
    capacity = planned(report)
    assert capacity.formula is Formula.REFUTED
    assert capacity.weighing.sequence_blocks(10) == 46
    assert "46 blocks, not 42" in capacity.assumptions[0]


def test_without_a_figure_the_formula_is_an_assumption_in_print() -> None:
    capacity = planned(replace(VLLM, cache_tokens=None))
    assert capacity.formula is Formula.ASSUMED
    assert any("is taken to be" in sentence for sentence in capacity.assumptions)


def test_an_assumed_formula_that_the_engine_contradicts_is_given_up() -> None:
    capacity = planned(replace(VLLM, cache_tokens=None), distrust="it preempted")
    assert capacity.formula is Formula.REFUTED
    assert capacity.weighing.whole_context_blocks == 32


def test_a_trusted_formula_is_not_given_up_for_a_preemption() -> None:
    assert planned(VLLM, distrust="it preempted").formula is Formula.AGREES


def test_slots_that_may_share_one_cache_get_a_fair_share_and_split_ones_do_not() -> None:
    assert planned(LLAMA).rules.fair_share_tokens == 256
    split = planned(LLAMA, GivenCapacity(kv_blocks=4096, reserve=NO_RESERVE))
    assert split.rules.fair_share_tokens is None
    assert split.budget.blocks == 4096


@pytest.mark.parametrize("block_tokens", [1, 16])
def test_as_many_fair_shares_as_there_are_seats_fit_beside_the_reserve(block_tokens: int) -> None:
    """A fourth of the whole budget each, and the fourth of them waited for the reserve."""
    capacity = planned(LLAMA, GivenCapacity(block_tokens=block_tokens, reserve=Reserve.parse("5%")))
    share_tokens, budget = capacity.rules.fair_share_tokens, capacity.budget
    assert share_tokens is not None
    assert 4 * capacity.weighing.sequence_blocks(share_tokens) <= budget.blocks - budget.reserve_blocks
    assert share_tokens > 1024 * 0.95 / 4 - 2 * block_tokens


def test_blocks_of_another_size_do_not_multiply_a_cache_that_is_counted_in_tokens() -> None:
    capacity = planned(LLAMA, GivenCapacity(block_tokens=16, reserve=NO_RESERVE))
    assert (capacity.budget.blocks, capacity.weighing.block_tokens) == (64, 16)


def test_an_unknown_context_is_named_with_its_setting() -> None:
    capacity = planned(EngineReport("static"), GivenCapacity(kv_blocks=64, block_tokens=16))
    assert any("KVGATE_MAX_CONTEXT" in sentence for sentence in capacity.assumptions)
