"""Forecast commitment on real sockets: uncapped chats before a cold gateway, what it says of itself, and its state file."""

import asyncio
import json
from pathlib import Path

from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator
from support.gateway_process import GatewayProcess, running_gateway
from support.http_client import post

CONTEXT = 2_048
STRICTLY = 19  # of 20 contexts, less the reserve of 5 %
CLIENTS = 120


def simulator() -> Simulator:
    """A pool of 20 contexts, and answers of some 60 tokens that end by themselves."""
    shape = EngineShape(num_blocks=20 * CONTEXT // 16 + 1, max_context=CONTEXT, max_running=512, pace=Pace(speed=2))
    return Simulator(shape, served=Served(name="sim", max_context=CONTEXT, mean_output_tokens=60))


async def chat(gateway: GatewayProcess, number: int, turns: int) -> list[int]:
    """An uncapped chat, every other one as a stream."""
    told = []
    for turn in range(turns):
        messages = [{"role": "user", "content": f"client {number}, turn {turn}"}]
        answer = await post(gateway.url, "/v1/chat/completions", {"messages": messages, "stream": number % 2 == 0}, {})
        told.append(answer.status)
    return told


async def most_in_flight(gateway: GatewayProcess, clients: list[asyncio.Task[list[int]]]) -> int:
    most = 0
    while not all(client.done() for client in clients):
        most = max(most, int((await gateway.state()).backend["in_flight"]))
        await asyncio.sleep(0.02)
    return most


async def run(gateway: GatewayProcess, turns: int) -> int:
    clients = [asyncio.create_task(chat(gateway, number, turns)) for number in range(CLIENTS)]
    most = await most_in_flight(gateway, clients)
    told = [status for client in clients for status in client.result()]
    assert set(told) == {200}
    return most


async def test_a_cold_gateway_lets_many_more_uncapped_chats_in_than_strict_and_a_restarted_one_begins_there(
    tmp_path: Path,
) -> None:
    settings = {"KVGATE_STATE_FILE": str(tmp_path / "evidence.json"), "KVGATE_QUEUE_TIMEOUT": "120s"}
    async with simulator() as engine:
        async with running_gateway([engine.url], settings, watched=False) as gateway:
            assert (await gateway.state()).backend["forecast"]["classes"] == []
            assert await run(gateway, turns=3) > 2 * STRICTLY
            state = await gateway.state()
            assert state.backend["commitment"] == "forecast"
            assert state.backend["forecast"]["headroom"] == 0.1
            seen = {entry["class"].rpartition(" / ")[2]: entry for entry in state.backend["forecast"]["classes"]}
            assert seen["none"]["is_forecast"] is True
            assert seen["none"]["answers"] == 3 * CLIENTS
            assert 20 < seen["none"]["expected_tokens"] < 120
            metrics = await gateway.metrics()
            assert metrics.total("kvgate_commitment", mode="forecast") == 1
            assert metrics.total("kvgate_waste_block_seconds_total", cause="absent_cap") > 0
        assert json.loads((tmp_path / "evidence.json").read_text())["classes"]
        async with running_gateway([engine.url], settings, watched=False) as again:
            clients = [asyncio.create_task(chat(again, number, 1)) for number in range(CLIENTS)]
            assert await most_in_flight(again, clients) > 4 * STRICTLY
            assert any("evidence read from" in line for line in again.output)
        assert engine.engine.scheduler.preemptions == 0


async def test_strict_stays_strict_when_the_operator_says_so() -> None:
    async with (
        simulator() as engine,
        running_gateway([engine.url], {"KVGATE_COMMITMENT": "strict"}, watched=False) as gateway,
    ):
        assert await run(gateway, turns=1) == STRICTLY
        assert (await gateway.state()).backend["commitment"] == "strict"
