"""Cases P, the rest: numbers that are none, half an emoji, a body that stops everyone, and what a template adds."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, MODEL, Bench, block_body, blocks_of, chat_body, running_bench
from support.fake_upstream import eventually
from support.gates import held_head, ticking_stream
from support.http_client import PATIENCE_S, Answer, Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post_raw(bench: Bench, target: str, body: bytes, tag: str) -> Answer:
    async with await Connection.open(bench.gateway.url) as client:
        return await client.ask("POST", target, body, {"x-tag": tag})


def with_member(body: dict[str, object], name: str, raw: str) -> bytes:
    """The body with one member written as told, be it JSON or not."""
    rest = json.dumps({key: value for key, value in body.items() if key != name})
    return (rest[:-1] + f', "{name}": {raw}}}').encode()


# -- P-4


NO_NUMBERS = {
    f"{name} {raw[:12]}": (name, raw)
    for name, raws in {
        "temperature": ("NaN", "Infinity", "-Infinity", "1e400", "-1e999"),
        "max_tokens": ("NaN", "Infinity", "1e400", "9" * 5000),
        "n": ("NaN", "1e400"),
        "seed": ("NaN", "1" * 5000, "-" + "1" * 5000),
        "top_p": ("1e400",),
        "logit_bias": ('{"1": NaN}', '{"1": 1e400}', '{"1": ' + "7" * 5000 + "}"),
        "stream": ("NaN",),
    }.items()
    for raw in raws
}


@pytest.mark.parametrize("target", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", NO_NUMBERS)
async def test_p4_what_is_no_number_is_refused_in_strict_json(bench: Bench, name: str, target: str) -> None:
    member, raw = NO_NUMBERS[name]
    tag, before = bench.tag("p4"), await bench.idle()
    body = chat_body(16) if target == CHAT else block_body(1)
    found = await post_raw(bench, target, with_member(body, member, raw), tag)
    assert found.status == 400, found
    assert found.error["code"] == "invalid_request"
    assert bench.arrivals(tag) == 0
    after = await bench.idle()
    assert after.outcomes["refused_invalid_request"] == before.outcomes.get("refused_invalid_request", 0) + 1


async def test_p4_leaves_nothing_held(bench: Bench) -> None:
    await bench.end_case()


# -- P-5


HALF = "\ud83d"
PLACES: dict[str, tuple[str, dict[str, object]]] = {
    "a message": (CHAT, chat_body(16, messages=[{"role": "user", "content": f"hi {HALF}"}])),
    "a part": (CHAT, chat_body(16, messages=[{"role": "user", "content": [{"type": "text", "text": HALF}]}])),
    "a role": (CHAT, chat_body(16, messages=[{"role": HALF, "content": "hi"}])),
    "a key of a message": (CHAT, chat_body(16, messages=[{"role": "user", "content": "hi", HALF: 1}])),
    "a tool's name": (CHAT, chat_body(16, tools=[{"type": "function", "function": {"name": HALF}}])),
    "a tool call": (
        CHAT,
        chat_body(16, messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": HALF}}]}]),
    ),
    "the model": (CHAT, chat_body(16, model=HALF)),
    "the user": (CHAT, chat_body(16, user=HALF)),
    "a key": (CHAT, chat_body(16, **{HALF: 1})),
    "a session": (CHAT, chat_body(16, session_id=HALF)),
    "a stop": (CHAT, chat_body(16, stop=[HALF])),
    "a prompt": (COMPLETIONS, {"model": MODEL, "prompt": HALF, "max_tokens": 16}),
    "one of two prompts": (COMPLETIONS, {"model": MODEL, "prompt": ["a", HALF], "max_tokens": 16}),
    "a suffix": (COMPLETIONS, {"model": MODEL, "prompt": "a", "suffix": HALF, "max_tokens": 16}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", PLACES)
async def test_p5_half_an_emoji_is_refused_or_goes_on_untouched(bench: Bench, name: str, stream: bool) -> None:
    target, value = PLACES[name]
    body, tag = json.dumps(value | {"stream": stream, "stream_options": {"include_usage": True}}).encode(), bench.tag("p5")
    found = await post_raw(bench, target, body, tag)
    assert found.status in (200, 400), found
    if found.status == 400:
        assert found.error["message"]
        assert bench.arrivals(tag) == 0
    else:
        assert found.is_tidy
        assert not any("error" in json.loads(event) for event in found.events if event != b"[DONE]")
        (seen,) = bench.fake.tagged(tag)
        assert seen.body == body
    assert bench.gateway.log_events[-1]["event"]  # each line is still JSON


async def test_p5_bytes_that_are_no_utf_8_are_refused(bench: Bench) -> None:
    for bad in (b"\xff", b"\xed\xa0\xbd", b"\xc0\x80"):
        tag = bench.tag("p5-bytes")
        found = await post_raw(bench, CHAT, json.dumps(chat_body(16, user="@")).encode().replace(b"@", bad), tag)
        assert found.status == 400, found
        assert bench.arrivals(tag) == 0
    await bench.end_case()


# -- P-6


MODEST_S = 0.5  # a busy machine's share in a gap
ATTEMPTS = 3  # a busy machine may stop everyone once; a gateway that does so does it each time
BIG_BYTES = 20 << 20


@dataclass(slots=True)
class Gaps:
    """What two clients saw from threads of their own: the waits for /health, and the gaps in a stream (seconds)."""

    health_s: list[float] = field(default_factory=list)
    stream_s: list[float] = field(default_factory=list)

    @property
    def worst(self) -> tuple[float, float]:
        return max(self.health_s), max(self.stream_s)


@asynccontextmanager
async def watching(bench: Bench, tag: str) -> AsyncIterator[Gaps]:
    gaps, over = Gaps(), threading.Event()
    address = urlsplit(bench.gateway.url)

    def ask_health() -> None:
        connection = HTTPConnection(address.netloc, timeout=PATIENCE_S)
        while not over.wait(0.02):
            began = time.monotonic()
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            gaps.health_s.append(time.monotonic() - began)
        connection.close()

    def read_stream() -> None:
        body = json.dumps(block_body(4, stream=True))
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=PATIENCE_S) as sock:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nX-Tag: {tag}\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall((head + body).encode())
            sock.recv(1 << 16)
            last = time.monotonic()
            while not over.is_set() and sock.recv(1 << 16):
                now = time.monotonic()
                gaps.stream_s.append(now - last)
                last = now

    threads = [asyncio.create_task(asyncio.to_thread(work)) for work in (ask_health, read_stream)]
    try:
        await eventually(lambda: len(gaps.health_s) >= 10 and len(gaps.stream_s) >= 20)
        yield gaps
    finally:
        over.set()
        await asyncio.gather(*threads)


def post_from_a_thread(bench: Bench, target: str, body: bytes, tag: str) -> int:
    connection = HTTPConnection(urlsplit(bench.gateway.url).netloc, timeout=60)
    connection.request("POST", target, body, {"x-tag": tag, "content-type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


def text_of(size: int) -> str:
    return "word " * (size // 5)


def reading_takes(target: str, body: bytes) -> float:
    """Seconds of one read of the body in a process of its own, on this machine as it is now."""
    program = (
        "import sys, time; from contextlib import suppress; from gateway.core.errors import InvalidRequest;"
        "from gateway.dialects import DIALECTS; body = sys.stdin.buffer.read(); began = time.monotonic()\n"
        f"with suppress(InvalidRequest): DIALECTS[{target!r}].read_request(body)\n"
        "print(time.monotonic() - began)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=body, capture_output=True, check=True, timeout=60)
    return float(done.stdout)


def said(text: str, times: int = 1) -> bytes:
    return json.dumps(chat_body(16, messages=[{"role": "user", "content": text}] * times)).encode()


def prompted(prompt: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 16}).encode()


HUGE: dict[str, tuple[str, bytes]] = {
    "one long text": (CHAT, said(text_of(BIG_BYTES))),
    "one long prompt": (COMPLETIONS, prompted(text_of(BIG_BYTES))),
    "many messages": (CHAT, said("a", BIG_BYTES // 35)),
    "many ids": (COMPLETIONS, prompted([1] * (BIG_BYTES // 3))),
    "many prompts": (COMPLETIONS, prompted(["a"] * (BIG_BYTES // 5))),
    "a huge bias": (
        CHAT,
        json.dumps(chat_body(16, logit_bias={str(number): 1 for number in range(BIG_BYTES // 13)})).encode(),
    ),
    "nested": (CHAT, b'{"messages": ' + b"[" * BIG_BYTES),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient() -> AsyncIterator[Bench]:
    """A bench on which what does not fit beside a stream waits for a moment only."""
    async with running_bench(KVGATE_QUEUE_TIMEOUT="2s") as running:
        yield running


@pytest.mark.parametrize("name", HUGE)
async def test_p6_a_huge_body_does_not_stop_everyone(impatient: Bench, name: str) -> None:
    bench, (target, body) = impatient, HUGE[name]
    seen: list[tuple[float, tuple[float, float], tuple[float, float]]] = []
    for _ in range(ATTEMPTS):
        seen.append(await gaps_beside(bench, target, body, {429} if name == "many messages" else {400}))
        one_read_s, undisturbed, disturbed = seen[-1]
        if all(
            during_s < max(5 * before_s, MODEST_S + one_read_s)
            for before_s, during_s in zip(undisturbed, disturbed, strict=True)
        ):
            break
    else:
        pytest.fail(f"everyone was stopped, every time: {seen}")
    await bench.end_case()


async def gaps_beside(
    bench: Bench, target: str, body: bytes, expected: set[int]
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Seconds of one read elsewhere, the worst gaps while it goes on elsewhere, and while two go on in the gateway."""
    tag, stream_tag = bench.tag("p6"), bench.tag("p6-stream")
    bench.fake.script(stream_tag, ticking_stream(gap_s=0.01))
    async with watching(bench, stream_tag) as gaps:
        one_read_s = await asyncio.to_thread(reading_takes, target, body)
        undisturbed = gaps.worst
        gaps.health_s.clear()
        gaps.stream_s.clear()
        statuses = await asyncio.gather(*(asyncio.to_thread(post_from_a_thread, bench, target, body, tag) for _ in range(2)))
        await eventually(lambda: bool(gaps.health_s and gaps.stream_s))
        disturbed = gaps.worst
    # Many messages of a letter each are weighed as a whole context, which waits for the stream in vain.
    assert set(statuses) == expected
    assert bench.arrivals(tag) == 0
    assert not any(len(each.body) > len(body) // 2 for each in bench.fake.requests), "it was sent to be counted"
    return one_read_s, undisturbed, disturbed


# -- P-7


LETTERS = [{"role": "user", "content": "a"}] * 200


async def test_p7_what_the_template_adds_to_each_message_is_held_for() -> None:
    async with running_bench() as bench:
        gate, tag = asyncio.Event(), bench.tag("p7")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        body = chat_body(16, messages=LETTERS)
        by_text_alone = blocks_of(200, 16)
        assert 2 * by_text_alone <= BUDGET_BLOCKS
        async with await bench.open(CHAT, body, tag=tag) as first, await bench.open(CHAT, body, tag=tag) as second:
            await bench.state_where(lambda state: (state.in_flight, state.queued) == (1, 1), "one runs, the other waits")
            gate.set()
            answers = [await first.answer(), await second.answer()]
        assert [found.status for found in answers] == [200, 200]
        assert bench.fake.high_water(tag) == 1
        told = answers[0].json()["usage"]["prompt_tokens"]
        assert told >= 1000
        assert answers[0].head.number("x-kvgate-blocks") >= blocks_of(told, 16)
        await bench.idle()
        metrics = await bench.gateway.metrics()
        assert metrics.total("kvgate_prompt_estimate_ratio_count") == 2
        assert metrics.total("kvgate_prompt_estimate_ratio_sum") / 2 >= 1  # never below the truth
        await bench.end_case()
