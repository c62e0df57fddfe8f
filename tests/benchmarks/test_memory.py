"""Long days: thousands of streams held open, then requests without end; what the gateway has resident must not creep.

    python -m pytest tests/benchmarks/test_memory.py -s --memory-streams 5000 --memory-hold 60 --memory-requests 100000

In the suite it is a short day. Figures are printed; only ratios are demanded.
"""

import asyncio
import time

import pytest
import uvloop

from benchmarks.lean_peers import SETTINGS, BenchClient, BenchEngine, memory_bytes, raise_file_limit, request
from support.book_watch import State
from support.gateway_process import GatewayProcess, running_gateway

MIB = 1 << 20
CLIENTS = 64
WARM_UP = 2_000
TICK_S = 5.0


async def serve(gateway: GatewayProcess, requests: int) -> float:
    """So many requests, every other one a stream, over kept connections. Returns requests per second."""
    finished = asyncio.get_running_loop().create_future()
    begun = ended = 0
    kinds = (request(), request(stream=True))

    def next_one(client: BenchClient) -> None:
        nonlocal begun, ended
        if client.status is not None:
            ended += 1
            assert client.status == 200
        if begun < requests:
            begun += 1
            client.ask(kinds[begun % 2])
        elif ended >= requests and not finished.done():
            finished.set_result(None)

    started = time.monotonic()
    clients = [await BenchClient.connect(gateway.url, next_one) for _ in range(min(CLIENTS, requests))]
    for client in clients:
        next_one(client)
    async with asyncio.timeout(3_600):
        await finished
    spent_s = time.monotonic() - started
    for client in clients:
        client.status = None
        client.close()
    return requests / spent_s


async def hold(gateway: GatewayProcess, engine: BenchEngine, streams: int, hold_s: float) -> int:
    """Hold so many streams open for so long. Returns the most that was resident meanwhile."""
    question = request(b"?hold", stream=True)
    clients: list[BenchClient] = []
    for start in range(0, streams, 200):
        some = [await BenchClient.connect(gateway.url) for _ in range(min(200, streams - start))]
        for client in some:
            client.ask(question)
        clients += some
        await _until(lambda some=some: all(client.body_bytes for client in some))
    assert len(engine.held) == streams
    most = memory_bytes(gateway)
    ends_at = time.monotonic() + hold_s
    while time.monotonic() < ends_at:
        engine.tick()
        await asyncio.sleep(min(TICK_S, hold_s / 4))
        most = max(most, memory_bytes(gateway))
    assert (await gateway.state()).in_flight == streams
    engine.release()
    for client in clients:
        client.close()
    await _idle(gateway)
    return most


async def _until(fact: object) -> None:
    assert callable(fact)
    async with asyncio.timeout(120):
        while not fact():
            await asyncio.sleep(0.01)


async def _idle(gateway: GatewayProcess) -> State:
    async with asyncio.timeout(120):
        while True:
            state = await gateway.state()
            if state.is_idle:
                return state
            await asyncio.sleep(0.1)


@pytest.mark.slow
def test_what_is_resident_after_many_streams_and_requests_does_not_creep(pytestconfig: pytest.Config) -> None:
    streams: int = pytestconfig.getoption("--memory-streams")
    hold_s: float = pytestconfig.getoption("--memory-hold")
    requests: int = pytestconfig.getoption("--memory-requests")
    raise_file_limit()

    async def run() -> None:
        engine = BenchEngine()
        await engine.start()
        async with running_gateway([engine.url], SETTINGS, watched=False) as gateway:
            await serve(gateway, WARM_UP)
            before = memory_bytes(gateway)
            most = await hold(gateway, engine, streams, hold_s)
            after_hold = memory_bytes(gateway)
            rate = await serve(gateway, requests // 2)
            first = memory_bytes(gateway)
            await serve(gateway, requests - requests // 2)
            second = memory_bytes(gateway)
            state = await _idle(gateway)
            assert not state.faults()
        engine.stop()
        print(
            f"\n{streams} streams for {hold_s:g} s: {before / MIB:.1f} MiB before, {most / MIB:.1f} at most"
            f" ({(most - before) / streams / 1024:.1f} KiB a stream), {after_hold / MIB:.1f} after;"
            f" {requests // 2} requests ({rate:.0f}/s): {first / MIB:.1f}; as many again: {second / MIB:.1f}"
            f" ({(second - first) / first:+.2%})"
        )
        assert second - first < 0.05 * first

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
