"""Every golden case and every verified engine log, through the product's own functions; no tolerance but a log's own.

The figures were computed offline with vLLM's planner, taken from published tables, or printed by real engines.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.geometry.cells import LatentCell
from gateway.core.geometry.engine_pools import ENGINE_POOLS, EngineSettings, llama_cpp_cells
from gateway.core.geometry.groups import Kind, Model, Storage, bytes_per_token, group_layers, ideal_bytes
from gateway.core.geometry.kv_memory import kv_bytes
from gateway.core.geometry.model_config import read_model
from gateway.core.geometry.pools import Pool
from gateway.core.geometry.precision import kv_dtype
from gateway.core.geometry.report import groups_report
from gateway.core.geometry.rounding import ceil_div
from gateway.core.geometry.stages import cut, even_partition
from gateway.core.geometry.vllm_figures import Generation, blocks_behind, blocks_in, printed_tokens
from gateway.core.geometry.vllm_pages import StateMode, VllmSettings, vllm_pool

GOLDEN = Path(__file__).parents[1] / "golden"
FILE = json.loads((GOLDEN / "cases.json").read_text())
CONFIGS: dict[str, Any] = FILE["configs"]
CASES: list[dict[str, Any]] = FILE["cases"]
LOGS: list[dict[str, Any]] = json.loads((GOLDEN / "engine_logs.json").read_text())


def model_of(case: dict[str, Any]) -> Model:
    return read_model(CONFIGS[case["id"].split("/")[0]])


def storage_of(case: dict[str, Any]) -> Storage:
    return Storage(kv_dtype(case["engine"]["kv_dtype"]), case["engine"]["tp"])


def ids(cases: list[dict[str, Any]]) -> list[str]:
    return [case["id"] for case in cases]


def test_there_are_107_cases_and_22_logs() -> None:
    assert (len(CASES), len(LOGS)) == (107, 22)


WHOLE = [case for case in CASES if "groups" in case["expect"]]


@pytest.mark.parametrize("case", WHOLE, ids=ids(WHOLE))
def test_the_groups_and_bytes_of_a_golden_case_are_equal(case: dict[str, Any]) -> None:
    groups, expect = group_layers(model_of(case).layers, storage_of(case)), case["expect"]
    assert groups_report(groups) == expect["groups"]
    assert bytes_per_token(groups, windows_full=True) == expect["bytes_per_token"]
    assert bytes_per_token(groups, windows_full=False) == expect["bytes_per_token_before_windows_fill"]
    assert sum(group.layers * group.state_bytes for group in groups) == expect["state_bytes_per_request"]
    assert {tokens: ideal_bytes(groups, int(tokens)) for tokens in expect["bytes_at"]} == expect["bytes_at"]


BLOCKS = [case for case in CASES if "vllm" in case["expect"]]


@pytest.mark.parametrize("case", BLOCKS, ids=ids(BLOCKS))
@pytest.mark.parametrize("block_is_given", [True, False])
def test_the_blocks_of_a_golden_case_are_equal(case: dict[str, Any], block_is_given: bool) -> None:
    expect = case["expect"]["vllm"]
    block_tokens = case["engine"]["block_size"] if block_is_given else None

    def pool_at(tokens: str) -> Pool:
        settings = VllmSettings(block_tokens=block_tokens, max_model_len=int(tokens))
        return vllm_pool(model_of(case).layers, storage_of(case), settings)

    for tokens, blocks in expect["blocks_at"].items():
        pool = pool_at(tokens)
        assert pool.bytes_per_block == expect["bytes_per_block"]
        assert [[str(group.kind), group.layers, group.block_tokens] for group in pool.groups] == expect["groups"]
        assert pool.need(int(tokens)) == blocks
        assert pool.need(int(tokens)) * pool.bytes_per_block == expect["bytes_at"][tokens]
        assert pool.startup_blocks == expect.get("startup_sizing_blocks_at", expect["blocks_at"])[tokens]


RANKS = [case for case in CASES if "bytes_per_token_per_rank" in case["expect"]]


@pytest.mark.parametrize("case", RANKS, ids=ids(RANKS))
def test_what_one_tensor_parallel_rank_keeps_is_equal(case: dict[str, Any]) -> None:
    groups, expect = group_layers(model_of(case).layers, storage_of(case)), case["expect"]
    rate = bytes_per_token(groups, windows_full=True)
    assert rate == expect["bytes_per_token_per_rank"]
    assert rate * case["engine"]["tp"] == expect["bytes_per_token_all_tp_ranks"]
    assert {at: ideal_bytes(groups, int(at)) for at in expect["bytes_at_per_rank"]} == expect["bytes_at_per_rank"]


STAGES = [case for case in CASES if case["engine"]["pp"] > 1]


@pytest.mark.parametrize("case", STAGES, ids=ids(STAGES))
def test_what_each_pipeline_stage_keeps_is_equal(case: dict[str, Any]) -> None:
    layers, partition = model_of(case).layers, tuple(case["engine"]["layer_partition"])
    rates = [bytes_per_token(group_layers(stage, storage_of(case)), windows_full=True) for stage in cut(layers, partition)]
    assert rates == case["expect"]["bytes_per_token_per_stage"]
    assert max(rates) == case["expect"]["bytes_per_token_worst_stage"]
    if partition != (16, 32):  # that one was chosen by hand
        assert even_partition(len(layers), len(partition)) == partition


VLLM_LOGS = [log for log in LOGS if log["engine"] == "vllm"]


def pool_of(log: dict[str, Any]) -> Pool:
    speculated = log.get("num_speculative_tokens", 0)
    storage = Storage(kv_dtype(log["kv_dtype"]), log["tp"], speculated=speculated)
    settings = VllmSettings(
        block_tokens=log["block_size"],
        max_model_len=log["max_model_len"],
        state_mode=StateMode(log.get("mamba_cache_mode", "align")),
        speculated=speculated,
    )
    model = read_model(CONFIGS[log["config_id"]]).with_drafts(log.get("draft_layers", 0))
    return vllm_pool(model.layers, storage, settings)


@pytest.mark.parametrize("log", VLLM_LOGS, ids=ids(VLLM_LOGS))
def test_a_start_up_log_of_vllm_comes_from_a_whole_number_of_our_blocks(log: dict[str, Any]) -> None:
    pool, derived = pool_of(log), log["derived"]
    assert pool.bytes_per_block == derived["bytes_per_block"]
    assert [[str(group.kind), group.layers, group.block_tokens] for group in pool.groups] == derived["groups"]
    assert pool.startup_blocks == derived["blocks_per_max_len_request"]
    generation = Generation(log["generation"])
    memory = blocks_in(log["available_kv_gib"], pool) if "available_kv_gib" in log else None
    if memory is not None:
        assert list(memory) == derived["num_blocks_from_memory"]
    if "rounded_percent" in log:
        for blocks in derived["num_blocks_implied"]:
            printed = printed_tokens(blocks, pool, log["max_model_len"], generation)
            assert abs(printed - log["expect_tokens"]) * 100 <= log["rounded_percent"] * printed
        return
    behind = blocks_behind(
        log["expect_tokens"], pool, log["max_model_len"], generation, concurrency=log.get("expect_concurrency")
    )
    within = [blocks for blocks in behind if memory is None or memory[0] <= blocks <= memory[1]]
    assert within == derived["num_blocks_implied"]


def test_a_wrong_geometry_is_seen_by_the_self_test() -> None:
    log = next(log for log in VLLM_LOGS if log["id"] == "club-3090-594")
    without_the_draft = pool_of({**log, "draft_layers": 0, "num_speculative_tokens": 0})
    behind = blocks_behind(
        log["expect_tokens"], without_the_draft, log["max_model_len"], Generation.CONCURRENCY, concurrency=1.15
    )
    assert behind == ()


def logged(name: str) -> dict[str, Any]:
    return next(log for log in LOGS if log["id"] == name)


def close(log: dict[str, Any], *figures: float) -> bool:
    return all(
        abs(figure - printed) <= tolerance
        for figure, printed, tolerance in zip(figures, log["logged"], log["tolerance"], strict=True)
    )


def test_sglang_allocates_indexer_rows_that_its_old_log_left_out() -> None:
    layers = read_model(CONFIGS["deepseek-v3.2"]).layers
    storage = Storage(kv_dtype("fp8_ds"))
    (pool,) = ENGINE_POOLS["sglang"](layers, storage, EngineSettings(VllmSettings(), block_tokens=64))
    rows = sum(storage.cell_bytes(cache) for layer in layers for cache in layer if cache.tag == "mla")
    new, old = logged("sgl-11309-new"), logged("sgl-11309-old")
    assert close(new, new["expect_tokens"] * pool.bytes_per_block / 64 / 2**30)
    assert close(old, old["expect_tokens"] * rows / 2**30, old["expect_tokens"] * pool.bytes_per_block / 64 / 2**30)


def test_tensorrt_llm_allocates_the_bytes_and_blocks_that_it_printed() -> None:
    def pool(config: str, block_tokens: int) -> Pool:
        settings = EngineSettings(VllmSettings(), block_tokens=block_tokens)
        return ENGINE_POOLS["tensorrt_llm"](read_model(CONFIGS[config]).layers, Storage(kv_dtype("fp16")), settings)[0]

    first = logged("trt-1400")
    assert first["expect_tokens"] // 64 * pool("llama-2-7b", 64).bytes_per_block == first["logged"][0]
    # Its C++ runtime rounds the block count up: 0.9 of 21.89 GiB.
    assert ceil_div(2189 * 2**30 * 9 // 1000, kv_bytes(64, 32, 32, 128, 2)) == logged("trt-2268")["logged"][0]
    third, tiny = logged("trt-tutorials-150"), pool("tinyllama-1.1b", 32)
    assert third["expect_tokens"] % 32 == 0
    assert close(third, third["expect_tokens"], third["expect_tokens"] // 32 * tiny.bytes_per_block / 2**30)


def test_llama_cpp_keeps_a_mamba_state_of_32_bit_numbers_for_each_slot() -> None:
    config = {"model_type": "mamba", "hidden_size": 2560, "intermediate_size": 5120, "state_size": 16, "conv_kernel": 4}
    model = read_model({**config, "num_hidden_layers": 64, "expand": 2})
    (states,) = ENGINE_POOLS["llama_cpp"](model.layers, Storage(kv_dtype("f32")), EngineSettings(VllmSettings()))
    assert close(logged("llama.cpp-5328"), states.bytes_per_block / 2**20)


def test_llama_cpp_keeps_quantised_cells_and_a_small_second_cache_for_windows() -> None:
    words = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] * 12
    config = {"model_type": "laguna", "num_hidden_layers": 48, "num_attention_heads": 48, "num_key_value_heads": 8}
    model = read_model({**config, "head_dim": 128, "sliding_window": 512, "layer_types": words})
    full, sliding = ENGINE_POOLS["llama_cpp"](model.layers, Storage(kv_dtype("q4_0")), EngineSettings(VllmSettings()))
    context = 2**20
    cells = llama_cpp_cells(context, window=None, slots=1, is_unified=True, ubatch=512)
    few = llama_cpp_cells(context, window=512, slots=1, is_unified=True, ubatch=512)
    log = logged("llama.cpp-laguna-q4_0")
    assert close(log, cells * full.bytes_per_block / 2**20, few * sliding.bytes_per_block / 2**20)


def test_a_gguf_from_before_latent_rows_holds_71_times_as_much() -> None:
    model = read_model(CONFIGS["deepseek-v3"])
    row = model.layers[0][0].cell
    assert isinstance(row, LatentCell)
    whole = row.decompressed(padded=False)
    assert whole is not None
    assert [whole.heads * whole.k_dim, whole.heads * whole.v_dim] == logged("llama-cpp-python-1939")["logged"]
    dtype = kv_dtype("f16")
    assert 61 * whole.cell_bytes(dtype, 1) == 4_997_120
    assert whole.cell_bytes(dtype, 1) // row.cell_bytes(dtype, 1) == 71


def test_every_log_is_reproduced_by_a_test_here() -> None:
    others = {log["id"] for log in LOGS} - {log["id"] for log in VLLM_LOGS}
    assert others == {
        *("sgl-11309-new", "sgl-11309-old", "trt-1400", "trt-2268", "trt-tutorials-150"),
        *("llama.cpp-5328", "llama.cpp-laguna-q4_0", "llama-cpp-python-1939"),
    }
    assert all(
        group.kind in Kind for group in group_layers(read_model(CONFIGS["llama-2-7b"]).layers, Storage(kv_dtype("bf16")))
    )
