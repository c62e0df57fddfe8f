"""Cases D: told to stop with work in hand, and busy without being sick."""

import asyncio
import json
import resource
import time
from contextlib import AsyncExitStack
from statistics import median, quantiles

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, Bench, block_body, chat_body, running_bench
from support.fake_upstream import eventually
from support.gates import held_stream, ticking_stream
from support.http_client import Answer, Connection, ask, statuses

# -- D-1


DRAIN_S = 3.0
LENIENT_S = 2.0


async def test_d1_sigterm_with_work_in_hand_ends_all_of_it_and_says_so() -> None:
    async with running_bench(KVGATE_DRAIN_DELAY="0s", KVGATE_DRAIN_TIMEOUT=f"{DRAIN_S}s") as bench:
        gate = asyncio.Event()
        tags = {name: bench.tag(name) for name in ("ends", "endless", "queued")}
        bench.fake.script(tags["ends"], held_stream(gate))
        bench.fake.script(tags["endless"], ticking_stream(gap_s=0.05))
        async with AsyncExitStack() as stack:
            ends = await stack.enter_async_context(await bench.open(CHAT, chat_body(400, stream=True), tag=tags["ends"]))
            endless = await stack.enter_async_context(await bench.open(CHAT, chat_body(400, stream=True), tag=tags["endless"]))
            for stream in (ends, endless):
                assert (await stream.head()).is_event_stream
                assert await stream.read()
            queued = [
                await stack.enter_async_context(await bench.wait_in_line(BUDGET_BLOCKS, tags["queued"])) for _ in range(3)
            ]
            assert bench.gateway.watch is not None
            await bench.gateway.watch.stop()

            began = time.monotonic()
            stopping = asyncio.create_task(bench.gateway.stop(within_s=DRAIN_S + 10))
            refused = await asyncio.gather(*(client.answer() for client in queued))
            refused_after_s = time.monotonic() - began
            for answer in refused:
                assert (answer.status, answer.error["code"]) == (503, "draining")
                assert answer.head.number("retry-after") >= 1
            assert refused_after_s < 1 + LENIENT_S

            gate.set()
            ended = await ends.rest()
            assert ended.is_tidy
            assert ended.events[-1] == b"[DONE]"
            assert b"after-0" in ended.body

            broken = await endless.rest()
            broken_after_s = time.monotonic() - began
            assert b"[DONE]" not in broken.body
            assert not broken.is_tidy or "error" in json.loads(broken.events[-1]), broken.body[-300:]
            assert DRAIN_S * 0.9 < broken_after_s < DRAIN_S + LENIENT_S
            await eventually(lambda: bench.fake.open_requests() == 0)

            exited = await stopping
            assert exited.code == 0, exited
            assert time.monotonic() - began < DRAIN_S + 2 + LENIENT_S
        told = [event["outcome"] for event in bench.gateway.log_events if "outcome" in event]
        assert sorted(told) == ["completed", "drained"] + ["refused_draining"] * 3
        assert bench.fake.tagged(tags["queued"]) == []
        assert bench.fake.tagged(tags["endless"])[0].end == "client gone"


async def test_d1_a_second_signal_ends_at_once() -> None:
    async with running_bench(KVGATE_DRAIN_TIMEOUT="60s") as bench:
        tag = bench.tag("endless")
        bench.fake.script(tag, ticking_stream(gap_s=0.05))
        async with await bench.open(CHAT, chat_body(400, stream=True), tag=tag) as endless:
            await endless.head()
            assert await endless.read()
            first = asyncio.create_task(bench.gateway.stop(within_s=30))
            await eventually(lambda: any("drain" in line.lower() for line in bench.gateway.output))
            exited = await bench.gateway.stop(within_s=15)
            broken = await endless.rest()
            assert b"[DONE]" not in broken.body
            await first
        assert exited.code in (0, 130, 143, -15), exited


async def test_d1_an_idle_gateway_ends_at_once() -> None:
    async with running_bench(KVGATE_DRAIN_TIMEOUT="60s") as bench:
        await bench.full()
        exited = await bench.gateway.stop(within_s=10)
        assert exited.code == 0


async def test_d1_during_the_drain_delay_only_readiness_changes() -> None:
    async with running_bench(KVGATE_DRAIN_DELAY="1500ms", KVGATE_DRAIN_TIMEOUT="2s") as bench:
        stopping = asyncio.create_task(bench.gateway.stop(within_s=20))
        async with asyncio.timeout(1.2):
            while (await bench.gateway.probe("/ready")).status == 200:
                await asyncio.sleep(0.005)
        assert (await bench.gateway.probe("/ready", on_data_port=True)).status == 503
        assert (await bench.gateway.probe("/health")).status == 200
        assert (await bench.std()).status == 200  # a newcomer in the delay is served
        assert (await stopping).code == 0


# -- D-3


CLIENTS = 1000
QUEUE_S = 4


async def test_d3_a_thousand_clients_at_once_are_all_answered_and_busy_is_not_sick() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    async with running_bench(KVGATE_QUEUE_REQUESTS="200", KVGATE_QUEUE_TIMEOUT=f"{QUEUE_S}s") as bench:
        await bench.full()
        await bench.idle()
        files_before, pid = bench.gateway.open_files(), bench.gateway.pid
        undisturbed_s = median([await timed_health(bench) for _ in range(20)])
        tag = bench.tag("d3")
        bench.fake.script(tag, bench.engine.completion(first_gap_s=0.5))

        over, health_s, ready = asyncio.Event(), list[float](), set[int]()

        async def look() -> None:
            while not over.is_set():
                health_s.append(await timed_health(bench))
                ready.add((await bench.gateway.probe("/ready", on_data_port=True)).status)
                await asyncio.sleep(0.05)

        looking = asyncio.create_task(look())
        began = time.monotonic()
        answers = await asyncio.gather(*(one_of_many(bench, tag) for _ in range(CLIENTS)))
        took_s = time.monotonic() - began
        over.set()
        await looking

        told = statuses(answers)
        assert told.keys() == {200, 429}, told
        assert sum(told.values()) == CLIENTS
        assert {answer.error["code"] for answer in answers if answer.status == 429} <= {
            "queue_full",
            "queue_timeout",
            "predicted_wait",
        }
        assert took_s < QUEUE_S + 1 + 5 * LENIENT_S
        assert ready == {200}
        assert quantiles(health_s, n=100)[98] < max(5 * undisturbed_s, 1.0)
        state = await bench.idle()
        assert state.received == CLIENTS + 1
        assert bench.gateway.pid == pid
        assert bench.gateway.is_running
        # Connections to the engine may stay warm; those of the clients are gone.
        await eventually(lambda: bench.gateway.open_files() <= files_before + bench.fake.connections_open + 2)
        await bench.end_case()


async def one_of_many(bench: Bench, tag: str) -> Answer:
    async with await Connection.open(bench.gateway.url) as client:
        await client.send("POST", COMPLETIONS, json.dumps(block_body(4)).encode(), {"x-tag": tag})
        return await client.answer()


async def timed_health(bench: Bench) -> float:
    began = time.monotonic()
    assert (await ask(bench.gateway.url, "GET", "/health")).status == 200
    return time.monotonic() - began
