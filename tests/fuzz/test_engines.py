"""Whatever an engine answers to our questions ends in a report, in nothing, or in a failure of that engine: never in a bug."""

import asyncio
import json
import random
from collections.abc import Iterator

import pytest

from fuzz.bodies import SAMPLES
from fuzz.mutation import mutate, try_all
from fuzz.test_texts import PAGE
from gateway.backends.capacity import Capacity, GivenCapacity, work_out
from gateway.backends.engines import ENGINES, EngineReport, LiveUse, identify
from gateway.backends.fitted_geometry import GivenGeometry, GivenMemory
from gateway.backends.probe import Answer, NeedsKey, RememberingProbe
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.geometry.model_config import read_model
from gateway.core.names import BackendName
from gateway.dialects import DIALECTS

ANSWERS: dict[str, list[bytes]] = {
    "/v1/models": [
        b'{"object":"list","data":[{"id":"tiny","owned_by":"vllm","max_model_len":1024,"parent":null}]}',
        b'{"object":"list","data":[{"id":"smollm2","owned_by":"llamacpp","meta":{"n_ctx":1024,"n_ctx_train":8192}}]}',
        b'{"object":"list","data":[{"id":"tiny","owned_by":"sglang","max_model_len":1024}]}',
        b'{"object":"list","data":[{"id":"tiny","owned_by":"nvidia","context_window":1024}]}',
    ],
    "/version": [b'{"version":"0.32.0+cpu"}'],
    "/metrics": [
        PAGE,
        b'vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="2080",num_gpu_blocks="65"} 1.0\n',
        b'dynamo_frontend_model_total_kv_blocks{model="t"} 64\ndynamo_frontend_model_kv_cache_block_size{model="t"} 32\n',
        b'sglang:max_total_num_tokens{tp_rank="0"} 65536.0\nsglang:kv_used_tokens{tp_rank="0"} 100.0\n',
        b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 3\n",
    ],
    "/props": [b'{"default_generation_settings":{"n_ctx":1024},"total_slots":4,"build_info":"b1"}'],
    "/openapi.json": [
        b'{"info":{"title":"NVIDIA Dynamo OpenAI Frontend","version":"1.6.1"},"paths":{"/load_model":{"post":{}}}}'
    ],
    "/health": [b'{"status":"ok"}'],
    "/server_info": [
        b'{"version":"0.5.23","page_size":64,"max_total_num_tokens":65536,"dp_size":1,"internal_states":[{"page_size":64}]}'
    ],
    "/info": [b'{"model_id":"t","router":"text-generation-router","max_total_tokens":4096,"max_batch_total_tokens":16000}'],
}


SLIDING = read_model(
    {
        "model_type": "gemma3_text",
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "hidden_size": 64,
        "sliding_window": 512,
    }
)


class OddProbe:
    """Answers each path with a mutated sample, with a status that may be odd, or not at all."""

    name = BackendName("odd")
    rank = None
    has_metrics_beside = True

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    async def get(self, path: str, *, max_bytes: int = 0) -> Answer:
        dice = self._dice
        if dice.random() < 0.03:
            raise UpstreamFailed(self.name, dice.choice(list(UpstreamStage)), "odd")
        if dice.random() < 0.02:
            raise NeedsKey
        status = dice.choice((200,) * 12 + (404, 405, 501, 302))
        samples = ANSWERS.get(path, [b"{}"])
        return Answer(status, mutate(dice, samples) if dice.random() < 0.6 else dice.choice(samples))

    async def get_metrics_beside(self) -> Answer:
        return await self.get("/metrics")

    async def post(self, path: str, body: bytes, *, max_bytes: int = 0) -> Answer:
        return await self.get(path)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def check_report(report: EngineReport, use: LiveUse) -> None:
    givens = (GivenCapacity(), GivenCapacity(kv_blocks=64, block_tokens=16), GivenCapacity(share=0.5, max_context=100))
    for given in (*givens, GivenCapacity(geometry=GivenGeometry(SLIDING), memory=GivenMemory(2**34, 2**33))):
        for distrust in (None, "it preempted"):
            capacity = work_out(report, given, distrust=distrust)
            if isinstance(capacity, Capacity):
                assert 0 <= capacity.budget.reserve_blocks < capacity.budget.blocks
                assert capacity.weighing.sequence_blocks(10) >= 1
                assert all("\n" not in sentence for sentence in (*capacity.assumptions, *capacity.warnings))
            else:
                assert capacity.message
    for figure in (use.used_blocks, use.running, use.waiting, use.preemptions):
        assert figure is None or type(figure) is int


def test_mutated_answers_end_in_a_report_or_in_a_failure_of_the_engine(
    fuzz_inputs: int, loop: asyncio.AbstractEventLoop
) -> None:
    async def look(dice: random.Random) -> None:
        probe = RememberingProbe(OddProbe(dice))
        named = dice.choice(("auto", "auto", *ENGINES))
        try:
            engine, report = await identify(probe, named, ENGINES["static"])
            use = await engine.read_live(probe, report)
        except (UpstreamFailed, NeedsKey):
            return
        check_report(report, use)

    def check(_: bytes, dice: random.Random) -> None:
        loop.run_until_complete(look(dice))

    try_all("engines", fuzz_inputs, [b""], check)


def test_mutated_counts_are_numbers_or_nothing(fuzz_inputs: int) -> None:
    calls = [
        call
        for path, samples in SAMPLES.items()
        for body in samples[:1]
        for engine in ENGINES.values()
        for call in engine.count_calls(DIALECTS[path].read_request(body)) or ()
    ]
    samples = [b'{"count":14,"tokens":[1,2,3],"max_model_len":10}', b'{"input_tokens":32}', b'{"tokens":[1,2]}']

    def check(data: bytes, dice: random.Random) -> None:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        for call in calls:
            count = call.read(answer)
            assert count is None or (type(count) is int and count >= 0)

    try_all("counts", fuzz_inputs, samples, check)
