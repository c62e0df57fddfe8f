"""Paths that are not counted: passed on as they came, bounded all the same, and in no tally."""

import asyncio
import json

import pytest

from gateway.web.pass_through import OPEN_PATHS, pass_through
from gateway.web.rooms import Rooms
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.fake_upstream import eventually
from support.rooms import clock_of, held_blocks, open_rooms
from support.scripted_engine import Scripted, ScriptedEngine


async def passed(rooms: Rooms, caller: Caller) -> Caller:
    await pass_through(rooms, caller.scope, caller.receive, caller.send)
    assert rooms.tally.counts().received == 0
    assert held_blocks(rooms) == 0
    return caller


async def test_an_answer_passes_as_it_came(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        caller = await passed(rooms, Caller("/tokenize", body=b'{"prompt": "x"}'))
    assert caller.status == 200
    assert caller.body == engine.answers["/tokenize"].body
    assert caller.is_finished
    assert engine.asked("/tokenize")[-1].body == b'{"prompt": "x"}'


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_what_only_counts_passes_without_a_hold(engine: ScriptedEngine, path: str) -> None:
    script_vllm(engine)
    engine.json(path, {"input_tokens": 7})
    async with open_rooms({"a": engine}) as rooms:
        caller = await passed(rooms, Caller(path, body=b'{"model":"tiny","input":"a"}'))
    assert (caller.status, json.loads(caller.body)) == (200, {"input_tokens": 7})


async def test_the_path_goes_on_as_it_was_written(engine: ScriptedEngine) -> None:
    """A path with an escape was sent on decoded, and one that is not ASCII ended in an error of ours."""
    script_vllm(engine)
    engine.text("/caf%C3%A9", "open")
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller("/café", method="GET")
        caller.scope["raw_path"] = b"/caf%C3%A9"
        await passed(rooms, caller)
    assert (caller.status, caller.body) == (200, b"open")


async def test_a_call_goes_to_a_backend_that_serves_its_model(engine: ScriptedEngine, other: ScriptedEngine) -> None:
    script_vllm(engine, models=("tiny",))
    script_vllm(other, models=("large",))
    async with open_rooms({"a": engine, "b": other}) as rooms:
        await passed(rooms, Caller("/tokenize", body=b'{"model": "large"}'))
        await passed(rooms, Caller("/tokenize", body=b'{"model": "tiny"}'))
        for body in (b"", b"nonsense", b'{"model": 7}', b"[]", b'{"model": "stranger"}'):
            assert (await passed(rooms, Caller("/tokenize", body=body))).status == 200
    assert len(other.asked("/tokenize")) == 1
    assert len(engine.asked("/tokenize")) == 6


async def test_without_a_healthy_backend_it_is_refused_with_a_time_to_come_back(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await engine.go_away()
        for _ in range(3):
            await rooms.roster.look()
        caller = await passed(rooms, Caller("/version", method="GET"))
    assert (caller.status, caller.error["code"]) == (503, "no_backend")
    assert "none of the 1 backends" in caller.error["message"]
    assert caller.header(b"retry-after") is not None


async def test_an_error_below_the_messages_path_has_the_shape_that_its_clients_read(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await engine.go_away()
        for _ in range(3):
            await rooms.roster.look()
        caller = await passed(rooms, Caller("/v1/messages/count_tokens", body=b"{}"))
    told = json.loads(caller.body)
    assert (caller.status, told["type"], told["error"]["type"]) == (503, "error", "overloaded_error")
    assert told["error"]["code"] == "no_backend"


async def test_an_engine_that_breaks_before_its_head_is_a_502(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers["/detokenize"] = Scripted(raw=b"nonsense\r\n\r\n")
    async with open_rooms({"a": engine}) as rooms:
        caller = await passed(rooms, Caller("/detokenize", body=b"{}"))
    assert (caller.status, caller.error["code"]) == (502, "upstream_head")


async def test_an_engine_that_breaks_in_its_body_leaves_the_answer_unfinished(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers["/detokenize"] = Scripted(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    async with open_rooms({"a": engine}) as rooms:
        caller = await passed(rooms, Caller("/detokenize", body=b"{}"))
    assert (caller.status, caller.body, caller.is_finished) == (200, b"half", False)


async def test_a_body_above_the_limit_is_refused(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}, max_body_bytes=10) as rooms:
        caller = await passed(rooms, Caller("/tokenize", body=b"x" * 11))
    assert caller.status == 413
    assert engine.asked("/tokenize") == []


@pytest.mark.parametrize("during", ["upload", "answer"])
async def test_a_client_that_leaves_ends_the_call_at_the_engine_as_well(engine: ScriptedEngine, during: str) -> None:
    script_vllm(engine)
    engine.answers["/tokenize"].gate = asyncio.Event()
    async with open_rooms({"a": engine}) as rooms:
        caller = Caller("/tokenize", body=b"{", sends_whole_body=during == "answer")
        passing = asyncio.create_task(passed(rooms, caller))
        if during == "answer":
            await eventually(lambda: bool(engine.asked("/tokenize")))
        else:
            await asyncio.sleep(0)
        caller.leave()
        async with asyncio.timeout(5):
            await passing
        assert caller.messages == []
        assert all(upstream.pool.open_connections == 0 for upstream in rooms.upstreams.values())
        assert clock_of(rooms).sleepers == 0
