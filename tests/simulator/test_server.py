"""The pretend engine over a real socket: what a gateway discovers, and how requests are taken and refused."""

import asyncio
import json
import signal
import socket
import sys
from typing import Any

import httpx
import pytest

from gateway.simulator.scrape import read_engine
from gateway.simulator.server import Simulator
from support.fake_upstream import eventually

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


async def post(simulator: Simulator, path: str, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False, timeout=30) as client:
        return await client.post(path, json=body)


async def test_a_gateway_finds_out_what_it_needs(simulator: Simulator) -> None:
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]
        version = (await client.get("/version")).json()["version"]
        health = await client.get("/health")
        page = (await client.get("/metrics")).text
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("tiny", 1024, "vllm")
    assert version.startswith("0.32.0+cpu")
    assert (health.status_code, health.content) == (200, b"")
    config = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
    for label in ('num_gpu_blocks="65"', 'block_size="32"', 'kv_cache_size_tokens="2080"'):
        assert label in config
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f'vllm:{name}{{engine="0",model_name="tiny"}} 0.0' in page


async def test_what_is_said_leaves_at_once(simulator: Simulator) -> None:
    """On a kept connection the first token of a short prompt once waited for the client's kernel to acknowledge the head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(simulator.url.rpartition(":")[2]))
    writer.write(b"GET /health HTTP/1.1\r\nhost: engine\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert simulator._server is not None
    (connection,) = simulator._server.server_state.connections
    assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()


async def test_the_counters_count(simulator: Simulator) -> None:
    await post(simulator, TEXT, {"prompt": [1] * 100, "max_tokens": 20, "ignore_eos": True})
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        page = (await client.get("/metrics")).text
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100.0' in page
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 20.0' in page
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0' in page


TOKENIZED: list[tuple[dict[str, Any], int]] = [
    ({"prompt": "x" * 41}, 11),
    ({"prompt": ""}, 0),
    ({"messages": HELLO}, 9),
    ({"messages": HELLO, "add_generation_prompt": False}, 6),
]


async def test_tokenize_counts_a_prompt_or_messages(simulator: Simulator) -> None:
    for body, count in TOKENIZED:
        answer = (await post(simulator, "/tokenize", body)).json()
        assert (answer["count"], len(answer["tokens"]), answer["max_model_len"]) == (count, count, 1024)


async def test_usage_agrees_with_tokenize(simulator: Simulator) -> None:
    tokenized = (await post(simulator, "/tokenize", {"messages": HELLO})).json()
    answer = (await post(simulator, CHAT, {"messages": HELLO, "max_tokens": 3})).json()
    assert answer["usage"]["prompt_tokens"] == tokenized["count"]


CAPS: list[tuple[str, dict[str, Any], int | None]] = [
    (TEXT, {"prompt": [1] * 10, "ignore_eos": True}, 16),  # absent on completions
    (TEXT, {"prompt": [1] * 10, "max_tokens": None, "ignore_eos": True}, 1014),  # null there: the rest of the context
    (CHAT, {"messages": HELLO, "ignore_eos": True}, 1015),  # absent on chat
    (CHAT, {"messages": HELLO, "max_tokens": 9, "max_completion_tokens": 7, "ignore_eos": True}, 7),
    (TEXT, {"prompt": [1] * 1000, "max_tokens": 100, "ignore_eos": True}, 24),  # cut at the context, without a word
    (TEXT, {"prompt": ["a", "b"], "n": 2, "max_tokens": 5, "ignore_eos": True}, 20),
    (TEXT, {"prompt": [[1], [2, 3]], "max_tokens": "5", "ignore_eos": "true"}, 10),  # types are lax
    (CHAT, {"messages": HELLO, "max_tokens": 1, "min_tokens": 90, "seed": 4}, 1),
    (CHAT, {"messages": HELLO, "max_tokens": None, "min_tokens": 0, "temperature": 0, "n": 1, "model": "tiny"}, None),
]


async def test_the_cap_is_what_the_real_engine_makes_of_it(simulator: Simulator) -> None:
    for path, body, generated in CAPS:
        answer = await post(simulator, path, body)
        assert answer.status_code == 200, body
        usage = answer.json()["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        if generated is not None:
            assert usage["completion_tokens"] == generated, body
            assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}


REFUSED: list[tuple[str, Any, int, str]] = [
    (TEXT, {"prompt": [1] * 10, "max_tokens": 1025}, 400, "max_model_len=1024"),
    (TEXT, {"prompt": [1] * 10, "max_tokens": 0}, 400, "at least 1, got 0"),
    (TEXT, {"prompt": [1] * 1024, "max_tokens": 1}, 400, "max_tokens must be at least 1, got 0"),
    (TEXT, {"prompt": [1] * 1025, "max_tokens": 1}, 400, "maximum context length is 1024"),
    (CHAT, {"messages": HELLO, "model": "nope"}, 404, "`nope` does not exist"),
    (CHAT, {"messages": HELLO, "n": 2, "temperature": 0}, 400, "greedy"),
    (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}, 400, "stream=True"),
    (CHAT, {"messages": HELLO, "max_tokens": 2.5}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "max_tokens": []}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "stream": "perhaps"}, 400, "stream"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"prompt": "hello"}, 400, "messages"),
    (CHAT, [], 400, "object"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": ["a", 1]}, 400, "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "Token ids"),
    (TEXT, {"prompt": [[]]}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 20, "n": 1000}, 400, "sequences"),
    ("/tokenize", {"prompt": 5}, 400, "prompt"),
]


async def test_what_the_real_engine_refuses_is_refused_in_its_shape(simulator: Simulator) -> None:
    for path, body, status, says in REFUSED:
        answer = await post(simulator, path, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, status), body
        assert says in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
    assert not simulator.engine.scheduler.has_work


async def test_a_body_that_is_no_json_is_refused(simulator: Simulator) -> None:
    bodies = [
        (b'{"messages": [', "application/json"),
        (b"{}", "text/plain"),
        (b"[" * 100_000, "application/json"),
        (b"\xff", ""),
    ]
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        for body, content_type in bodies:
            answer = await client.post(CHAT, content=body, headers={"content-type": content_type})
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


async def test_unknown_routes_methods_and_huge_bodies_are_refused(simulator: Simulator) -> None:
    async with httpx.AsyncClient(base_url=simulator.url, trust_env=False) as client:
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.get(CHAT)).status_code == 405
        huge = b'{"prompt": "' + b"x" * 9_000_000 + b'"}'
        assert (await client.post(TEXT, content=huge, headers={"content-type": "application/json"})).status_code == 413


async def test_answers_depend_on_the_prompt_and_the_seed_alone(simulator: Simulator) -> None:
    body = {"messages": HELLO, "seed": 1}
    first, again, other = [(await post(simulator, CHAT, {**body, "seed": seed})).json() for seed in (1, 1, 2)]
    assert first["choices"] == again["choices"] != other["choices"]
    assert first["usage"] == again["usage"]
    assert first["choices"][0]["finish_reason"] == "stop"


def head_and_body(path: str, body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half_closed", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(simulator: Simulator, stream: bool, half_closed: bool) -> None:
    host, port = simulator.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = {"prompt": [1] * 100, "max_tokens": 900, "ignore_eos": True, "stream": stream}
    writer.write(head_and_body(TEXT, body))
    pool = simulator.engine.scheduler.pool
    await eventually(lambda: pool.used > 0)
    if stream:
        await reader.readuntil(b"data: ")
    if half_closed:
        writer.write_eof()
    else:
        writer.transport.abort()
    await eventually(lambda: pool.used == 0)
    await eventually(lambda: simulator.engine.finished["abort"] == 1)
    assert simulator.engine.generation_tokens < 900
    writer.close()


async def test_a_client_that_leaves_the_line_is_forgotten(simulator: Simulator) -> None:
    host, port = simulator.url.removeprefix("http://").split(":")
    writers = []
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head_and_body(TEXT, {"prompt": [1] * 600, "max_tokens": 400, "ignore_eos": True}))
        writers.append(writer)
    scheduler = simulator.engine.scheduler
    await eventually(lambda: len(scheduler.waiting) >= 2 and len(scheduler.running) + len(scheduler.waiting) == 5)
    for writer in writers:
        writer.transport.abort()
    await eventually(lambda: not scheduler.has_work)
    assert scheduler.pool.used == 0


async def test_overload_preempts_and_everybody_still_gets_all_their_tokens(simulator: Simulator) -> None:
    body = {"prompt": [1] * 200, "max_tokens": 314, "ignore_eos": True}
    answers = await asyncio.gather(*(post(simulator, TEXT, body) for _ in range(8)))
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [314] * 8
    reading = await read_engine(simulator.url)
    assert reading.preemptions >= 4
    assert (reading.running, reading.waiting, reading.used_fraction) == (0, 0, 0.0)


async def start_process(*arguments: str) -> tuple[asyncio.subprocess.Process, str]:
    """`python -m gateway.simulator`, and the URL from its ready line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.simulator", *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("ready http://127.0.0.1:")
    return process, line.split()[1]


async def test_as_a_process_it_says_ready_and_ends_on_a_signal_telling_its_streams() -> None:
    process, url = await start_process("--num-gpu-blocks", "65", "--block-size", "32", "--max-model-len", "1024")
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            body = {"prompt": [1], "max_tokens": 1000, "ignore_eos": True, "stream": True}
            async with client.stream("POST", TEXT, json=body) as answer:
                lines = answer.aiter_lines()
                assert (await anext(lines)).startswith("data: {")
                process.send_signal(signal.SIGTERM)
                told = [line async for line in lines if line.startswith("data: ")]
        assert "EngineCore" in json.loads(told[-2][6:])["error"]["message"]
        assert told[-1] == "data: [DONE]"
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_as_a_process_it_ends_when_its_standard_input_does() -> None:
    process, _ = await start_process("--until-stdin-closes")
    try:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_settings_that_cannot_be_end_the_process_with_a_line() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.simulator", "--num-gpu-blocks", "10", stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode == 2
    assert said.startswith(b"simulator: a context of 8192 tokens needs 512 blocks")
    assert said.count(b"\n") == 1
