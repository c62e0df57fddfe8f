"""Cases R, the rest: hidden goodbyes, slow readers, odd usage, encodings, what is held back, and paperwork."""

import ast
import asyncio
import fcntl
import gzip
import json
import os
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gateway
from support.bench import CHAT, COMPLETIONS, FULL_CAP, Bench, block_body, chat_body, running_bench
from support.fake_engine import FakeEngine
from support.fake_upstream import Behaviour, FakeExchange, FakeUpstream, Header, answer, chunk, eventually, head
from support.gates import DONE, EVENT_STREAM, chat_event, held_head, usage_event
from support.gateway_process import CASE_SETTINGS, environment
from support.http_client import PATIENCE_S, Connection, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")
NOTICED_S = 1.0


# --


ALL_ON = {
    "Accept-Encoding": "gzip, br",
    "Origin": "https://app.example",
    "Authorization": "Bearer x",
    "X-Request-Timeout": "60",
}


@pytest.mark.parametrize("how", ["vanish", "hang_up"])
async def test_r5_a_plain_client_that_leaves_a_working_engine_is_noticed(bench: Bench, how: str) -> None:
    gate, tag = asyncio.Event(), bench.tag("r5")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    async with await bench.open(CHAT, chat_body(16), tag=tag, headers=ALL_ON) as client:
        await eventually(lambda: bench.fake.open_requests(tag) == 1)
        getattr(client, how)()
        await eventually(lambda: bench.fake.open_requests(tag) == 0, within_s=NOTICED_S)
    await bench.end_case()


async def test_r5_no_middleware_stands_between_a_request_and_its_goodbye() -> None:
    for path in Path(gateway.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
            assert not {"BaseHTTPMiddleware", "add_middleware", "middleware"} & set(names), path


# --


MB = 1 << 20
ALL_BYTES = 200 * MB
PIECE = chunk(chat_event("x" * 16_000))


def flood() -> Behaviour:
    """200 MB of events, as fast as they are taken."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, EVENT_STREAM))
        for _ in range(ALL_BYTES // len(PIECE)):
            await exchange.send(PIECE)
        await exchange.send(chunk(DONE) + chunk(b""))

    return behave


def plain_flood() -> Behaviour:
    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, [JSON, (b"content-length", b"%d" % ALL_BYTES)]))
        for _ in range(ALL_BYTES // 65_536):
            await exchange.send(b"x" * 65_536)

    return behave


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("manner", ["streamed", "plain"])
async def test_r6_a_slow_reader_holds_the_engine_back_and_takes_no_memory(manner: str) -> None:
    async with running_bench(KVGATE_SEND_TIMEOUT="600s") as bench:
        await bench.full()
        tag = bench.tag("r6")
        bench.fake.script(tag, flood() if manner == "streamed" else plain_flood())
        before = resident_bytes(bench.gateway.pid)
        async with await Connection.open(bench.gateway.url, receive_buffer=4096) as client:
            body = json.dumps(chat_body(16, stream=manner == "streamed")).encode()
            await client.send("POST", CHAT, body, {"x-tag": tag})
            await eventually(lambda: bool(bench.fake.tagged(tag)))
            seen = bench.fake.tagged(tag)[0]
            most, sent, still = 0, -1, 0
            while still < 10:  # until the engine could send nothing for a second, while the client takes its 1 kB/s
                await client.reader.read(100)
                await asyncio.sleep(0.1)
                most = max(most, resident_bytes(bench.gateway.pid))
                still = still + 1 if seen.sent_bytes == sent else 0
                sent = seen.sent_bytes
            assert sent < ALL_BYTES // 4, sent
            assert most - before < 20 * MB, (before, most)
            assert (await bench.gateway.state()).in_flight == 1  # slow is not gone
            client.vanish()
        await bench.end_case()


# --


GOOD = chat_event("hi ")
END = chat_event("", "stop")
ODD_EVENTS: dict[str, bytes] = {
    "usage null": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}\n\n',
    "counts null": b'data: {"choices":[],"usage":{"prompt_tokens":null,"completion_tokens":null,"total_tokens":null}}\n\n',
    "counts as text": b'data: {"choices":[],"usage":{"prompt_tokens":"7","completion_tokens":"x"}}\n\n',
    "counts below zero": b'data: {"choices":[],"usage":{"prompt_tokens":-7,"completion_tokens":-1}}\n\n',
    "counts beyond all": b'data: {"choices":[],"usage":{"prompt_tokens":1e400,"completion_tokens":NaN}}\n\n',
    "a huge count": b'data: {"choices":[],"usage":{"prompt_tokens":' + b"9" * 400 + b',"completion_tokens":1}}\n\n',
    "counts that are fractions": b'data: {"choices":[],"usage":{"prompt_tokens":1.5,"completion_tokens":2.5}}\n\n',
    "usage a list": b'data: {"choices":[],"usage":[1,2]}\n\n',
    "no choices": b'data: {"id":"c","object":"chat.completion.chunk"}\n\n',
    "empty choices": b'data: {"choices":[]}\n\n',
    "choices null": b'data: {"choices":null}\n\n',
    "choices a text": b'data: {"choices":"usage"}\n\n',
    "no JSON": b'data: {"usage": {"prompt_tokens"\n\n',
    "text": b"data: hello, usage\n\n",
    "a list": b'data: ["usage", "error"]\n\n',
    "nothing": b"data:\n\n",
    "a comment": b": usage ping\n\n",
    "half an emoji": b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
    "no UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}],"usage":null}\n\n',
}


async def counters(bench: Bench) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, labels, value in (await bench.gateway.metrics()).samples:
        assert value == value, f"{name} is not a number"
        if name.endswith(("_total", "_count", "_sum")):
            found[name + str(sorted(labels.items()))] = value
    return found


def never_fell(before: dict[str, float], after: dict[str, float]) -> None:
    fell = {name: (value, after[name]) for name, value in before.items() if after[name] < value}
    assert not fell


@pytest.mark.parametrize("name", ODD_EVENTS)
async def test_r10_an_odd_event_passes_as_it_came_and_counts_as_no_usage(bench: Bench, name: str) -> None:
    streamed, tag = GOOD + ODD_EVENTS[name] + END + DONE, bench.tag("r10")
    bench.fake.script(tag, answer(200, streamed, [EVENT_STREAM[0]], framing="chunked"))
    before, missing_before = await counters(bench), (await bench.gateway.metrics()).total("kvgate_usage_missing_total")
    ended = (await bench.idle()).outcomes
    found = await bench.post(CHAT, chat_body(16, stream=True, stream_options={"include_usage": True}), tag=tag)
    assert found.body == streamed
    assert found.is_tidy
    state = await bench.idle()
    assert state.outcomes["completed"] == ended.get("completed", 0) + 1
    after = await counters(bench)
    never_fell(before, after)
    assert (await bench.gateway.metrics()).total("kvgate_usage_missing_total") == missing_before + 1
    await bench.full()


ODD_BODIES: dict[str, bytes] = {
    "usage null": b'{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":null}',
    "no usage": b'{"id":"c","choices":[]}',
    "counts as text": b'{"choices":[],"usage":{"prompt_tokens":"7","completion_tokens":null}}',
    "counts below zero": b'{"choices":[],"usage":{"prompt_tokens":-7,"completion_tokens":-1}}',
    "counts beyond all": b'{"choices":[],"usage":{"prompt_tokens":1e400,"completion_tokens":NaN}}',
    "choices null": b'{"choices":null,"usage":{}}',
    "no JSON": b'{"usage": {"prompt_tokens"',
    "a list": b'["usage"]',
    "nothing": b"",
    "no UTF-8": b'{"choices":[{"index":0,"message":{"content":"\xff"}}],"usage":null}',
}


@pytest.mark.parametrize("name", ODD_BODIES)
async def test_r10_an_odd_plain_answer_passes_as_it_came_and_counts_as_no_usage(bench: Bench, name: str) -> None:
    tag, before = bench.tag("r10-plain"), await counters(bench)
    missing_before = (await bench.gateway.metrics()).total("kvgate_usage_missing_total")
    bench.fake.script(tag, answer(200, ODD_BODIES[name], [JSON]))
    found = await bench.post(CHAT, chat_body(16), tag=tag)
    assert (found.status, found.body, found.is_tidy) == (200, ODD_BODIES[name], True)
    await bench.idle()
    never_fell(before, await counters(bench))
    assert (await bench.gateway.metrics()).total("kvgate_usage_missing_total") == missing_before + 1
    await bench.full()


async def test_r10_leaves_nothing_held(bench: Bench) -> None:
    await bench.end_case()


# --


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": deflated, "br": lambda data: b"\x8b" + data}
CHOICE = b'{"index":0,"message":{"content":"a"},"finish_reason":"stop"}'
PLAIN = b'{"choices":[' + CHOICE + b'],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
STREAM = GOOD + END + usage_event(7, 3) + DONE
ACCEPTED = {"gzip": "gzip", "only identity": "identity", "nothing": None}


@pytest.mark.parametrize("accepts", ACCEPTED)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("coding", CODINGS)
async def test_r11_a_compressed_answer_agrees_with_its_label_and_its_usage_is_found(
    bench: Bench, coding: str, stream: bool, accepts: str
) -> None:
    tag, before = bench.tag("r11"), (await bench.gateway.metrics()).total("kvgate_prompt_tokens_total")
    packed = CODINGS[coding](STREAM if stream else PLAIN)
    kind = EVENT_STREAM[0] if stream else JSON
    bench.fake.script(tag, answer(200, packed, [kind, (b"content-encoding", coding.encode())], framing="chunked"))
    accepted = ACCEPTED[accepts]
    found = await bench.post(
        CHAT, chat_body(16, stream=stream), tag=tag, headers={} if accepted is None else {"Accept-Encoding": accepted}
    )
    assert found.status == 200
    assert found.head.get("content-encoding") == coding
    assert found.body == packed
    assert found.is_tidy
    (seen,) = bench.fake.tagged(tag)
    assert seen.header("accept-encoding") == b"identity"
    await bench.idle()
    if coding != "br":  # which nobody can read without another library: it passes unseen, and counts as missing
        assert (await bench.gateway.metrics()).total("kvgate_prompt_tokens_total") == before + 7
    await bench.end_case()


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("stream", [False, True])
async def test_r11_an_answer_has_one_framing_and_it_is_right(bench: Bench, framing: str, stream: bool) -> None:
    tag = bench.tag("r11-framing")
    body = STREAM if stream else PLAIN
    bench.fake.script(tag, answer(200, body, [EVENT_STREAM[0] if stream else JSON], framing=framing))
    async with await bench.open(CHAT, chat_body(16, stream=stream), tag=tag) as client:
        found = await client.answer()
        assert (found.head.get("content-length") is None) == found.head.is_chunked
        assert found.is_tidy
        # Whoever did not ask for the usage event does not get it, and the length is that of what came.
        assert found.body == (body if not stream else GOOD + END + DONE)
        assert (await client.ask("GET", "/health")).status == 200  # the framing was right: the connection goes on
    await bench.end_case()


@pytest.mark.parametrize("status", [204, 304])
async def test_r11_no_body_and_no_framing_come_with_a_status_that_has_none(bench: Bench, status: int) -> None:
    tag = bench.tag("r11-empty")

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(status, [(b"x-kept", b"1")]))

    bench.fake.script(tag, behave)
    async with await bench.open(CHAT, chat_body(16), tag=tag) as client:
        raw = await client.reader.readuntil(b"\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 %d " % status)
        assert b"transfer-encoding" not in raw.lower()
        assert b"x-kept: 1" in raw
        assert await client.is_silent()
        assert (await client.ask("GET", "/health")).status == 200
    await bench.end_case()


async def test_r11_head_gets_no_body(bench: Bench) -> None:
    async with await Connection.open(bench.gateway.url) as client:
        await client.send("HEAD", "/version")
        raw = await client.reader.readuntil(b"\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 "), raw
        assert await client.is_silent()


# --


def told_one_by_one(gates: list[asyncio.Event]) -> Behaviour:
    """The head; then an event for each gate that opens."""

    async def behave(exchange: FakeExchange) -> None:
        await exchange.body()
        await exchange.send(head(200, EVENT_STREAM))
        for number, gate in enumerate(gates):
            await gate.wait()
            await exchange.send(chunk(chat_event(f"event-{number} ", "stop" if number == len(gates) - 1 else None)))
        await exchange.send(chunk(DONE) + chunk(b""))

    return behave


@pytest.mark.parametrize("asks_usage", [False, True])
async def test_r12_nothing_is_held_back_on_the_way(bench: Bench, asks_usage: bool) -> None:
    """Each event is only sent once the one before it has arrived: what is held back anywhere stops this test."""
    gates, tag = [asyncio.Event() for _ in range(8)], bench.tag("r12")
    bench.fake.script(tag, told_one_by_one(gates))
    body = chat_body(16, stream=True) | ({"stream_options": {"include_usage": True}} if asks_usage else {})
    async with await bench.open(CHAT, body, tag=tag, headers=ALL_ON) as client:
        told = await client.head()  # before there is an event
        assert told.get("content-encoding") is None
        assert told.get("x-accel-buffering") == "no"
        assert told.get("cache-control") == "no-cache"
        for number, gate in enumerate(gates):
            gate.set()
            await client.read_until(b"event-%d " % number)
        assert (await client.rest()).events[-1] == b"[DONE]"
    await bench.end_case()


# --


@dataclass(slots=True)
class Muted:
    """A gateway whose log goes into a small pipe that nobody reads after its first lines."""

    process: asyncio.subprocess.Process
    url: str
    admin_url: str
    read_end: int
    lines: list[dict[str, Any]] = field(default_factory=list)

    def read_what_is_there(self) -> bytes:
        """Everything up to the end of the process."""
        data = b""
        os.set_blocking(self.read_end, True)
        while piece := os.read(self.read_end, 65_536):
            data += piece
        return data


@asynccontextmanager
async def muted_gateway(fake: FakeUpstream) -> AsyncIterator[Muted]:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    settings = environment({**CASE_SETTINGS, "KVGATE_BACKENDS": fake.url})
    command = (sys.executable, "-m", "gateway", "serve")
    process = await asyncio.create_subprocess_exec(*command, env=settings, stdin=asyncio.subprocess.DEVNULL, stderr=write_end)
    os.close(write_end)
    try:
        told = b""
        while b'"listening"' not in told:
            told += await asyncio.to_thread(os.read, read_end, 4096)
        event = next(json.loads(line) for line in told.splitlines() if b'"listening"' in line)
        yield Muted(process, event["url"], event["admin_url"], read_end)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(read_end)


async def exit_code(gate: Muted) -> int:
    gate.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        return await gate.process.wait()


async def ready(gate: Muted) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with await Connection.open(gate.admin_url) as client:
                if (await client.ask("GET", "/ready")).status == 200:
                    return
            await asyncio.sleep(0.02)


async def test_r13_a_log_that_nobody_takes_makes_nobody_wait() -> None:
    engine = FakeEngine()
    async with FakeUpstream(default=engine) as fake, muted_gateway(fake) as gate:
        await ready(gate)
        # A hundred lines of requests are many times what the pipe holds.
        async with asyncio.timeout(PATIENCE_S):
            for number in range(100):
                found = await post(gate.url, CHAT, chat_body(FULL_CAP), {"x-tag": f"full-{number}"})
                assert found.status == 200, found
        async with await Connection.open(gate.admin_url) as client:
            assert (await client.ask("GET", "/health")).status == 200
        reading = asyncio.create_task(asyncio.to_thread(gate.read_what_is_there))
        assert await exit_code(gate) == 0
        lines = [json.loads(line) for line in (await reading).splitlines()]
        assert sum(1 for line in lines if line["event"] == "request") == 100  # late, and all of them


async def test_r13_nor_does_it_keep_the_gateway_from_its_end() -> None:
    async with FakeUpstream(default=FakeEngine()) as fake, muted_gateway(fake) as gate:
        await ready(gate)
        for _ in range(30):
            assert (await post(gate.url, COMPLETIONS, block_body(1))).status == 200
        assert await exit_code(gate) == 0
