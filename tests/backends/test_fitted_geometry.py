"""A model's config against the engine's own figures: weighed with where they agree, never where they do not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.capacity import Capacity, Formula, GivenCapacity, work_out
from gateway.backends.engines import EngineReport
from gateway.backends.fitted_geometry import GivenGeometry, GivenMemory
from gateway.core.geometry.groups import Storage
from gateway.core.geometry.model_config import read_model
from gateway.core.geometry.precision import kv_dtype
from gateway.core.geometry.vllm_pages import StateMode, VllmSettings, vllm_pool
from gateway.core.reserve import Reserve

CONFIGS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "core" / "golden" / "cases.json").read_text())["configs"]
NO_RESERVE = Reserve.parse("0")
GIB = 2**30


def engine_for(
    name: str, *, context: int, blocks: int, settings: VllmSettings, dtype: str = "bf16", tp: int = 1
) -> EngineReport:
    """What vLLM 0.32 would say of itself with this model."""
    settings = replace(settings, max_model_len=context)
    pool = vllm_pool(read_model(CONFIGS[name]).layers, Storage(kv_dtype(dtype), tp, speculated=settings.speculated), settings)
    return EngineReport(
        "vllm",
        models={"m": context},
        block_tokens=pool.block_tokens,
        usable_blocks=blocks - 1,
        total_blocks=blocks,
        cache_tokens=int(blocks / pool.startup_blocks * context),
        kv_dtype="auto" if dtype == "bf16" else dtype,
    )


def planned(report: EngineReport, name: str, *, reserve: str = "0", memory: GivenMemory | None = None, **how: Any) -> Capacity:
    geometry = GivenGeometry(read_model(CONFIGS[name]), **how)
    capacity = work_out(report, GivenCapacity(reserve=Reserve.parse(reserve), geometry=geometry, memory=memory))
    assert isinstance(capacity, Capacity), capacity
    return capacity


def test_without_the_config_a_hybrid_model_is_weighed_by_whole_contexts_and_with_it_by_its_groups() -> None:
    report = engine_for("qwen3.5-27b", context=32768, blocks=1487, settings=VllmSettings())
    without = work_out(report, GivenCapacity(reserve=NO_RESERVE))
    assert isinstance(without, Capacity)
    assert (without.formula, without.weighing.whole_context_blocks) == (
        Formula.REFUTED,
        49,
    )  # the engine's figure is cut to a whole token
    assert "KVGATE_MODEL_CONFIG" in without.assumptions[0]
    capacity = planned(report, "qwen3.5-27b")
    assert (capacity.formula, capacity.warnings) == (Formula.AGREES, ())
    assert capacity.weighing.sequence_blocks(785) == 1 + 3 * 2
    assert capacity.weighing.sequence_blocks(32768) == 48


@pytest.mark.parametrize("in_flight", [256, 2048, 8192, 16384])
def test_tokens_in_flight_are_found_from_the_engine_s_figures(in_flight: int) -> None:
    settings = VllmSettings(in_flight_tokens=in_flight)
    report = engine_for("gpt-oss-20b", context=131072, blocks=20_000, settings=settings)
    capacity = planned(report, "gpt-oss-20b")
    assert capacity.formula is Formula.AGREES
    pool = vllm_pool(
        read_model(CONFIGS["gpt-oss-20b"]).layers, Storage(kv_dtype("bf16")), replace(settings, max_model_len=131072)
    )
    for tokens in (1, 100, 5000, 70_000, 131_071):
        assert capacity.weighing.sequence_blocks(tokens + 1) == pool.need(tokens)


@pytest.mark.parametrize("mode", [StateMode.NONE, StateMode.ALIGN])
@pytest.mark.parametrize("speculated", [0, 3])
def test_how_states_are_kept_is_found_from_the_engine_s_figures(mode: StateMode, speculated: int) -> None:
    settings = VllmSettings(state_mode=mode, speculated=speculated)
    report = engine_for("jamba-1.5-mini", context=65536, blocks=30_000, settings=settings)
    capacity = planned(report, "jamba-1.5-mini")
    assert capacity.formula is Formula.AGREES
    growing = -(-40_000 // report.block_tokens) if report.block_tokens else 0
    fixed = capacity.weighing.sequence_blocks(40_001) - growing
    assert fixed == 7 * ((2 if mode is StateMode.ALIGN else 1) + speculated)


def test_a_plain_model_stays_plain() -> None:
    report = engine_for("llama-3.1-8b", context=131072, blocks=20_000, settings=VllmSettings())
    capacity = planned(report, "llama-3.1-8b")
    assert (capacity.formula, capacity.weighing.pools) == (Formula.AGREES, ())


def test_another_model_s_config_is_not_weighed_with_and_the_numbers_are_told() -> None:
    report = engine_for("gemma-3-27b", context=32768, blocks=20_000, settings=VllmSettings())
    capacity = planned(report, "llama-3.1-8b")
    assert capacity.formula is Formula.REFUTED
    assert capacity.weighing.whole_context_blocks == 5511
    (warning,) = capacity.warnings
    assert "5510 blocks by its figures and 2048 by the config" in warning


def test_an_engine_without_figures_is_weighed_by_the_config_as_an_assumption() -> None:
    report = replace(engine_for("gpt-oss-20b", context=32768, blocks=9000, settings=VllmSettings()), cache_tokens=None)
    capacity = planned(report, "gpt-oss-20b")
    assert capacity.formula is Formula.ASSUMED
    assert capacity.weighing.sequence_blocks(32768) == 2569
    doubted = work_out(
        report,
        GivenCapacity(reserve=NO_RESERVE, geometry=GivenGeometry(read_model(CONFIGS["gpt-oss-20b"]))),
        distrust="it preempted",
    )
    assert isinstance(doubted, Capacity)
    assert doubted.weighing.whole_context_blocks == 2569


def test_a_reserve_in_memory_becomes_blocks_once_the_config_tells_their_size() -> None:
    report = engine_for("llama-3.1-8b", context=131072, blocks=20_001, settings=VllmSettings())
    capacity = planned(report, "llama-3.1-8b", reserve="2GiB")
    assert (capacity.budget.reserve_blocks, capacity.bytes_per_block) == (1024, 2**21)


def test_a_budget_is_computed_from_memory_where_the_engine_tells_none() -> None:
    report = EngineReport("unknown", models={"m": 131072})
    memory = GivenMemory(80 * GIB, weights_bytes=16 * GIB, runtime_bytes=4 * GIB)
    capacity = planned(report, "llama-3.1-8b", memory=memory)
    assert (capacity.source, capacity.budgets) == ("memory", {"memory": 60 * 512 - 1})
    assert capacity.weighing.block_tokens == 16


def test_the_smallest_stage_decides_how_many_blocks_memory_makes() -> None:
    report = EngineReport("unknown", models={"m": 131072})
    memory = GivenMemory(16 * GIB, weights_bytes=8 * GIB)
    whole = planned(report, "llama-3.1-8b", memory=memory, stages="2").budget.blocks
    uneven = planned(report, "llama-3.1-8b", memory=memory, stages="24+8").budget.blocks
    assert (whole, uneven) == (8 * 1024 - 1, 8 * 512 * 32 // 24 - 1)


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        (2 * 60 * 512, "half the bytes"),
        (60 * 512 // 2, "twice the bytes"),
        (60 * 512 * 7 // 10, "another tenant"),
        (60 * 512 * 14 // 10, "larger than what the engine really took"),
    ],
)
def test_budgets_that_contradict_each_other_are_told_with_numbers_and_a_likely_cause(told: int, cause: str) -> None:
    report = engine_for("llama-3.1-8b", context=131072, blocks=told, settings=VllmSettings())
    memory = GivenMemory(80 * GIB, weights_bytes=16 * GIB, runtime_bytes=4 * GIB)
    capacity = planned(report, "llama-3.1-8b", memory=memory)
    assert (capacity.source, capacity.budgets) == ("engine", {"engine": told - 1, "memory": 60 * 512 - 1})
    (warning,) = capacity.warnings
    assert str(told - 1) in warning
    assert "30719" in warning
    assert cause in warning


def test_a_draft_in_the_same_pool_is_recognised_by_the_layer_that_is_missing() -> None:
    config = {**CONFIGS["llama-3.1-8b"], "num_nextn_predict_layers": 4}
    report = engine_for("llama-3.1-8b", context=131072, blocks=60 * 512 * 32 // 36, settings=VllmSettings())
    given = GivenCapacity(
        reserve=NO_RESERVE,
        geometry=GivenGeometry(read_model(config)),
        memory=GivenMemory(80 * GIB, weights_bytes=16 * GIB, runtime_bytes=4 * GIB),
    )
    capacity = work_out(report, given)
    assert isinstance(capacity, Capacity)
    assert "4 draft layer(s)" in capacity.warnings[0]


def test_figures_within_a_tenth_are_not_worth_a_word() -> None:
    report = engine_for("llama-3.1-8b", context=131072, blocks=29_000, settings=VllmSettings())
    memory = GivenMemory(80 * GIB, weights_bytes=16 * GIB, runtime_bytes=4 * GIB)
    assert planned(report, "llama-3.1-8b", memory=memory).warnings == ()
