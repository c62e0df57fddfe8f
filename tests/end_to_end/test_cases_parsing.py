"""Cases P: what a body says, and what is held for it. Nothing runs for which nothing is held."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, MODEL, Bench, blocks_of, chat_body, running_bench, without
from support.fake_engine import FakeEngine, forwarded
from support.fake_upstream import FakeExchange, answer, eventually
from support.gates import held_head
from support.http_client import Answer, ask

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDS = {"model": MODEL, "prompt": [1, 2, 3]}


# -- P-1


UNCAPPED = {
    "null on completions": (COMPLETIONS, {**IDS, "max_tokens": None}),
    "null on chat": (CHAT, chat_body(None, max_tokens=None)),
    "nothing on chat": (CHAT, chat_body(None)),
    "null of both names on chat": (CHAT, chat_body(None, max_tokens=None, max_completion_tokens=None)),
}


@pytest.mark.parametrize("name", UNCAPPED)
async def test_p1_a_request_without_a_cap_holds_the_rest_of_the_context(bench: Bench, name: str) -> None:
    target, body = UNCAPPED[name]
    tag = bench.tag("p1")
    bench.fake.script(tag, bench.engine.completion(first_gap_s=0.03))
    answers = await asyncio.gather(*(bench.post(target, body, tag=tag) for _ in range(2)))
    assert [found.status for found in answers] == [200, 200], answers
    # The engine may run each to the end of its context, which is the whole budget: so they ran one after the other.
    assert bench.fake.high_water(tag) == 1
    for found, seen in zip(answers, bench.fake.tagged(tag), strict=True):
        cap = forwarded(seen).get("max_tokens") or bench.engine.max_model_len - 3
        assert found.head.number("x-kvgate-blocks") >= blocks_of(3, cap)
    await bench.end_case()


async def test_p1_absent_on_completions_means_sixteen_and_holds_no_more(bench: Bench) -> None:
    gate, tag = asyncio.Event(), bench.tag("p1-absent")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    async with await bench.open(COMPLETIONS, IDS, tag=tag) as first, await bench.open(COMPLETIONS, IDS, tag=tag) as second:
        await eventually(lambda: bench.fake.open_requests(tag) == 2)
        gate.set()
        answers = [await first.answer(), await second.answer()]
    assert [found.status for found in answers] == [200, 200]
    assert [found.head.number("x-kvgate-blocks") for found in answers] == [blocks_of(3, 16)] * 2
    await bench.end_case()


# -- P-2


class LaxBody(BaseModel):
    """How an engine on pydantic reads these members: `"240"`, `240.0` and `true` pass as integers, `"yes"` as a boolean."""

    model_config = ConfigDict(extra="ignore")

    max_tokens: int | None = 16
    n: int | None = 1
    stream: bool | None = False
    echo: bool | None = False


class LaxEngine:
    """Answers as an engine on pydantic would, and remembers what it made of each body."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.accepted: list[LaxBody] = []

    async def __call__(self, exchange: FakeExchange) -> None:
        refused = answer(400, b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}')
        try:
            body = LaxBody.model_validate_json(await exchange.body())
        except ValidationError:
            await refused(exchange)
            return
        least = 0 if body.echo else 1
        if not least <= _or(body.max_tokens, 16) <= self.engine.max_model_len or not 1 <= _or(body.n, 1) <= 64:
            await refused(exchange)
            return
        self.accepted.append(body)
        if body.stream:
            stream = b"data: [DONE]\n\n"
            await answer(200, stream, [(b"content-type", b"text/event-stream")], framing="chunked")(exchange)
        else:
            await answer(200, b'{"object":"list","choices":[]}', [(b"content-type", b"application/json")])(exchange)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


ODD_NUMBERS = ["0", "-1", "-9999", '"240"', "240.0", "240.5", "true", "[]", "1e3", '"1_000"', "1" + "0" * 30, '""', "{}"]
ODD_FLAGS = ['"false"', '"true"', '"yes"', "0", "1", "null", "2", "[]", '""', "0.0"]
ODD = [("max_tokens", value) for value in ODD_NUMBERS]
ODD += [("n", value) for value in ODD_NUMBERS]
ODD += [("stream", value) for value in ODD_FLAGS]


@pytest.mark.parametrize("target", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("field", "value"), ODD)
async def test_p2_odd_values_are_refused_or_held_as_the_engine_will_read_them(
    bench: Bench, target: str, field: str, value: str
) -> None:
    base = {**chat_body(32), "n": 1} if target == CHAT else {**IDS, "max_tokens": 32, "n": 1}
    members = {name: json.dumps(member) for name, member in base.items()} | {field: value}
    raw = "{" + ", ".join(f'"{name}": {member}' for name, member in members.items()) + "}"
    await check_odd_body(bench, target, raw.encode())
    await bench.end_case()


async def test_p2_a_cap_of_nothing_is_legal_where_the_prompt_is_echoed(bench: Bench) -> None:
    found = await check_odd_body(bench, COMPLETIONS, json.dumps({**IDS, "max_tokens": 0, "echo": True}).encode())
    assert found.status == 200, found
    await bench.end_case()


async def check_odd_body(bench: Bench, target: str, raw: bytes) -> Answer:
    """Send it; whatever the answer, what ran was held for, by the engine's own reading of what it was sent."""
    tag = bench.tag("p2")
    lax = LaxEngine(bench.engine)
    bench.fake.script(tag, lax)
    found = await ask(bench.gateway.url, "POST", target, raw, {"x-tag": tag})
    assert found.status in (200, 400), (raw, found)
    if not bench.arrivals(tag):
        assert found.status == 400
        assert found.error["code"] == "invalid_request"
        assert found.head.get("x-should-retry") == "false"
        return found
    (seen,) = bench.fake.tagged(tag)
    assert (found.status == 200) == bool(lax.accepted)
    for body in lax.accepted:
        least = blocks_of(3, _or(body.max_tokens, 16)) * _or(body.n, 1)
        assert found.head.number("x-kvgate-blocks") >= least >= 1, (raw, seen.body)
    return found


# -- P-3


MANY = {
    "four texts": ({"prompt": ["a", "b", "c", "d"], "max_tokens": 32}, 4 * blocks_of(1, 32)),
    "one text": ({"prompt": "a", "max_tokens": 32}, blocks_of(1, 32)),
    "lists of ids": ({"prompt": [[1, 2], [3]], "max_tokens": 16}, blocks_of(2, 16) + blocks_of(1, 16)),
    "one id, which is zero": ({"prompt": [0], "max_tokens": 16}, 1),
    "one id and one token more": ({"prompt": [0], "max_tokens": 17}, 2),
    "ids are counted, not written out": ({"prompt": [100000] * 32, "max_tokens": 1}, 2),
    "four samples": ({"prompt": [7], "max_tokens": 32, "n": 4}, 4 * blocks_of(1, 32)),
    "two samples of two": ({"prompt": [[7], [8]], "max_tokens": 48, "n": 2}, 4 * blocks_of(1, 48)),
}


@pytest.mark.parametrize("name", MANY)
async def test_p3_every_sequence_of_a_body_is_held_for(bench: Bench, name: str) -> None:
    body, blocks = MANY[name]
    tag = bench.tag("p3")
    found = await bench.post(COMPLETIONS, {"model": MODEL, **body}, tag=tag)
    assert found.status == 200, found
    held = found.head.number("x-kvgate-blocks")
    if isinstance(body["prompt"], list) and not isinstance(body["prompt"][0], str):
        assert held == blocks  # ids need no estimate
    else:
        assert blocks <= held <= 2 * blocks  # text is bounded from above, each for itself
    assert forwarded(bench.fake.tagged(tag)[0])["prompt"] == body["prompt"]
    await bench.end_case()


@pytest.mark.parametrize(
    "prompt", [[-1], [1, -2], [], [[]], [[1], []], ["a", 1], [1, "a"], [[1], "a"], [1, [2]], [1.5], [None], {"a": 1}, 7, None]
)
async def test_p3_negative_mixed_and_empty_lists_are_refused(bench: Bench, prompt: object) -> None:
    tag = bench.tag("p3-bad")
    found = await bench.post(COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 16}, tag=tag)
    assert found.status == 400, found
    assert found.error["code"] == "invalid_request"
    assert bench.arrivals(tag) == 0
    await bench.end_case()


FILLING = {
    "four texts": {"prompt": ["a", "b", "c", "d"], "max_tokens": 240},
    "four samples": {"prompt": [1], "n": 4, "max_tokens": 240},
}


@pytest.mark.parametrize("name", FILLING)
async def test_p3_four_sequences_fill_the_budget_so_that_another_waits(bench: Bench, name: str) -> None:
    gate, tag, beside = asyncio.Event(), bench.tag("p3-four"), bench.tag("p3-beside")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    async with await bench.open(COMPLETIONS, {"model": MODEL, **FILLING[name]}, tag=tag) as big:
        await eventually(lambda: bench.fake.open_requests(tag) == 1)
        async with await bench.open(CHAT, chat_body(), tag=beside) as std:
            state = await bench.state_where(lambda state: state.queued == 1, "the other waits")
            assert BUDGET_BLOCKS - 5 <= state.held_blocks <= BUDGET_BLOCKS
            assert bench.arrivals(beside) == 0
            gate.set()
            assert (await big.answer()).status == 200
            assert (await std.answer()).status == 200
    await bench.end_case()


# -- P-8


P8_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat_body(None)),
    "chat, streamed": (CHAT, chat_body(None, stream=True)),
    "chat with null": (CHAT, chat_body(None, max_tokens=None)),
    "completions with null": (COMPLETIONS, {**IDS, "max_tokens": None}),
}


def cap_of(body: dict[str, Any]) -> int:
    """The cap that the engine obeys: of two, the newer name."""
    return int(body.get("max_completion_tokens") or body["max_tokens"])


def small_engine() -> FakeEngine:
    """Half the usual blocks beside the usual context: an uncapped request could take twice the budget."""
    return FakeEngine(num_gpu_blocks=33, kv_cache_size_tokens=528)


async def test_p8_an_idle_gateway_serves_a_request_without_a_cap_although_the_context_exceeds_the_budget() -> None:
    async with running_bench(small_engine()) as bench:
        budget = int((await bench.gateway.state()).backend["budget_blocks"])
        assert budget == 32
        for name, (target, body) in P8_BODIES.items():
            tag = bench.tag("p8")
            bench.fake.script(tag, bench.engine.completion(events=2000))  # it runs as far as it is let
            found = await bench.post(target, body, tag=tag)
            assert found.status == 200, (name, found)
            sent = forwarded(bench.fake.tagged(tag)[0])
            cap = cap_of(sent)
            assert cap == found.head.number("x-kvgate-output-cap"), name
            assert budget // 2 <= found.head.number("x-kvgate-blocks") <= budget
            assert blocks_of(3 if target == COMPLETIONS else 7, cap) <= budget
            assert without(sent, "max_tokens", "max_completion_tokens", "stream_options") == without(body, "max_tokens"), name
            await bench.idle()
        assert (await bench.idle()).outcomes == {"capped": len(P8_BODIES)}


async def test_p8_a_default_of_the_operator_is_written_into_the_body_and_told() -> None:
    async with running_bench(small_engine(), KVGATE_DEFAULT_OUTPUT="100") as bench:
        tag = bench.tag("p8-default")
        found = await bench.post(CHAT, chat_body(None), tag=tag)
        assert found.status == 200, found
        sent = forwarded(bench.fake.tagged(tag)[0])
        assert cap_of(sent) == 100
        assert found.head.number("x-kvgate-output-cap") == 100
        told = await bench.post(CHAT, chat_body(20), tag=tag)
        assert told.head.get("x-kvgate-output-cap") is None  # the caller's own cap stays the caller's
        assert forwarded(bench.fake.tagged(tag)[1]) == chat_body(20)
        await bench.idle()


async def test_p8_an_operator_can_require_a_cap() -> None:
    async with running_bench(small_engine(), KVGATE_DEFAULT_OUTPUT="require") as bench:
        tag = bench.tag("p8-require")
        found = await bench.post(CHAT, chat_body(None), tag=tag)
        assert (found.status, found.error["param"]) == (400, "max_tokens")
        assert bench.arrivals(tag) == 0
        assert (await bench.std(tag=tag)).status == 200
        await bench.idle()
