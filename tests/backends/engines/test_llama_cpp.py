"""What is made of llama.cpp's answers."""

from gateway.backends.capacity import Capacity, GivenCapacity, work_out
from gateway.backends.engines.llama_cpp import LlamaCpp
from gateway.backends.probe import Probe
from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from gateway.core.reserve import Reserve
from support.engine_scripts import script_llama_cpp
from support.scripted_engine import ScriptedEngine

LLAMA = LlamaCpp()


async def planned(probe: Probe, given: GivenCapacity) -> Capacity:
    report = await LLAMA.probe(probe)
    assert report is not None
    capacity = work_out(report, given)
    assert isinstance(capacity, Capacity)
    return capacity


async def test_unknown_sharing_is_taken_as_shared_and_the_override_is_printed(engine: ScriptedEngine, probe: Probe) -> None:
    script_llama_cpp(engine, slots=4, slot_tokens=512)
    capacity = await planned(probe, GivenCapacity(reserve=Reserve.parse("0")))
    assert (capacity.budget.blocks, capacity.budget.seats) == (512, 4)
    assert (capacity.weighing.block_tokens, capacity.weighing.max_context) == (1, 512)
    assert (capacity.rules.fair_share_tokens, capacity.rules.runs_on_when_left) == (128, True)
    assert not capacity.rules.takes_include_usage, "it would move its timings into the event that nobody asked for"
    assert "KVGATE_KV_BLOCKS=2048" in capacity.assumptions[0]


async def test_the_override_for_split_caches_silences_the_assumption(engine: ScriptedEngine, probe: Probe) -> None:
    script_llama_cpp(engine, slots=4, slot_tokens=512)
    capacity = await planned(probe, GivenCapacity(kv_blocks=2048, reserve=Reserve.parse("0")))
    assert capacity.rules.fair_share_tokens is None
    assert capacity.assumptions == ()


async def test_one_slot_shares_with_nobody(engine: ScriptedEngine, probe: Probe) -> None:
    script_llama_cpp(engine, slots=1)
    capacity = await planned(probe, GivenCapacity())
    assert capacity.rules.fair_share_tokens is None
    assert capacity.assumptions == ()


async def test_what_runs_and_what_waits_is_read_where_the_metrics_page_was_turned_on(
    engine: ScriptedEngine, probe: Probe
) -> None:
    script_llama_cpp(engine)
    report = await LLAMA.probe(probe)
    assert report is not None
    use = await LLAMA.read_live(probe, report)
    assert (use.running, use.waiting, use.used_blocks, use.preemptions) == (1, 3, None, None)
    script_llama_cpp(engine, metrics=False)
    assert (await LLAMA.read_live(probe, report)).running is None


def test_a_responses_body_is_counted_by_its_own_route_and_as_it_came() -> None:
    countable = Countable(chat={"messages": b"[]"}, responses={"input": b'"caf\\u00e9"', "instructions": b'"x"'})
    request = InferenceRequest("m", (Prompt(1),), CapState.ABSENT, None, is_chat=True, to_count=countable)
    calls = LLAMA.count_calls(request)
    assert calls is not None
    (call,) = calls
    assert (call.path, call.body) == ("/v1/responses/input_tokens", b'{"input":"caf\\u00e9","instructions":"x"}')
    assert call.read({"input_tokens": 31, "object": "response.input_tokens"}) == 31
