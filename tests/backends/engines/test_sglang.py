"""What is made of SGLang's answers."""

import pytest

from gateway.backends.capacity import Capacity, GivenCapacity, work_out
from gateway.backends.engines.engine import EngineReport
from gateway.backends.engines.sglang import Sglang
from gateway.backends.fitted_geometry import GivenGeometry
from gateway.backends.probe import Probe
from gateway.core.geometry.model_config import read_model
from gateway.core.reserve import Reserve
from support.engine_scripts import script_sglang
from support.scripted_engine import ScriptedEngine

SGLANG = Sglang()
NO_RESERVE = Reserve.parse("0")


async def reported(probe: Probe) -> EngineReport:
    report = await SGLANG.probe(probe)
    assert report is not None
    return report


def planned(report: EngineReport, given: GivenCapacity) -> Capacity:
    capacity = work_out(report, given)
    assert isinstance(capacity, Capacity), capacity
    return capacity


@pytest.mark.parametrize("old_route", [False, True])
async def test_its_tokens_are_the_budget_and_a_page_is_a_block(engine: ScriptedEngine, probe: Probe, old_route: bool) -> None:
    script_sglang(engine, tokens=65_536, page=64, old_route=old_route)
    report = await reported(probe)
    capacity = planned(report, GivenCapacity(reserve=NO_RESERVE))
    assert (capacity.budget.blocks, capacity.weighing.block_tokens, capacity.budget.seats) == (1024, 64, 48)
    assert (capacity.weighing.max_context, report.version) == (32768, "0.5.23")
    assert capacity.weighing.sequence_blocks(65) == 2  # 64 written tokens, and the page that it keeps in hand


async def test_without_the_route_its_gauges_tell_the_same(engine: ScriptedEngine, probe: Probe) -> None:
    script_sglang(engine)
    engine.json("/server_info", {"detail": "Not Found"}, status=404)
    assert (await reported(probe)).usable_blocks == 65_536


async def test_what_runs_is_read_and_the_counter_of_retractions_is_the_cumulative_one(
    engine: ScriptedEngine, probe: Probe
) -> None:
    script_sglang(engine, page=64, used=100, retracted=4)
    use = await SGLANG.read_live(probe, await reported(probe))
    assert (use.used_blocks, use.running, use.waiting, use.preemptions) == (2, 2, 1, 4)


async def test_without_metrics_it_is_served_all_the_same(engine: ScriptedEngine, probe: Probe) -> None:
    script_sglang(engine, metrics=False)
    report = await reported(probe)
    use = await SGLANG.read_live(probe, report)
    assert (report.usable_blocks, use.running, use.identity) == (65_536, None, report.identity)


async def test_several_ranks_are_planned_as_one_and_said_so(engine: ScriptedEngine, probe: Probe) -> None:
    script_sglang(engine, dp_size=4)
    report = await reported(probe)
    assert report.usable_blocks == 65_536
    assert "4 data-parallel ranks" in report.warnings[0]


async def test_a_second_pool_is_a_warning_until_the_config_weighs_it(engine: ScriptedEngine, probe: Probe) -> None:
    script_sglang(engine, tokens=10_000, more='sglang:swa_used_tokens{model_name="tiny"} 0.0\n')
    report = await reported(probe)
    assert "second pool" in planned(report, GivenCapacity(reserve=NO_RESERVE)).warnings[0]
    words = ["sliding_attention", "full_attention"] * 2
    config = {"model_type": "gpt_oss", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8}
    model = read_model({**config, "layer_types": words, "sliding_window": 128})
    capacity = planned(report, GivenCapacity(reserve=NO_RESERVE, geometry=GivenGeometry(model)))
    # 0.8 sliding slots for each full one: a short sequence takes a quarter more than its tokens.
    assert capacity.weighing.sequence_blocks(801) == 1001
    # A long one leaves the window behind, but for the chunk in flight: its full slots decide.
    assert capacity.weighing.sequence_blocks(20_001) == 20_001
