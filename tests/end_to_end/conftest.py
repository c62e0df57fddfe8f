"""The bench that the cases of one file share. A test that needs other settings starts its own."""

from collections.abc import AsyncIterator

import pytest_asyncio

from support.bench import Bench, running_bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    """Test budget, no reserve, strict; a short line, so that it can be filled."""
    async with running_bench(KVGATE_QUEUE_REQUESTS="8") as running:
        yield running
