"""How newcomers are let in by the loop: several in a turn."""

import asyncio
import random
import socket
from typing import Any

import pytest
import uvloop

from gateway.metrics import Metrics
from gateway.web.door import Door, DoorLimits
from gateway.web.server import Server, listen
from support.fake_upstream import eventually

NEWCOMERS = 64


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Nobody asks."""


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_wave_of_newcomers_is_in_after_few_turns_of_the_loop(factory: Any) -> None:
    async def scene() -> None:
        limits = DoorLimits(header_bytes=1024, headers=16, url_bytes=256, header_s=10, idle_s=75, pipelined=2)
        door = Door("data", limits, Metrics("1"), random.Random(1))
        server = Server(app, door)
        listener = listen("test", "127.0.0.1", 0)
        address = listener.getsockname()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await eventually(lambda: server.started)
        clients = [socket.create_connection(address) for _ in range(NEWCOMERS)]
        turns = 0
        while door.connections < NEWCOMERS:
            turns += 1
            assert turns <= NEWCOMERS // 4, f"{door.connections} are in"
            await asyncio.sleep(0)
        for client in clients:
            client.close()
        await eventually(lambda: door.connections == 0)
        server.should_exit = True
        await serving
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scene())
