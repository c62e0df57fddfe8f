"""What every engine's file keeps, over the whole table: right answers, wrong ones, none, and garbage."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.backends.engines import AUTO, ENGINES, CountCall, EngineReport, identify
from gateway.backends.probe import Answer, NeedsKey, Probe, Prober, RememberingProbe
from gateway.core.errors import UpstreamFailed
from gateway.core.names import BackendName
from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from support.engine_scripts import (
    script_dynamo,
    script_llama_cpp,
    script_plain_server,
    script_sglang,
    script_tgi,
    script_transformers,
    script_vllm,
)
from support.scripted_engine import NO_TLS, Scripted, ScriptedEngine

Script = Callable[[ScriptedEngine], None]
SCRIPTS: dict[str, Script] = {
    "vllm": script_vllm,
    "sglang": script_sglang,
    "dynamo": script_dynamo,
    "llama_cpp": script_llama_cpp,
    "tgi": script_tgi,
    "transformers": script_transformers,
    "static": script_plain_server,
}
PATHS = ("/v1/models", "/version", "/metrics", "/props", "/health", "/openapi.json", "/tokenize", "/info", "/server_info")
GARBAGE: dict[str, Scripted] = {
    "not JSON": Scripted(body=b"<html>hello</html>"),
    "not UTF-8": Scripted(body=b"\xff\xfe\x00vllm:cache_config_info{"),
    "null": Scripted(body=b"null"),
    "a list": Scripted(body=b"[[[[]]]]"),
    "deep": Scripted(body=b"[" * 100_000),
    "wrong kinds": Scripted(
        body=json.dumps(
            {
                "data": [{"id": 7}, None, {"id": "x", "max_model_len": "many", "meta": []}, {"id": "y", "max_model_len": -5}],
                "version": {"a": 1},
                "total_slots": "four",
                "default_generation_settings": 9,
                "paths": [],
                "info": None,
            }
        ).encode()
    ),
    "numbers beyond reason": Scripted(
        body=b'{"data":[{"id":"x","max_model_len":1e400,"meta":{"n_ctx":99999999999999999999}}],"total_slots":1e30}'
    ),
    "odd metrics": Scripted(
        body=b'vllm:cache_config_info{num_gpu_blocks="None",block_size="-3",kv_cache_size_tokens="x"} 1\n'
        b"vllm:num_requests_running NaN\nvllm:num_requests_running{ 5\nllamacpp:requests_processing +Inf\n"
        b'dynamo_frontend_model_total_kv_blocks{model="m"} -4\ndynamo_frontend_model_context_length NaN\n'
    ),
    "an empty answer": Scripted(),
    "a redirect": Scripted(302, headers={"location": "http://127.0.0.1:9/"}),
    "a teapot": Scripted(418, b"short and stout"),
}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture
async def probe(engine: ScriptedEngine) -> AsyncIterator[Probe]:
    prober = Prober(tls=NO_TLS)
    yield prober.probe(BackendName("a"), engine.url)
    await prober.close()


@pytest.mark.parametrize("name", ENGINES)
async def test_it_knows_itself_by_what_it_answers(name: str, engine: ScriptedEngine, probe: Probe) -> None:
    SCRIPTS[name](engine)
    report = await ENGINES[name].probe(probe)
    assert report is not None
    assert report.engine == name


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "static"])
async def test_among_all_it_is_the_one_that_is_found(name: str, engine: ScriptedEngine, probe: Probe) -> None:
    SCRIPTS[name](engine)
    found, report = await identify(RememberingProbe(probe), AUTO, ENGINES["static"])
    assert (found.name, report.engine) == (name, name)


async def test_a_server_that_nobody_knows_is_unknown_and_its_models_are_read(engine: ScriptedEngine, probe: Probe) -> None:
    script_plain_server(engine)
    found, report = await identify(RememberingProbe(probe), AUTO, ENGINES["vllm"])
    assert (found.name, report.engine, dict(report.models)) == ("static", "unknown", {"any": 4096})


async def test_each_page_is_asked_for_once_in_one_round(engine: ScriptedEngine, probe: Probe) -> None:
    script_plain_server(engine)
    await identify(RememberingProbe(probe), AUTO, ENGINES["static"])
    assert all(len(engine.asked(path)) <= 1 for path in PATHS)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("mine", [name for name in ENGINES if name != "static"])
async def test_it_does_not_claim_another_one_s_server(name: str, mine: str, engine: ScriptedEngine, probe: Probe) -> None:
    SCRIPTS[name](engine)
    report = await ENGINES[mine].probe(probe)
    assert (report is not None) == (name == mine)


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", ENGINES)
async def test_garbage_is_no_figure_and_no_exception(name: str, garbage: str, engine: ScriptedEngine, probe: Probe) -> None:
    for path in PATHS:
        engine.answers[path] = GARBAGE[garbage]
    report = await ENGINES[name].probe(probe) or EngineReport(name)
    assert report.usable_blocks is None or report.usable_blocks > 0
    assert report.block_tokens is None or report.block_tokens > 0
    assert all(context is None or 0 < context < 2**48 for context in report.models.values())
    use = await ENGINES[name].read_live(probe, report)
    assert all(figure is None or figure >= 0 for figure in (use.used_blocks, use.running, use.waiting, use.preemptions))


@pytest.mark.parametrize("name", ENGINES)
async def test_a_live_read_finds_the_identity_that_the_report_had(name: str, engine: ScriptedEngine, probe: Probe) -> None:
    SCRIPTS[name](engine)
    report = await ENGINES[name].probe(probe)
    assert report is not None
    assert (await ENGINES[name].read_live(probe, report)).identity == report.identity


@pytest.mark.parametrize("name", ENGINES)
async def test_a_server_that_wants_a_key_raises_that_and_nothing_else(name: str, engine: ScriptedEngine, probe: Probe) -> None:
    for path in PATHS:
        engine.json(path, {"error": "Unauthorized"}, status=401)
    with pytest.raises(NeedsKey):
        await ENGINES[name].probe(probe)


@pytest.mark.parametrize("name", ENGINES)
async def test_a_server_that_cannot_serve_yet_has_not_answered(name: str, engine: ScriptedEngine, probe: Probe) -> None:
    for path in PATHS:
        engine.json(path, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, status=503)
    with pytest.raises(UpstreamFailed, match="503"):
        await ENGINES[name].probe(probe)


CHAT = InferenceRequest(
    'a "quoted" model',
    (Prompt(20),),
    CapState.ABSENT,
    None,
    is_chat=True,
    to_count=Countable(chat={"messages": b'[{"role": "user", "content": "\\u00e9"}]', "tools": b"[]"}),
)
TEXTS = InferenceRequest(
    "m", (Prompt(3), Prompt(4)), CapState.ABSENT, None, is_chat=False, to_count=Countable(texts=(b'"abc"', b'"d\\u00e9"'))
)
RESPONSES = InferenceRequest(
    "m",
    (Prompt(20),),
    CapState.ABSENT,
    None,
    is_chat=True,
    to_count=Countable(chat={"messages": b"[]"}, responses={"input": b'"\\u00e9"'}),
)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("request_", "calls"), [(CHAT, 1), (TEXTS, 2), (RESPONSES, 1)])
def test_it_asks_one_question_for_each_prompt_in_strict_json_or_none_at_all(
    name: str, request_: InferenceRequest, calls: int
) -> None:
    asked = ENGINES[name].count_calls(request_)
    if asked is None:
        return
    assert len(asked) == calls
    for call in asked:
        assert isinstance(json.loads(call.body), dict)


ODD_COUNTS: list[object] = [
    None,
    [],
    "x",
    {"count": -1},
    {"count": True},
    {"count": "9"},
    {"input_tokens": 1e99},
    {"tokens": "abc"},
]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("odd", ODD_COUNTS)
def test_an_odd_count_is_none_or_a_whole_number(name: str, odd: object) -> None:
    calls: tuple[CountCall, ...] = (*(ENGINES[name].count_calls(CHAT) or ()), *(ENGINES[name].count_calls(TEXTS) or ()))
    assert all((count := call.read(odd)) is None or count >= 0 for call in calls)


async def test_a_page_larger_than_what_was_asked_for_is_not_read_to_its_end(engine: ScriptedEngine, probe: Probe) -> None:
    engine.text("/metrics", "x" * 100_000)
    with pytest.raises(UpstreamFailed, match="larger than 1000 bytes"):
        await probe.get("/metrics", max_bytes=1000)


async def test_a_silent_server_is_given_up_in_time(engine: ScriptedEngine) -> None:
    engine.answers["/v1/models"] = Scripted(gate=asyncio.Event())
    prober = Prober(tls=NO_TLS, limit_s=0.05)
    with pytest.raises(UpstreamFailed, match="no answer to /v1/models within"):
        await prober.probe(BackendName("a"), engine.url).get("/v1/models")
    await prober.close()


def test_json_that_is_not_strict_is_none() -> None:
    assert [Answer(200, body).json() for body in (b"NaN", b'{"a": Infinity}', b"1e999", b"{", b"\xff")] == [None] * 5
