"""Identity on the straight line: who is let in, what of a credential goes on, and what a client cannot give itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.outcomes import Outcome
from gateway.dialects import DIALECTS
from gateway.web.app import Front
from gateway.web.callers import Callers
from gateway.web.inference import Inference
from gateway.web.lifecycle import Lifecycle
from gateway.web.rooms import Rooms
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.keys import keys_file
from support.rooms import held_blocks, open_rooms
from support.samples import sample
from support.scripted_engine import ScriptedEngine

KEY = b"key-of-a"
BEARER = (b"authorization", b"Bearer " + KEY)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: b'{"model": "tiny", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 9}',
    COMPLETIONS: b'{"model": "tiny", "prompt": "ping", "max_tokens": 9}',
    "/v1/responses": b'{"model": "tiny", "input": "ping", "max_output_tokens": 9}',
    "/v1/embeddings": b'{"model": "tiny", "input": "ping"}',
    "/v1/messages": b'{"model": "tiny", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 9}',
    "/completion": b'{"prompt": "ping", "n_predict": 9}',
    "/completions": b'{"prompt": "ping", "n_predict": 9}',
}
ANSWER = {
    "choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 4, "completion_tokens": 1},
}


@asynccontextmanager
async def keyed(engine: ScriptedEngine, tmp_path: Path, more: str = "") -> AsyncIterator[Rooms]:
    """Rooms whose callers need a key, before vLLM, whose backend's own key is `backend`."""
    script_vllm(engine)
    for path in BODIES:
        engine.json(path, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        upstreams = {name: replace(upstream, bearer="backend") for name, upstream in rooms.upstreams.items()}
        yield replace(rooms, upstreams=upstreams, callers=Callers(keys_file(tmp_path, more, a=KEY)))


async def call(
    rooms: Rooms, path: str, headers: Sequence[tuple[bytes, bytes]], *, method: str = "POST", body: bytes = b""
) -> Caller:
    caller = Caller(path, method=method, headers=headers, body=body or BODIES.get(path, b""))
    await Front(rooms, Lifecycle(0.0), Inference(rooms))(caller.scope, caller.receive, caller.send)
    return caller


@pytest.mark.parametrize("path", DIALECTS)
async def test_who_has_no_key_gets_401_before_the_body_is_read_and_is_counted(
    engine: ScriptedEngine, tmp_path: Path, path: str
) -> None:
    async with keyed(engine, tmp_path) as rooms:
        caller = Caller(path, body=b"{", sends_whole_body=False, headers=[(b"authorization", b"Bearer stranger")])
        await asyncio.wait_for(Front(rooms, Lifecycle(0.0), Inference(rooms))(caller.scope, caller.receive, caller.send), 5)
        assert caller.status == 401
        # llama.cpp's own errors have the status as their code, and the word beside it.
        assert "unauthorized" in (caller.error["code"], caller.error.get("reason"))
        assert caller.header(b"www-authenticate") == b"Bearer"
        assert caller.header(b"x-should-retry") == b"false"
        assert caller.header(b"connection") == b"close"
        counts = rooms.tally.counts()
        assert (counts.received, counts.outcomes[Outcome.REFUSED_UNAUTHORIZED]) == (1, 1)
        assert counts.reading + counts.queued + counts.in_flight == 0
        assert sample(rooms.metrics, "kvgate_rejections_total", reason="unauthorized") == 1
        assert held_blocks(rooms) == 0
        assert rooms.body_room.taken_bytes == 0
        assert engine.asked(path) == []


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("header", [BEARER, (b"x-api-key", KEY)])
async def test_a_key_of_ours_goes_no_further_and_the_backends_takes_its_place(
    engine: ScriptedEngine, tmp_path: Path, path: str, header: tuple[bytes, bytes]
) -> None:
    async with keyed(engine, tmp_path) as rooms:
        caller = await call(rooms, path, [header, (b"x-api-key", b"another")] if header is BEARER else [header])
        assert caller.status == 200
        (seen,) = engine.asked(path)
        assert seen.headers["authorization"] == "Bearer backend"
        assert "x-api-key" not in seen.headers
        assert sample(rooms.metrics, "kvgate_tenant_requests_total", tenant="a", outcome="completed") == 1


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("HEAD", "/v1/models"), ("POST", "/tokenize"), ("GET", "/version")]
)
async def test_what_is_not_counted_needs_a_key_as_well(engine: ScriptedEngine, tmp_path: Path, method: str, path: str) -> None:
    async with keyed(engine, tmp_path) as rooms:
        assert (await call(rooms, path, [], method=method)).status == 401
        assert engine.asked(path)[1:] == [] if path == "/v1/models" else True
        assert (await call(rooms, path, [BEARER], method=method)).status == 200
        assert rooms.tally.counts().received == 0
        passed = [seen for seen in engine.asked(path) if seen.headers.get("authorization") == "Bearer backend"]
        assert len(passed) == (0 if path == "/v1/models" else 1)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/health", 200), ("GET", "/ready", 200), ("OPTIONS", CHAT, 204)]
)
async def test_health_readiness_and_preflights_need_none(
    engine: ScriptedEngine, tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with keyed(engine, tmp_path) as rooms:
        assert (await call(rooms, path, [], method=method)).status == status


async def test_anonymous_callers_are_let_in_where_the_file_has_terms_for_them(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with keyed(engine, tmp_path, "[anonymous]\npriority = 3\n") as rooms:
        assert (await call(rooms, CHAT, [])).status == 200
        assert engine.asked(CHAT)[0].headers["authorization"] == "Bearer backend"
        assert sample(rooms.metrics, "kvgate_tenant_requests_total", tenant="anonymous", outcome="completed") == 1


async def test_without_keys_a_callers_own_credential_goes_on_unchanged(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json(CHAT, ANSWER)
    async with open_rooms({"a": engine}) as rooms:
        await call(rooms, CHAT, [(b"Authorization", b"Bearer  theirs "), (b"x-api-key", b"other")])
        (seen,) = engine.asked(CHAT)
        assert seen.headers["authorization"] == "Bearer  theirs"
        assert seen.headers["x-api-key"] == "other"


@pytest.mark.parametrize(
    ("terms", "sent", "forwarded"),
    [
        ("", b'-5 ,"x":1e2', b'0 ,"x":1e2'),
        ("", b"5", b"5"),
        ("", b"null", b"null"),
        ("priority = -2", b"-5", b"-2"),
        ("priority = 2", b"0", b"2"),
        ("may_set_priority = true", b"-5", b"-5"),
    ],
)
@pytest.mark.parametrize("key", [b"priority", b"\\u0070riority"])
async def test_a_priority_in_the_body_is_clamped_and_no_other_byte_changes(
    engine: ScriptedEngine, tmp_path: Path, terms: str, sent: bytes, forwarded: bytes, key: bytes
) -> None:
    async with keyed(engine, tmp_path) as rooms:
        path = keys_file(tmp_path, a=KEY)
        path.write_text(f"{path.read_text()}{terms}\n")
        rooms.callers.reread()
        body = b'{ "model":"tiny","messages": [{"role":"user","content":"\\u0041","priority":-9}],"%s" : %s}'
        caller = await call(rooms, CHAT, [BEARER], body=body % (key, sent))
        assert caller.status == 200
        (seen,) = engine.asked(CHAT)
        assert seen.body == body % (key, forwarded)


@pytest.mark.parametrize("priority", ['"-5"', "1.5", "true", "[]", "1e400", str(2**63)])
async def test_a_priority_that_is_no_whole_number_is_refused(engine: ScriptedEngine, tmp_path: Path, priority: str) -> None:
    async with keyed(engine, tmp_path) as rooms:
        body = BODIES[CHAT][:-1] + f', "priority": {priority}}}'.encode()
        caller = await call(rooms, CHAT, [BEARER], body=body)
        assert (caller.status, caller.error["param"]) == (400, "priority")
        assert engine.asked(CHAT) == []


async def test_headers_of_ours_do_not_reach_the_engine(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with keyed(engine, tmp_path) as rooms:
        await call(rooms, CHAT, [BEARER, (b"x-kvgate-priority", b"-9"), (b"x-kvgate-lane", b"batch")])
        (seen,) = engine.asked(CHAT)
        assert not [name for name in seen.headers if name.startswith("x-kvgate-")]
        assert json.loads(seen.body) == json.loads(BODIES[CHAT])
