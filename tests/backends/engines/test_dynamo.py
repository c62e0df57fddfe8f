"""What is made of the answers of Dynamo's frontend."""

from gateway.backends.engines.dynamo import Dynamo
from gateway.backends.probe import Probe
from support.engine_scripts import script_dynamo
from support.scripted_engine import ScriptedEngine


async def test_all_blocks_of_a_worker_are_usable_and_its_seats_are_told(engine: ScriptedEngine, probe: Probe) -> None:
    script_dynamo(engine)
    report = await Dynamo().probe(probe)
    assert report is not None
    assert (report.usable_blocks, report.block_tokens, report.seats, dict(report.models)) == (64, 32, 64, {"tiny": 1024})
    assert report.version == "1.6.1"
    use = await Dynamo().read_live(probe, report)
    assert (use.running, use.waiting, use.used_blocks) == (2, 1, None)


async def test_several_models_are_planned_with_the_smallest_cache(engine: ScriptedEngine, probe: Probe) -> None:
    script_dynamo(engine)
    page = engine.answers["/metrics"].body.decode()
    engine.text("/metrics", page + 'dynamo_frontend_model_total_kv_blocks{model="other"} 20\n')
    report = await Dynamo().probe(probe)
    assert report is not None
    assert report.usable_blocks == 20
    assert "2 models" in report.warnings[0]


async def test_blocks_of_different_sizes_are_not_added_up(engine: ScriptedEngine, probe: Probe) -> None:
    script_dynamo(engine)
    page = engine.answers["/metrics"].body.decode()
    engine.text("/metrics", page + 'dynamo_frontend_model_kv_cache_block_size{model="other"} 16\n')
    report = await Dynamo().probe(probe)
    assert report is not None
    assert report.block_tokens is None
    assert "KVGATE_BLOCK_TOKENS" in report.warnings[0]


async def test_a_frontend_without_a_worker_yet_is_known_and_has_no_figures(engine: ScriptedEngine, probe: Probe) -> None:
    script_dynamo(engine)
    engine.json("/v1/models", {"object": "list", "data": []})
    engine.text("/metrics", "")
    report = await Dynamo().probe(probe)
    assert report is not None
    assert (report.usable_blocks, dict(report.models)) == (None, {})
