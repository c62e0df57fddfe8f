"""Cases A, the rest: what the queue's limit covers, two workers, and a clock that jumps."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, block_body, chat_body, running_bench
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeExchange, eventually
from support.gates import held_head, held_stream
from support.gateway_process import refused_start
from support.http_client import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 1.5
LENIENT_S = 1.5


# --


async def test_a5_the_limit_counts_from_the_head_so_that_a_slow_upload_leaves_less_to_wait() -> None:
    async with running_bench(KVGATE_QUEUE_TIMEOUT=f"{LIMIT_S}s") as bench:
        gate, holder_tag, tag = asyncio.Event(), bench.tag("holder"), bench.tag("slow")
        bench.fake.script(holder_tag, held_head(gate, bench.engine.completion()))
        async with await bench.take(BUDGET_BLOCKS, holder_tag) as holder, await Connection.open(bench.gateway.url) as client:
            whole = client.request_bytes("POST", COMPLETIONS, json.dumps(block_body(4)).encode(), {"x-tag": tag})
            began = time.monotonic()
            await client.send_raw(whole[:-10])
            await bench.state_where(lambda state: state.reading == 1, "the head was taken")
            await asyncio.sleep(LIMIT_S * 0.6)
            await client.send_raw(whole[-10:])
            refused = await client.answer()
            took_s = time.monotonic() - began
            assert (refused.status, refused.error["code"]) == (429, "queue_timeout")
            assert LIMIT_S * 0.95 < took_s < LIMIT_S + LENIENT_S
            gate.set()
            assert (await holder.answer()).status == 200
        await bench.idle()
        assert bench.arrivals(tag) == 0
        await bench.end_case()


class SlowCounter(FakeEngine):
    """Counts as well as any, and takes its time."""

    async def __call__(self, exchange: FakeExchange) -> None:
        if exchange.request.target == b"/tokenize":
            await asyncio.sleep(LIMIT_S * 0.6)
        await super().__call__(exchange)


async def test_a5_so_does_a_slow_count() -> None:
    async with running_bench(SlowCounter(), KVGATE_QUEUE_TIMEOUT=f"{LIMIT_S}s") as bench:
        gate, holder_tag, tag = asyncio.Event(), bench.tag("holder"), bench.tag("counted")
        bench.fake.script(holder_tag, held_head(gate, bench.engine.completion()))
        async with await bench.take(BUDGET_BLOCKS, holder_tag) as holder:
            began = time.monotonic()
            long = [{"role": "user", "content": "a" * 2_000}]  # beyond the context by its bytes, not by its tokens
            refused = await bench.post(CHAT, chat_body(16, messages=long), tag=tag)
            took_s = time.monotonic() - began
            assert any(seen.target == b"/tokenize" for seen in bench.fake.requests)
            assert (refused.status, refused.error["code"]) == (429, "queue_timeout")
            assert LIMIT_S * 0.95 < took_s < LIMIT_S + LENIENT_S
            gate.set()
            assert (await holder.answer()).status == 200
        assert bench.arrivals(tag) == 0
        await bench.end_case()


@pytest.mark.parametrize("stream", [False, True])
async def test_a5_the_limit_plays_no_part_once_a_request_was_sent(stream: bool) -> None:
    async with running_bench(KVGATE_QUEUE_TIMEOUT="200ms") as bench:
        gate, tag = asyncio.Event(), bench.tag("long")
        bench.fake.script(tag, held_stream(gate) if stream else held_head(gate, bench.engine.completion()))
        async with await bench.open(CHAT, chat_body(16, stream=stream), tag=tag) as client:
            await eventually(lambda: bench.fake.open_requests(tag) == 1)
            await asyncio.sleep(1.0)  # five times the limit
            gate.set()
            found = await client.answer()
        assert found.status == 200
        assert found.is_tidy
        state = await bench.idle()
        assert state.outcomes == {"completed": 1}
        await bench.end_case()


# --


@pytest.mark.parametrize("workers", ["2", "8"])
async def test_a8_a_second_worker_would_have_a_second_budget_so_the_start_is_refused(workers: str) -> None:
    ended = await refused_start(["http://127.0.0.1:9"], {"KVGATE_WORKERS": workers})
    (line,) = ended.lines
    assert "KVGATE_WORKERS" in line
    assert "KVGATE_SHARE" in line


async def test_a8_two_gateways_that_share_never_hold_more_than_the_budget() -> None:
    """Each plans with its part: what does not fit into one part does not run, and TWIN never runs together."""
    async with running_bench(KVGATE_SHARE="0.5") as bench:
        assert (await bench.gateway.state()).backend["budget_blocks"] == BUDGET_BLOCKS // 2
        refused = await bench.post(COMPLETIONS, block_body(BUDGET_BLOCKS // 2 + 1))
        assert (refused.status, refused.error["code"]) == (400, "kv_budget_exceeded")
        assert (await bench.post(COMPLETIONS, block_body(BUDGET_BLOCKS // 2))).status == 200


# --


CLOCK = """
import os, time
_real = time.time
_file = os.environ["JUMP_FILE"]

def jumping():
    try:
        with open(_file) as told:
            return _real() + float(told.read() or 0)
    except OSError:
        return _real()

time.time = jumping
"""


@pytest.mark.parametrize("jump_s", [3600, -3600])
async def test_a9_a_wall_clock_that_jumps_ends_nothing_and_starts_nothing(tmp_path: Path, jump_s: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    jump = tmp_path / "jump"
    async with running_bench(PYTHONPATH=str(tmp_path), JUMP_FILE=str(jump), KVGATE_QUEUE_TIMEOUT="60s") as bench:
        gate, stream_tag, tag = asyncio.Event(), bench.tag("stream"), bench.tag("waits")
        bench.fake.script(stream_tag, held_stream(gate))
        streams = [await bench.open(COMPLETIONS, block_body(32, stream=True), tag=stream_tag) for _ in range(2)]
        for stream in streams:
            await stream.head()
            await stream.read_until(b"before-0")
        waits = await bench.wait_in_line(32, tag)
        jump.write_text(str(jump_s))
        for _ in range(5):  # the watchers of deadlines and stalls have looked
            assert (await bench.gateway.state()).queued == 1
            await asyncio.sleep(0.1)
        assert (await bench.gateway.probe("/ready")).status == 200
        gate.set()
        assert [(await stream.rest()).is_tidy for stream in streams] == [True, True]
        assert (await waits.answer()).status == 200
        for client in (*streams, waits):
            client.vanish()
        state = await bench.idle()
        assert state.outcomes == {"completed": 3}
        await eventually(lambda: sum(event["event"] == "request" for event in bench.gateway.log_events) == 3)
        told = [event for event in bench.gateway.log_events if event["event"] == "request"]
        for event in told:
            for name, value in event.items():
                if name.endswith("_ms"):
                    assert 0 <= value < 60_000, (name, value)
        hours = {event["time"][11:13] for event in bench.gateway.log_events}
        assert len(hours) > 1, "the clock did not jump"
        metrics = await bench.gateway.metrics()
        for name, _, value in metrics.samples:
            assert value >= 0, name
            if name.endswith("_seconds_sum"):
                assert value < 600, name
        await bench.end_case()
