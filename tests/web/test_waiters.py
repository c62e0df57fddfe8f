"""Who waits while an engine comes back as another is granted by what it needs there now."""

import asyncio
import json

from gateway.core.names import STANDARD_LANE, BackendName, PoolName
from gateway.core.outcomes import Outcome
from gateway.core.snapshots import LineSnapshot
from gateway.dialects import DIALECTS
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.fake_upstream import eventually
from support.rooms import clock_of, held_blocks, open_rooms
from support.scripted_engine import ScriptedEngine
from support.tickets import ticket

CHAT = "/v1/chat/completions"
A = BackendName("a")
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16},
}


def start_calls(rooms: Rooms, number: int, **body: object) -> tuple[list[Caller], list[asyncio.Task[None]]]:
    callers = []
    for _ in range(number):
        said = {"model": "tiny", "messages": [{"role": "user", "content": "ping"}], **body}
        callers.append(Caller(body=json.dumps(said).encode()))
    return callers, [
        asyncio.create_task(serve_request(rooms, DIALECTS[CHAT], each.scope, each.receive, each.send)) for each in callers
    ]


def line_of(rooms: Rooms) -> LineSnapshot:
    return rooms.controller.snapshot().pools[PoolName("a")][STANDARD_LANE]


async def restart(rooms: Rooms, engine: ScriptedEngine, *, blocks: int, context: int, cache_tokens: int) -> None:
    """Another engine of the same address, seen by the next look."""
    script_vllm(engine, blocks=blocks, context=context, cache_tokens=cache_tokens, started=1.8e9)
    clock_of(rooms).advance(2.0)
    await rooms.roster.look()


async def test_a_longer_context_makes_those_in_line_as_large_as_they_can_now_become(engine: ScriptedEngine) -> None:
    """Two uncapped requests waited, weighed as 32 blocks each by a context of 1,024. The engine came back with 2,048, and
    both were let in at once by the old figure: 128 blocks to be written in 64."""
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        holder = await rooms.controller.admit(ticket(10**6, 60, pool="a", deadline=2000.0), on_queued=lambda _: None)
        callers, calls = start_calls(rooms, 2)
        await eventually(lambda: line_of(rooms).requests == 2)
        assert line_of(rooms).blocks == 64
        await restart(rooms, engine, blocks=65, context=2048, cache_tokens=2080)
        assert line_of(rooms).blocks == 128
        engine.answers[CHAT].gate = gate = asyncio.Event()
        holder.release()
        await eventually(lambda: len(engine.asked(CHAT)) == 1)
        assert held_blocks(rooms) == 64
        assert rooms.tally.counts().queued == 1
        gate.set()
        await asyncio.gather(*calls)
        assert [caller.status for caller in callers] == [200, 200]
        assert rooms.tally.counts().outcomes[Outcome.COMPLETED] == 2


async def test_a_shorter_context_lets_those_in_line_be_smaller(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        holder = await rooms.controller.admit(ticket(10**6, 40, pool="a", deadline=2000.0), on_queued=lambda _: None)
        _, calls = start_calls(rooms, 3)
        await eventually(lambda: rooms.tally.counts().queued == 3)
        await restart(rooms, engine, blocks=65, context=256, cache_tokens=2080)
        async with asyncio.timeout(5):
            await asyncio.gather(*calls)  # eight blocks each, beside the forty
        holder.release()


async def test_what_the_new_engine_can_never_hold_is_refused_with_both_numbers(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        holder = await rooms.controller.admit(ticket(10**6, 60, pool="a", deadline=2000.0), on_queued=lambda _: None)
        callers, calls = start_calls(rooms, 1, max_tokens=900)
        await eventually(lambda: rooms.tally.counts().queued == 1)
        await restart(rooms, engine, blocks=17, context=1024, cache_tokens=544)
        await asyncio.gather(*calls)
        assert callers[0].status == 400
        error = json.loads(callers[0].body)["error"]
        assert error["code"] == "kv_budget_exceeded"
        assert "of 16" in error["message"]
        holder.release()


async def test_only_another_capacity_makes_those_in_line_be_weighed_again(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        asked: list[BackendName] = []
        rooms.waiters.note(ticket(1).id, asked.append)
        assert rooms.waiters.weighed_anew(rooms.roster.view(A)) == {}
        assert asked == []
        await restart(rooms, engine, blocks=33, context=1024, cache_tokens=1056)
        assert asked == [A]


async def test_who_waits_may_run_on_a_backend_of_its_pool_that_becomes_known_later(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    script_vllm(engine)
    script_vllm(other, blocks=17, cache_tokens=544)
    other.json(CHAT, ANSWER)
    async with open_rooms({"a": engine, "b": other}) as rooms:
        holder = await rooms.controller.admit(ticket(10**6, 60, pool="a", deadline=2000.0), on_queued=lambda _: None)
        _, calls = start_calls(rooms, 1, max_tokens=900)  # 29 blocks: b has 16
        await eventually(lambda: rooms.tally.counts().queued == 1)
        await restart(rooms, other, blocks=65, context=1024, cache_tokens=2080)
        async with asyncio.timeout(5):
            await asyncio.gather(*calls)
        assert len(other.asked(CHAT)) == 1
        holder.release()
