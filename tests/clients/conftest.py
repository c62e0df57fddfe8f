"""The clients, installed once a session, and each started once for the tests of a file."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from clients.real_client import CLIENTS, NODE_CLIENTS, RealClient, has_node, install, running
from support.bench import Bench, running_bench
from support.programs import missing


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the clients: KVGATE_TEST_CLIENTS, else one that goes with the session."""
    named = os.environ.get("KVGATE_TEST_CLIENTS")
    return install(Path(named) if named else tmp_path_factory.mktemp("clients"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIENTS)
async def client(request: pytest.FixtureRequest, installed: Path) -> AsyncIterator[RealClient]:
    if request.param in NODE_CLIENTS and not has_node():
        missing("node and npm are not on the path")
    async with running(installed, request.param) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    """Test budget, no reserve, strict; a short line, so that it can be filled."""
    async with running_bench(KVGATE_QUEUE_REQUESTS="8") as started:
        yield started
