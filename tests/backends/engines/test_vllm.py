"""What is made of vLLM's answers."""

import json

import pytest

from gateway.backends.engines import EngineReport
from gateway.backends.engines.vllm import Vllm
from gateway.backends.probe import Probe, Prober
from gateway.core.names import BackendName
from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from support.engine_scripts import CPU_MAPPED_BYTES, GPU_MAPPED_BYTES, script_vllm
from support.scripted_engine import NO_TLS, ScriptedEngine

VLLM = Vllm()


async def report_of(probe: Probe) -> EngineReport:
    report = await VLLM.probe(probe)
    assert report is not None
    return report


async def test_one_block_of_its_pool_never_holds_tokens(engine: ScriptedEngine, probe: Probe) -> None:
    script_vllm(engine)
    report = await report_of(probe)
    assert (report.usable_blocks, report.total_blocks, report.block_tokens, report.cache_tokens) == (64, 65, 32, 2080)
    assert (report.version, dict(report.models)) == ("0.32.0+cpu", {"tiny": 1024})


@pytest.mark.parametrize("name", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"])
async def test_its_gauge_is_the_used_part_of_the_usable_blocks(name: str, engine: ScriptedEngine, probe: Probe) -> None:
    script_vllm(engine, usage=19 / 64, usage_name=name, running=3, waiting=2, preemptions=7)
    use = await VLLM.read_live(probe, await report_of(probe))
    assert (use.used_blocks, use.running, use.waiting, use.preemptions) == (19, 3, 2, 7)


async def test_several_engines_behind_one_address_are_planned_as_one(engine: ScriptedEngine, probe: Probe) -> None:
    script_vllm(engine, blocks=130, engines=2, usage=0.5)
    report = await report_of(probe)
    assert (report.usable_blocks, report.total_blocks) == (64, 65)
    assert "2 engines" in report.warnings[0]
    assert (await VLLM.read_live(probe, report)).used_blocks == 64


@pytest.mark.parametrize(
    ("version", "mapped_bytes", "block_tokens", "more", "spare_blocks"),
    [
        ("0.32.0+cpu", GPU_MAPPED_BYTES, 32, "", 0),
        ("0.32.0", CPU_MAPPED_BYTES, 32, "", 0),
        ("0.32.0", CPU_MAPPED_BYTES, 16, "", 1),  # the CPU's backend takes multiples of 32 only
        ("0.32.0", GPU_MAPPED_BYTES, 32, "", 1),
        ("0.32.0", None, 32, "", 1),  # several API servers tell nothing of their process
        ("0.32.0+cpu", CPU_MAPPED_BYTES, 32, 'vllm:spec_decode_num_drafts_total{engine="0"} 0\n', 1),
        ("0.32.0", GPU_MAPPED_BYTES, 16, 'vllm:spec_decode_num_drafts_total{engine="0"} 0\n', 2),
    ],
)
async def test_a_block_is_spared_for_each_sequence_unless_it_is_a_cpu_build_that_does_not_speculate(
    version: str,
    mapped_bytes: float | None,
    block_tokens: int,
    more: str,
    spare_blocks: int,
    engine: ScriptedEngine,
    probe: Probe,
) -> None:
    script_vllm(engine, version=version, mapped_bytes=mapped_bytes, block_tokens=block_tokens, more=more)
    assert (await report_of(probe)).rules.spare_blocks == spare_blocks


@pytest.mark.parametrize(("version", "has_best_of"), [("0.32.0", False), ("0.10.2", True), ("dev", True), ("1.0.0rc1", False)])
async def test_best_of_counts_where_the_version_may_still_run_it(
    version: str, has_best_of: bool, engine: ScriptedEngine, probe: Probe
) -> None:
    script_vllm(engine, version=version)
    assert (await report_of(probe)).rules.has_best_of is has_best_of


@pytest.mark.parametrize("change", [{"started": 2e9}, {"blocks": 33}, {"block_tokens": 64}, {"cache_tokens": 1000}])
async def test_a_new_start_and_another_cache_are_another_identity(
    change: dict[str, float], engine: ScriptedEngine, probe: Probe
) -> None:
    script_vllm(engine)
    report = await report_of(probe)
    script_vllm(engine, **change)  # type: ignore[arg-type]
    assert (await VLLM.read_live(probe, report)).identity != report.identity


async def test_without_metrics_it_is_still_known_and_has_no_figures(engine: ScriptedEngine, probe: Probe) -> None:
    script_vllm(engine)
    engine.forget("/metrics")
    report = await report_of(probe)
    assert (report.usable_blocks, report.block_tokens, dict(report.models)) == (None, None, {"tiny": 1024})


def chat(**members: str) -> InferenceRequest:
    raw = {"messages": "[]", **members}
    countable = Countable(chat={name: text.encode() for name, text in raw.items()})
    return InferenceRequest("m", (Prompt(1),), CapState.ABSENT, None, is_chat=True, to_count=countable)


def asked(request: InferenceRequest) -> dict[str, object]:
    calls = VLLM.count_calls(request)
    assert calls is not None
    body = json.loads(calls[0].body)
    assert isinstance(body, dict)
    return body


def test_what_the_chat_route_hands_to_the_template_is_handed_on_as_its_arguments() -> None:
    body = asked(
        chat(reasoning_effort='"high"', documents='[{"a": 1}]', chat_template_kwargs='{"x": 1, "enable_thinking": false}')
    )
    assert body["chat_template_kwargs"] == {
        "x": 1,
        "reasoning_effort": "high",
        "documents": [{"a": 1}],
        "enable_thinking": False,
    }
    assert body["model"] == "m"


def test_members_that_the_count_does_not_need_stay_behind() -> None:
    assert set(asked(chat(response_format="{}", tools="[]"))) == {"model", "messages", "tools"}


def test_template_arguments_that_are_no_object_cannot_be_counted() -> None:
    assert VLLM.count_calls(chat(reasoning_effort='"high"', chat_template_kwargs="[1]")) is None


async def test_its_page_of_metrics_may_be_at_another_address(engine: ScriptedEngine) -> None:
    """Where a proxy hides it, everything but the page is asked of the backend, and the page where the operator says it is."""
    script_vllm(engine, blocks=65)
    prober = Prober(tls=NO_TLS)
    async with ScriptedEngine() as beside:
        beside.answers["/metrics"] = engine.answers.pop("/metrics")
        probe = prober.probe(BackendName("a"), engine.url, metrics_url=f"{beside.url}/metrics")
        report = await Vllm().probe(probe)
        assert report is not None
        assert report.usable_blocks == 64
        assert engine.asked("/metrics") == []
    await prober.close()
