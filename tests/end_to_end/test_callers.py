"""Callers with keys, a reserve that is changed under load, and streams that are answered early, on real sockets."""

import asyncio
import json
import signal
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, MODEL, Bench, block_body, chat_body, running_bench
from support.fake_upstream import answer, eventually
from support.gates import held_head, held_stream
from support.gateway_process import refused_start, speaks_of
from support.http_client import ask
from support.keys import keys_file

pytestmark = pytest.mark.asyncio(loop_scope="module")

A, B = b"s3cr3t-key-of-team-a", b"s3cr3t-key-of-team-b"


async def status_with(bench: Bench, key: bytes | None, *, as_bearer: bool = True) -> int:
    header = {"Authorization": f"Bearer {key.decode()}"} if as_bearer and key else {"X-Api-Key": key.decode()} if key else {}
    return (await bench.post(CHAT, chat_body(16), headers=header)).status


async def test_keys_are_checked_changed_by_sighup_and_kept_where_the_file_breaks(tmp_path: Path) -> None:
    path = keys_file(tmp_path, a=A)
    async with running_bench(KVGATE_KEYS_FILE=str(path), KVGATE_BACKEND_KEY="backend") as bench:
        gateway = bench.gateway

        async def reread(words: str) -> None:
            before = gateway.text.count(words)
            gateway.process.send_signal(signal.SIGHUP)
            await eventually(lambda: gateway.text.count(words) == before + 1)

        assert [await status_with(bench, key) for key in (A, B, None)] == [200, 401, 401]
        assert await status_with(bench, A, as_bearer=False) == 200
        # A stream that runs under a key goes on when the key is taken away.
        gate, tag = asyncio.Event(), bench.tag("runs")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        running = await bench.open(CHAT, chat_body(16), tag=tag, headers={"Authorization": f"Bearer {A.decode()}"})
        await eventually(lambda: bench.fake.open_requests(tag) > 0)
        keys_file(tmp_path, b=B)
        await reread("keys read again")
        assert [await status_with(bench, key) for key in (A, B, None)] == [401, 200, 401]
        gate.set()
        assert (await running.answer()).status == 200
        running.vanish()
        path.write_text(f"[tenants.c]\nkeys = ['{A.decode()}']\n")
        await reread("the keys stay as they were")
        assert [await status_with(bench, key) for key in (A, B)] == [401, 200]

        assert (await ask(gateway.url, "GET", "/v1/models")).status == 401
        assert (await ask(gateway.url, "GET", "/health")).status == 200
        assert (await ask(gateway.url, "GET", "/ready")).status == 200
        state = await bench.idle()
        assert state.outcomes["refused_unauthorized"] == 5
        assert state.received == sum(state.outcomes.values())
        metrics = await gateway.metrics()
        assert metrics.by("kvgate_tenant_requests_total", "tenant") == {"a": 3, "b": 2, "anonymous": 5}
        seen = [request for request in bench.fake.requests if request.method == b"POST"]
        assert {request.header("authorization") for request in seen} == {b"Bearer backend"}
        assert not any(b"s3cr3t" in request.raw_head for request in seen)
        told = json.dumps(state.raw) + (await gateway.probe("/metrics")).body.decode()
        assert "s3cr3t" not in gateway.text + told


async def test_a_keys_file_that_cannot_be_used_ends_the_start_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[tenants.a]\nkeys = ["s3cr3t"]\n')
    ended = await refused_start(["http://127.0.0.1:9"], {"KVGATE_KEYS_FILE": str(path)})
    assert ended.code == 2
    (line,) = ended.lines
    assert speaks_of(line, "KVGATE_KEYS_FILE", "tenants.a", "key 1 is no SHA-256")
    assert "s3cr3t" not in line


async def test_a_changed_reserve_never_ends_what_runs_and_lets_in_what_then_fits() -> None:
    # Not watched: between the change and the end of what runs, more is held than may be granted, which is the point.
    async with running_bench(watched=False) as bench:

        async def reserve(text: str) -> None:
            body, headers = json.dumps({"reserve": text}).encode(), {"Content-Type": "application/json"}
            assert (await ask(bench.gateway.admin_url, "PUT", "/kvgate/reserve", body, headers)).status == 200

        gate, tag = asyncio.Event(), bench.tag("runs")
        bench.fake.script(tag, held_stream(gate))
        running = [await bench.take(20, tag, stream=True) for _ in range(2)]
        await reserve("90%")
        state = await bench.gateway.state()
        assert (state.backend["held_blocks"], state.backend["reserve_blocks"]) == (40, 58)
        waiting = await bench.wait_in_line(10, bench.tag("waits"))  # it fits into 64 - 40, and not above the new reserve
        await reserve("0")
        assert (await waiting.answer()).status == 200
        assert bench.fake.open_requests(tag) == 2
        gate.set()
        answers = [await each.answer() for each in running]
        assert all(found.status == 200 and found.body.endswith(b"data: [DONE]\n\n") for found in answers)
        for connection in (*running, waiting):
            connection.vanish()
        await bench.state_where(lambda state: state.is_idle, "IDLE")
        await bench.full()
        await bench.twin()


async def test_a_stream_is_answered_early_and_the_sdk_reads_its_answer_and_its_errors() -> None:
    async with (
        running_bench(KVGATE_EARLY_COMMIT="50ms", KVGATE_QUEUE_TIMEOUT="2s") as bench,
        AsyncOpenAI(base_url=f"{bench.gateway.url}/v1", api_key="any", timeout=30, max_retries=0) as sdk,
    ):

        async def talk(tag: str) -> list[str | None]:
            stream = await sdk.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "ping"}],
                max_tokens=160,
                stream=True,
                extra_headers={"x-tag": tag},
            )
            assert "x-kvgate-queue-ms" in stream.response.headers
            return [part.choices[0].delta.content async for part in stream]

        async with bench.everything_taken() as gate:
            stream = await sdk.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "ping"}], max_tokens=160, stream=True
            )  # it returns with the head: while everything is taken, only an early one can have come
            assert (await bench.gateway.state()).queued == 1
            gate.set()
            assert [part.choices[0].delta.content async for part in stream] == ["tok "] * 4

        async with bench.everything_taken():
            with pytest.raises(openai.APIError, match="no room became free") as late:
                await talk("")
            assert late.value.code == "queue_timeout"

        says_no = bench.tag("no")
        bench.fake.script(says_no, answer(404, b'{"error": {"message": "no such model"}}', []))
        async with bench.everything_taken() as gate:
            talking = asyncio.create_task(talk(says_no))
            await bench.state_where(lambda state: state.queued == 1, "it waits")
            await bench.state_where(lambda state: (state.raw["queue"]["oldest_s"] or 0) > 0.2, "it was answered early")
            gate.set()
            with pytest.raises(openai.APIError, match="no such model"):
                await talking
        state = await bench.idle()
        assert (state.outcomes["timeout_queue"], state.outcomes["engine_refused"]) == (1, 1)

        async with bench.everything_taken():
            leaves = await bench.wait_in_line(BUDGET_BLOCKS, bench.tag("leaves"))
            leaves.vanish()
            stays = await bench.open(COMPLETIONS, block_body(BUDGET_BLOCKS, stream=True), tag=bench.tag("stays"))
            await bench.state_where(lambda state: (state.raw["queue"]["oldest_s"] or 0) > 0.2, "the head is out")
            stays.vanish()
            await bench.state_where(lambda state: state.queued == 0, "both have left", within_s=2)
        state = await bench.idle()
        assert state.outcomes["client_gone_queued"] == 2
        await bench.end_case()
