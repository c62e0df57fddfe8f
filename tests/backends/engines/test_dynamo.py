"""What is made of the answers of Dynamo's frontend."""

from gateway.backends.engines.dynamo import Dynamo
from gateway.backends.probe import Probe, Prober
from gateway.core.names import BackendName
from support.engine_scripts import script_dynamo
from support.scripted_engine import NO_TLS, ScriptedEngine


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


WORKER_PAGE = (
    'vllm:num_preemptions_total{engine="0",model_name="tiny"} 7\nvllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5\n'
)


async def test_what_the_frontend_does_not_tell_is_read_from_the_workers_own_page(engine: ScriptedEngine) -> None:
    script_dynamo(engine)
    prober = Prober(tls=NO_TLS)
    async with ScriptedEngine() as worker:
        worker.text("/metrics", WORKER_PAGE)
        probe = prober.probe(BackendName("a"), engine.url, key="s3cret", metrics_url=f"{worker.url}/metrics")
        report = await Dynamo().probe(probe)
        assert report is not None
        use = await Dynamo().read_live(probe, report)
        assert (use.running, use.used_blocks, use.preemptions) == (2, 32, 7)
        assert "authorization" not in worker.seen[0].headers  # the key is the frontend's
        await worker.go_away()
        # The frontend serves on: what is not told now is unknown, and nothing is unhealthy for it.
        use = await Dynamo().read_live(probe, report)
        assert (use.running, use.used_blocks, use.preemptions) == (2, None, None)
    await prober.close()
