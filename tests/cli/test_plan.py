"""`kvgate plan` as a person and as a program call it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.core.geometry.model_config import read_model, text_config
from gateway.core.geometry.plan import LENGTHS, PlanSettings, make_plan, naive_rate
from gateway.core.geometry.precision import kv_dtype

ROOT = Path(__file__).parents[2]
FILE = json.loads((ROOT / "tests" / "core" / "golden" / "cases.json").read_text())
CONFIGS: dict[str, Any] = FILE["configs"]
GIB = 2**30


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def planned(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen3.5-27b"]))
    return tmp_path


def config_file(tmp_path: Path, name: str) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(CONFIGS[name]))
    return str(path)


CASES = [
    case for case in FILE["cases"] if case["id"] in ("deepseek-v4-flash/fp8/tp1", "gemma-4-31b/bf16/tp1", "lfm2-350m/fp8/tp1")
]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_json_has_the_form_of_the_golden_file(case: dict[str, Any], tmp_path: Path) -> None:
    name = case["id"].split("/")[0]
    engine, expect = case["engine"], case["expect"]
    found = planned(
        *("--config", config_file(tmp_path, name), "--engine", engine["name"], "--kv-dtype", engine["kv_dtype"]),
        *("--block-tokens", str(engine["block_size"])),
    )
    for key, value in expect.items():
        assert found.get(key) == value, key
    if "vllm" in expect:
        assert (found["bytes_per_block"], found["blocks_at"]) == (
            expect["vllm"]["bytes_per_block"],
            expect["vllm"]["blocks_at"],
        )
    else:
        assert (found["bytes_per_block"], found["blocks_at"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("gemma-4-31b/bf16/tp8pp1", ("--tp", "8", "--kv-dtype", "bf16")),
        ("deepseek-v3/bf16/tp1pp4", ("--pp", "4")),
        ("qwen3-30b-a3b/bf16/tp1pp2", ("--pp", "16+32")),
    ],
)
def test_ranks_and_stages_have_the_form_of_the_golden_file(name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    case = next(case for case in FILE["cases"] if case["id"] == name)
    found = planned("--config", config_file(tmp_path, name.split("/")[0]), *flags)
    for key, value in case["expect"].items():
        assert found[key] == value, key


def test_text_says_groups_blocks_sessions_and_what_is_assumed(folder: Path) -> None:
    result = run("--config", str(folder), "--memory", "80GiB", "--weights", "52GiB", "--runtime", "5GiB", "--reserve", "5%")
    assert result.exit_code == 0
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```\n(qwen3_5_text:.*?)\n```", readme, re.DOTALL)
    assert example is not None
    assert result.stdout.startswith(example[1])
    for sentence in (
        "its 1 draft layer(s) are not counted",
        "not a promise for a card",
        "peak of a prefill",
        "prefix caching is on",
    ):
        assert sentence in result.stdout


def test_the_readme_table_is_what_plan_computes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([a-z0-9.-]+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\S+) \|$", readme, re.MULTILINE
    )
    assert len(rows) >= 15
    dtype = kv_dtype("bf16")
    for name, naive, rate, *factors, blocks in rows:
        model = read_model(CONFIGS[name])
        plan = make_plan(model, PlanSettings(dtype=dtype))
        formula = naive_rate(text_config(CONFIGS[name]), dtype, layers=len(model.layers))
        assert formula is not None
        assert (f"{int(formula):,}", f"{int(plan.rate):,}") == (naive, rate), name
        assert [f"{float(formula * tokens / plan.bytes_at(tokens)):.2f}" for tokens in LENGTHS] == factors, name
        if not plan.no_pool:
            held = plan.blocks_at(32768)[0] * plan.pools_at(32768)[0].bytes_per_block
            assert f"{held / 2**20:,.0f}" == blocks, name


def test_bare_dimensions_give_the_known_figures() -> None:
    memory = ("--memory", "24GiB", "--weights", "12GiB", "--runtime", "3GiB", "--reserve", "3GiB")
    found = planned("--layers", "32", "--kv-heads", "8", "--head-dim", "128", *memory)
    assert (found["bytes_per_token"], found["bytes_at"]["4096"]) == (131072, 512 * 2**20)
    assert found["memory"]["available_bytes"] == 6 * GIB
    assert found["memory"]["sessions_by_bytes_at"]["4096"] == 12
    assert found["memory"]["sessions_at"]["4096"] == 11  # one block of vLLM's pool holds nothing


def test_weights_come_from_the_index_beside_the_config_and_are_said_to_be_an_estimate(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 52 * GIB}, "weight_map": {}}))
    found = planned("--config", str(folder), "--memory", "40GiB", "--tp", "2")
    assert (found["memory"]["weights_bytes"], found["memory"]["weights_are_an_estimate"]) == (26 * GIB, True)
    assert any("the weights are an estimate" in sentence for sentence in found["assumptions"])


@pytest.mark.parametrize("engine", ["sglang", "tgi", "llama_cpp", "tensorrt_llm"])
def test_every_engine_can_be_planned(engine: str, tmp_path: Path) -> None:
    found = planned(
        "--config", config_file(tmp_path, "llama-3.1-8b"), "--engine", engine, "--memory", "40GiB", "--weights", "16GiB"
    )
    assert found["pools"][0]["blocks_at"]["4096"] * found["pools"][0]["bytes_per_block"] == 512 * 2**20
    assert found["memory"]["sessions_at"]["4096"] in (47, 48)


def test_memory_of_the_host_is_not_counted_and_it_says_why(folder: Path) -> None:
    base = ("--config", str(folder), "--memory", "80GiB", "--weights", "52GiB")
    with_swap = planned(*base, "--swap-space", "64GiB", "--cpu-offload", "10GiB")
    assert with_swap["memory"] == planned(*base)["memory"]
    assert sum("is not counted" in sentence for sentence in with_swap["assumptions"]) == 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "give --config, or the bare dimensions"),
        (("--layers", "32"), "--kv-heads, --head-dim is missing"),
        (("--layers", "0", "--kv-heads", "8", "--head-dim", "64"), "num_hidden_layers"),
        (("--layers", "1", "--kv-heads", "8", "--head-dim", "64", "--engine", "ollama"), "is not one of"),
        (("--layers", "1", "--kv-heads", "8", "--head-dim", "64", "--memory", "24", "--weights", "1GiB"), "write its unit"),
        (("--layers", "1", "--kv-heads", "8", "--head-dim", "64", "--memory", "24GiB"), "--weights is missing"),
        (("--layers", "1", "--kv-heads", "8", "--head-dim", "64", "--memory", "8GiB", "--weights", "9GiB"), "leave nothing"),
        (("--layers", "1", "--kv-heads", "8", "--head-dim", "64", "--kv-dtype", "fp3"), "is not a KV dtype"),
        (("--layers", "8", "--kv-heads", "8", "--head-dim", "64", "--pp", "3+3"), "hold 6 layers"),
        (("--config", "/nowhere"), "cannot be read"),
    ],
)
def test_what_cannot_be_planned_ends_with_one_line(flags: tuple[str, ...], sentence: str) -> None:
    result = run(*flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_picture_is_drawn_where_the_extra_is_there(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = folder / "out.svg"
    result = run("--config", str(folder), "--memory", "80GiB", "--weights", "52GiB", "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert picture.read_text(encoding="utf-8").lstrip().startswith("<?xml")
