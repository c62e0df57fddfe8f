"""Clients that mean harm by being slow: what they cost in memory, and what they cost the others, as ratios to a calm run.

python -m pytest tests/benchmarks/test_attackers.py -s --attackers 1000
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles

import pytest
import uvloop

from benchmarks.lean_peers import SETTINGS, BenchClient, BenchEngine, busy_s, memory_bytes, raise_file_limit, request
from support.gateway_process import GatewayProcess, running_gateway
from support.http_client import ask

MIB = 1 << 20
VICTIM_REQUESTS = 400
Attack = Callable[[GatewayProcess, int], Awaitable[Sequence[BenchClient]]]


async def latencies(gateway: GatewayProcess) -> list[float]:
    """Seconds of each of the victims' requests, one after the other on one connection; /health is asked now and then."""
    answered = asyncio.Event()
    client = await BenchClient.connect(gateway.url, lambda _: answered.set())
    found: list[float] = []
    for number in range(VICTIM_REQUESTS):
        answered.clear()
        started = time.monotonic()
        client.ask(request(stream=number % 2 == 0))
        async with asyncio.timeout(30):
            await answered.wait()
        assert client.status == 200
        found.append(time.monotonic() - started)
        if number % 50 == 0:
            assert (await ask(gateway.admin_url, "GET", "/health")).status == 200
    client.close()
    return found


async def slow_heads(gateway: GatewayProcess, attackers: int) -> Sequence[BenchClient]:
    """Slowloris: heads that never end."""
    clients = [await BenchClient.connect(gateway.url) for _ in range(attackers)]
    for client in clients:
        client.write(b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\n")
    return clients


async def slow_bodies(gateway: GatewayProcess, attackers: int) -> Sequence[BenchClient]:
    """Uploads that never end."""
    clients = [await BenchClient.connect(gateway.url) for _ in range(attackers)]
    for client in clients:
        client.write(b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000)
    return clients


async def slow_readers(gateway: GatewayProcess, attackers: int) -> Sequence[BenchClient]:
    """Streams of 17 MB that nobody reads, until every buffer on their way is full."""
    clients = []
    for _ in range(attackers):
        client = await BenchClient.connect(gateway.url)
        client.ask(request(b"?flood", stream=True))
        client.stop_reading()
        clients.append(client)
    before_s = 0.0
    while (now_s := busy_s(gateway)) > before_s + 0.1:
        before_s = now_s
        await asyncio.sleep(1.0)
    return clients


# name -> (the attack, bytes that one attacker may cost at most). A head and a thousand bytes of a body are small. For a reader
# that does not read, 256 KiB and one read more (as much again) are read ahead, and one read is on its way to the server.
ATTACKS: dict[str, tuple[Attack, int]] = {
    "slow heads": (slow_heads, 64 * 1024),
    "slow bodies": (slow_bodies, 64 * 1024),
    "slow readers": (slow_readers, 3 * MIB // 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_attackers_by_slowness_cost_little_memory_and_do_not_stop_the_others(name: str, pytestconfig: pytest.Config) -> None:
    attack, most_bytes = ATTACKS[name]
    attackers: int = pytestconfig.getoption("--attackers")
    if name == "slow readers":
        attackers = max(10, attackers // 5)
    raise_file_limit()

    async def run() -> None:
        engine = BenchEngine()
        await engine.start()
        async with running_gateway([engine.url], {**SETTINGS, "KVGATE_SEND_TIMEOUT": "60s"}, watched=False) as gateway:
            await latencies(gateway)
            calm, before = await latencies(gateway), memory_bytes(gateway)
            clients = await attack(gateway, attackers)
            pestered, most = await latencies(gateway), memory_bytes(gateway)
            pestered += await latencies(gateway)
            most = max(most, memory_bytes(gateway))
            for client in clients:
                client.close()
        engine.stop()
        ratio = median(pestered) / median(calm)
        tails = quantiles(pestered, n=20)[-1] / quantiles(calm, n=20)[-1]
        kib = (most - before) / attackers / 1024
        print(f"\n{attackers} {name}: victims' median x{ratio:.2f} (of {median(calm) * 1000:.2f} ms), 95 % x{tails:.2f}")
        print(f"memory {before / MIB:.1f} -> {most / MIB:.1f} MiB: x{most / before:.2f}, {kib:.1f} KiB an attacker")
        assert most - before < attackers * most_bytes + 10 * MIB
        # On a noisy machine a median moves by itself; what an attack must not do is stop the others.
        assert ratio < 5

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_the_kernel_keeps_enough_for_the_attack_to_reach_the_gateway() -> None:
    """A stream that fits into the buffers between the two would prove nothing."""
    with socket.socket() as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 8 * MIB
