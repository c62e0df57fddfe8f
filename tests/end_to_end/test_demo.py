"""`kvgate demo`, run as a newcomer's machine or a CI runs it: no terminal, whatever the environment, nothing left behind."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from support.fake_upstream import eventually

RESULT_KEYS = {"requests", "completed", "preemptions", "worst_gap_s_median", "ttft_s_p50", "wall_s", "output_tokens_per_s"}


@asynccontextmanager
async def running_demo(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "demo",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_demo_shows_in_json_that_the_gate_ends_preemption() -> None:
    # Settings and proxies of the user's own must not reach the demo's gateway.
    hostile = {
        "KVGATE_RESERVE": "100%",
        "KVGATE_NO_SUCH": "1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    async with running_demo("--once", "--json", "--port", "0", **hostile) as process:
        async with asyncio.timeout(120):
            told, said = await process.communicate()
    result = json.loads(told)
    assert process.returncode == 0, said.decode()
    assert result["ok"] is True
    assert result["problems"] == []
    ungated, gated = result["ungated"], result["gated"]
    assert ungated.keys() >= RESULT_KEYS
    assert gated.keys() >= RESULT_KEYS
    assert ungated["preemptions"] >= 10
    assert gated["preemptions"] == 0
    assert result["preemptions_saved"] == ungated["preemptions"]
    assert gated["completed"] == gated["requests"] == ungated["requests"]
    # The same work was asked for on both sides, and the gate let requests wait rather than refuse them.
    assert gated["output_tokens"] == ungated["output_tokens"]
    assert gated["refusals"] == 0
    assert gated["peak_queued"] > 0
    assert b"through kvgate" in said


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended (one that has may wait to be collected by whoever adopted it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="looks for children in /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
async def test_a_demo_that_is_cut_short_leaves_no_process_behind(number: signal.Signals, status: int) -> None:
    async with running_demo() as process:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while not (await process.stdout.readline()).startswith(b"1. Straight at the engine"):
                pass
        children = children_of(process.pid)
        assert children
        process.send_signal(number)
        async with asyncio.timeout(30):
            assert await process.wait() == status
        await eventually(lambda: not any(is_running(child) for child in children), within_s=20)


async def test_after_the_summary_both_keep_serving_until_a_signal() -> None:
    async with running_demo("--json", "--port", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(120):
            result = json.loads(await process.stdout.readline())
            lines = [""]
            while not lines[-1].startswith("Ctrl-C ends"):
                lines.append((await process.stderr.readline()).decode())
        assert result["ok"] is True
        url = next(re.search(r"http://[^']+", line) for line in lines if "OpenAI(base_url=" in line)
        assert url is not None
        async with openai.AsyncOpenAI(base_url=url[0], api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="simulated-8b", messages=[{"role": "user", "content": "hello"}], max_tokens=5
            )
        assert answer.choices[0].message.content
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
        assert not any(is_running(child) for child in children)
