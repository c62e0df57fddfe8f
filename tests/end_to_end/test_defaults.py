"""The cases' loads once more with the defaults: nothing but the backend is set, and all that is asserted is how it ends.

All are answered, and afterwards the gateway is idle.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.bench import CHAT, COMPLETIONS, FULL_CAP, MODEL, TWIN_CAP, Bench, block_body, chat_body, running_bench
from support.fake_engine import FakeEngine
from support.fake_upstream import eventually, reset_before_head
from support.gates import held_head, ticking_stream
from support.http_client import Connection, statuses

pytestmark = pytest.mark.asyncio(loop_scope="module")

ODDS = random.Random(7)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    """Nothing is set but the backend."""
    async with running_bench(with_case_settings=False) as running:
        yield running


def mixed_load() -> list[tuple[str, dict[str, object]]]:
    """A bit of everything that clients send."""
    load: list[tuple[str, dict[str, object]]] = []
    for number in range(12):
        load += [
            (CHAT, chat_body(stream=bool(number % 2))),
            (CHAT, chat_body(None)),
            (CHAT, chat_body(None, stream=True)),
            (CHAT, chat_body(32, n=3)),
            (COMPLETIONS, block_body(4, stream=bool(number % 2))),
            (COMPLETIONS, {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 100}),
            (COMPLETIONS, {"model": MODEL, "prompt": "ping", "max_tokens": None}),
        ]
    load += [(CHAT, chat_body(FULL_CAP)), (CHAT, chat_body(TWIN_CAP)), (CHAT, chat_body(TWIN_CAP))]
    ODDS.shuffle(load)
    return load


async def serve_all(bench: Bench) -> None:
    load = mixed_load()
    answers = await asyncio.gather(*(bench.post(target, body) for target, body in load))
    assert statuses(answers) == {200: len(load)}
    assert all(found.is_tidy for found in answers)
    assert (await bench.idle()).received >= len(load)


async def test_a_mixed_load_is_served_whole(bench: Bench) -> None:
    await serve_all(bench)
    assert (await bench.gateway.state()).backend["reserve_blocks"] == 4  # 5 % of 64, rounded up
    await bench.end_case()


async def test_a_mixed_load_is_served_whole_where_the_context_exceeds_the_budget() -> None:
    engine = FakeEngine(num_gpu_blocks=61, kv_cache_size_tokens=976)
    async with running_bench(engine, with_case_settings=False) as small:
        await serve_all(small)


async def test_a_whole_context_runs_alone_into_the_reserve(bench: Bench) -> None:
    found = await bench.post(COMPLETIONS, block_body(64))
    assert (found.status, found.head.number("x-kvgate-blocks")) == (200, 64)
    await bench.end_case()


async def test_clients_that_leave_at_random_leave_nothing_behind(bench: Bench) -> None:
    tag = bench.tag("come-and-go")
    bench.fake.script(tag, ticking_stream())

    async def come_and_go() -> None:
        async with await bench.open(CHAT, chat_body(None if ODDS.random() < 0.3 else 64, stream=True), tag=tag) as client:
            await asyncio.sleep(ODDS.uniform(0, 0.3))
            client.vanish()

    await asyncio.gather(*(come_and_go() for _ in range(60)))
    await bench.idle()
    await bench.end_case()


async def test_an_engine_that_fails_leaves_nothing_behind(bench: Bench) -> None:
    tag = bench.tag("fails")
    bench.fake.script(tag, reset_before_head())
    answers = await asyncio.gather(*(bench.post(CHAT, chat_body(None), tag=tag) for _ in range(20)))
    assert statuses(answers) == {502: 20}
    await bench.end_case()


async def test_uploads_that_never_end_and_nonsense_leave_nothing_behind(bench: Bench) -> None:
    for _ in range(5):
        async with await Connection.open(bench.gateway.url) as client:
            await client.send_raw(client.request_bytes("POST", CHAT, json.dumps(chat_body()).encode())[:-10])
            client.vanish()
    for nonsense in ("", "[]", '{"model":', '"text"', "7"):
        async with await Connection.open(bench.gateway.url) as client:
            assert (await client.ask("POST", CHAT, nonsense.encode())).status == 400
    await bench.end_case()


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_observing_admits_everything_and_says_what_would_have_waited(mode: str) -> None:
    async with running_bench(with_case_settings=False, KVGATE_MODE=mode) as bench:
        gate, tag = asyncio.Event(), bench.tag("observed")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        async with (
            await bench.open(CHAT, chat_body(TWIN_CAP), tag=tag) as first,
            await bench.open(CHAT, chat_body(TWIN_CAP), tag=tag) as second,
        ):
            wanted = 2 if mode == "observe" else 1
            await bench.state_where(
                lambda state: state.in_flight == wanted and state.queued == 2 - wanted, f"{wanted} in flight"
            )
            await eventually(lambda: bench.fake.open_requests(tag) == wanted)
            gate.set()
            assert (await first.answer()).status == (await second.answer()).status == 200
        assert bench.fake.high_water(tag) == wanted
        await bench.idle()
