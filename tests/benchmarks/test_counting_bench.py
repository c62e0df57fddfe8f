"""Exact counts of large prompts while a stream runs: what they cost the stream, as ratios to the gaps of an idle gateway.

python -m pytest tests/benchmarks/test_counting_bench.py -s
"""

import asyncio
import time
from pathlib import Path
from statistics import median, quantiles

from gateway.tokens.tokenizer import Tokenizer
from support.bench import CHAT, MODEL, Bench, chat_body, running_bench
from support.book_watch import State
from support.fake_engine import JSON, FakeEngine
from support.fake_upstream import FakeExchange, answer, eventually
from support.gates import held_head, ticking_stream
from support.http_client import Connection
from support.texts import ORDINARY, texts
from support.tiny_tokenizer import write_tokenizer

CONTEXT = 131_072
USABLE_BLOCKS = 12_500
PROMPT_BYTES = 200_000
WAITING = 16
COUNTS = 48
AT_ONCE = 8
TICK_S = 0.01
IDLE_TICKS = 200


class Uncounting(FakeEngine):
    """It has no route that counts."""

    async def __call__(self, exchange: FakeExchange) -> None:
        if exchange.request.target == b"/tokenize":
            await answer(404, b'{"detail":"Not Found"}', [JSON])(exchange)
        else:
            await super().__call__(exchange)


def engine() -> FakeEngine:
    """One that holds a context and a half."""
    blocks = USABLE_BLOCKS + 1
    return Uncounting(
        num_gpu_blocks=blocks, max_model_len=CONTEXT, kv_cache_size_tokens=int(blocks / (CONTEXT // 16) * CONTEXT)
    )


def prompts() -> list[str]:
    """Prose and code, each prompt another from its first word on."""
    prose = " ".join(texts(3000, seed=5, kinds_of=ORDINARY))
    prose = (prose * (PROMPT_BYTES // len(prose) + 1))[:PROMPT_BYTES]
    return [f"{number} {prose[number:]}" for number in range(COUNTS)]


async def gaps_of(stream: Connection, until: asyncio.Event) -> list[float]:
    """Seconds between the reads of a stream."""
    found: list[float] = []
    await stream.read()
    last = time.monotonic()
    while not until.is_set():
        await stream.read()
        now = time.monotonic()
        found.append(now - last)
        last = now
    return found


async def take_all_but_a_little(bench: Bench, gate: asyncio.Event) -> list[Connection]:
    tag = bench.tag("holder")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    body = {"model": MODEL, "prompt": [1], "max_tokens": 6_200 * 16}
    holders = [await bench.open("/v1/completions", body, tag=tag) for _ in range(2)]
    await eventually(lambda: bench.fake.open_requests(tag) == 2)
    return holders


async def ask_all(bench: Bench, sent: list[dict[str, object]]) -> list[Connection]:
    """Some at a time. Returns when each was counted: the first of them wait, and the line has no place for the others."""
    asked: list[Connection] = []

    def are_counted(state: State) -> bool:
        return state.queued + int(state.raw["outcomes"].get("refused_queue_full", 0)) == len(asked)

    for start in range(0, len(sent), AT_ONCE):
        asked += [await bench.open(CHAT, body) for body in sent[start : start + AT_ONCE]]
        await bench.state_where(are_counted, "all are counted", within_s=60)
    return asked


async def test_counting_large_prompts_beside_a_stream_does_not_delay_it(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    here = Tokenizer(folder)
    sent = prompts()
    started = time.monotonic()
    tokens = here.count_chat({"messages": [{"role": "user", "content": sent[0]}]})
    count_s = time.monotonic() - started
    assert tokens < CONTEXT < PROMPT_BYTES
    gate = asyncio.Event()
    async with running_bench(engine(), KVGATE_TOKENIZER=str(folder), KVGATE_QUEUE_REQUESTS=str(WAITING)) as bench:
        tag = bench.tag("ticks")
        bench.fake.script(tag, ticking_stream(gap_s=TICK_S))
        stream = await bench.open(CHAT, chat_body(stream=True), tag=tag)
        assert (await stream.head()).status == 200
        holders = await take_all_but_a_little(bench, gate)
        idle_over, busy_over = asyncio.Event(), asyncio.Event()
        measuring = asyncio.create_task(gaps_of(stream, idle_over))
        await asyncio.sleep(IDLE_TICKS * TICK_S)
        idle_over.set()
        idle = await measuring

        measuring = asyncio.create_task(gaps_of(stream, busy_over))
        bodies: list[dict[str, object]] = [chat_body(16, messages=[{"role": "user", "content": text}]) for text in sent]
        asked = await ask_all(bench, bodies)
        busy_over.set()
        busy = await measuring
        assert len([request for request in bench.fake.requests if request.target == b"/tokenize"]) == 1
        for connection in [*asked, stream]:
            connection.hang_up()
        gate.set()
        for holder in holders:
            assert (await holder.answer()).status == 200
            holder.hang_up()
        await bench.idle()
    late = sum(gap > TICK_S + count_s / 2 for gap in busy)
    ratios = {
        "median": median(busy) / median(idle),
        "95 %": quantiles(busy, n=20)[-1] / quantiles(idle, n=20)[-1],
        "longest": max(busy) / max(idle),
    }
    print(f"\n{COUNTS} counts of {PROMPT_BYTES} bytes, {count_s * 1000:.0f} ms each alone; {len(busy)} gaps, {late} late")
    print("busy / idle:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    # On the event loop every count would hold up one event by its whole length.
    assert late < COUNTS / 4
    assert ratios["median"] < 2
