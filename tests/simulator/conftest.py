"""A pretend engine of vLLM's test size, fast, on a free port of loopback."""

from collections.abc import AsyncIterator

import pytest

from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    shape = EngineShape(num_blocks=65, block_tokens=32, max_context=1024, pace=Pace(speed=50))
    async with Simulator(shape, served=Served(name="tiny", max_context=1024, mean_output_tokens=40)) as running:
        yield running
