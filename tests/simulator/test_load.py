"""The load generator: what it measures, when it comes back, and that garbage is an error of the call and of nobody else."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from gateway.simulator.load import Burst, Load, told_wait_s
from gateway.simulator.server import Simulator

SMALL = Burst(agents=3, turns=2, task_tokens=20, tool_tokens=5, cap_tokens=30, think_s=0.01, spread_s=0.01, model="tiny")
ONE = Burst(agents=1, turns=1, task_tokens=5, think_s=0.0, spread_s=0.0, call_timeout_s=10)

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
HEAD_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FINISHED = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


async def test_agents_take_all_their_turns_and_say_what_they_saw(simulator: Simulator) -> None:
    load = Load(simulator.url, SMALL)
    report = await load.run()
    summary = report.summary()
    assert (summary["requests"], summary["completed"], summary["failed"], summary["refusals"]) == (6, 6, 0, 0)
    assert summary["output_tokens"] == simulator.engine.generation_tokens
    assert summary["errors"] == []
    assert 0 < summary["ttft_s_p50"] <= summary["ttft_s_p95"]
    assert 0 < summary["worst_gap_s_median"] <= summary["worst_gap_s_max"]
    tally = load.tally
    assert (tally.waiting, tally.streaming, tally.completed, tally.ended) == (0, 0, 6, 6)
    json.dumps(summary, allow_nan=False)


async def test_the_same_burst_asks_for_the_same_tokens_each_time(simulator: Simulator) -> None:
    first, second = [await Load(simulator.url, SMALL).run() for _ in range(2)]
    assert [call.output_tokens for call in first.calls] == [call.output_tokens for call in second.calls]


async def test_each_turn_carries_the_talk_so_far(simulator: Simulator) -> None:
    await Load(
        simulator.url, Burst(agents=1, turns=3, task_tokens=50, tool_tokens=40, think_s=0, spread_s=0, model="tiny")
    ).run()
    engine = simulator.engine
    # Three prompts of 50, 50 + answer + 40, and so on: well above three times the first.
    assert engine.prompt_tokens > 50 + 90 + 130 + engine.generation_tokens / 3


async def scripted(answers: list[bytes]) -> tuple[str, Callable[[], Awaitable[None]], list[bytes]]:
    """A server that gives each connection the next answer and closes it: its URL, how to end it, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append(await reader.readexactly(length))
        writer.write(answers[len(asked) - 1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def end() -> None:
        server.close()
        await server.wait_closed()

    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", end, asked


async def run_scripted(*answers: bytes, burst: Burst = ONE) -> tuple[str | None, int, int]:
    """One agent's one call against these answers: its error, its tries and its refusals."""
    url, end, _ = await scripted(list(answers))
    try:
        report = await Load(url, burst).run()
    finally:
        await end()
    (call,) = report.calls
    return call.error, call.tries, call.refusals


def refusal(status: int, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in ("content-length: 2", *headers))
    return f"HTTP/1.1 {status} No\r\n{lines}\r\n{{}}".encode()


async def test_a_refusal_is_tried_again_after_the_told_time() -> None:
    said = await run_scripted(refusal(429, "retry-after-ms: 20"), refusal(503, "Retry-After: 0"), HEAD + FINISHED)
    assert said == (None, 3, 2)


async def test_a_refusal_that_says_so_is_not_tried_again() -> None:
    error, tries, refusals = await run_scripted(refusal(429, "x-should-retry: false"))
    assert (tries, refusals) == (1, 1)
    assert error is not None
    assert error.startswith("429")


async def test_tries_are_bounded() -> None:
    burst = Burst(agents=1, turns=1, task_tokens=5, spread_s=0, max_tries=3)
    error, tries, refusals = await run_scripted(*[refusal(503, "retry-after-ms: 1")] * 3, burst=burst)
    assert error is not None
    assert (tries, refusals) == (3, 3)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "no answer"),
        (b"nonsense\r\n\r\n", "no answer"),
        (refusal(400), "400"),
        (HEAD + b"data: [DONE]\n\n", "without a finish_reason"),
        (HEAD_CHUNKED + b"%x\r\n%b\r\n" % (len(FINISHED), FINISHED), "broke off"),  # finished, but the chunks have no end
        (HEAD + b'data: {"error":{"message":"evicted","code":500}}\n\n' + FINISHED, "evicted"),
        (HEAD + b"data: {not json}\n\n", "not an answer"),
        (HEAD + b'data: {"choices":[{"index":0}]}\n\n', "not an answer"),
    ],
)
async def test_whatever_is_no_whole_answer_is_an_error(answer: bytes, says: str) -> None:
    error, tries, _ = await run_scripted(answer)
    assert tries == 1
    assert error is not None
    assert says in error


async def test_a_call_that_never_ends_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    report = await Load(url, Burst(agents=1, turns=1, task_tokens=5, spread_s=0, call_timeout_s=0.05)).run()
    server.close()
    assert report.summary()["errors"] == ["no end within 0.05 s"]


@pytest.mark.parametrize(
    ("headers", "tries", "wait_s"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 1, 0.25),
        ({"retry-after": "2"}, 1, 2.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 1, 0.5),
        ({}, 3, 2.0),
        ({}, 50, 8.0),
        ({"x-should-retry": "false", "retry-after": "2"}, 1, None),
    ],
)
def test_how_long_to_wait_is_read_as_the_sdks_do(headers: dict[str, str], tries: int, wait_s: float | None) -> None:
    assert told_wait_s(headers, tries) == wait_s
