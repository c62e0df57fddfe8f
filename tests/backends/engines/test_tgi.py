"""What is made of text-generation-inference's answers."""

from gateway.backends.capacity import Capacity, GivenCapacity, NoCapacity, work_out
from gateway.backends.engines.tgi import Tgi
from gateway.backends.probe import Probe
from gateway.core.reserve import Reserve
from support.engine_scripts import script_tgi
from support.scripted_engine import ScriptedEngine

TGI = Tgi()


async def test_its_token_limit_is_the_budget(engine: ScriptedEngine, probe: Probe) -> None:
    script_tgi(engine, tokens=16_000, context=4096)
    report = await TGI.probe(probe)
    assert report is not None
    capacity = work_out(report, GivenCapacity(reserve=Reserve.parse("0")))
    assert isinstance(capacity, Capacity)
    assert (capacity.budget.blocks, capacity.weighing.block_tokens, capacity.weighing.max_context) == (16_000, 1, 4096)
    use = await TGI.read_live(probe, report)
    assert (use.running, use.waiting) == (2, 3)


async def test_where_it_does_not_tell_the_setting_is_named(engine: ScriptedEngine, probe: Probe) -> None:
    script_tgi(engine, tokens=None)
    report = await TGI.probe(probe)
    assert report is not None
    outcome = work_out(report, GivenCapacity())
    assert isinstance(outcome, NoCapacity)
    assert "KVGATE_KV_BLOCKS" in outcome.message
