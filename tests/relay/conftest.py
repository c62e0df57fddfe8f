"""The relay's tests run on both event loops, and each leaves nothing open behind it."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from gateway.core.names import BackendName
from gateway.relay.upstream_pool import UpstreamPool
from support.fake_upstream import FakeUpstream, answer, eventually
from support.relay_calls import PoolMaker


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Asked by pytest-asyncio: every test of this folder once for each."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def open_sockets() -> int:
    """TCP sockets of this process (event loops have sockets of another kind)."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(entry))
        except OSError:
            continue  # the listing's own
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as one:
            count += one.family in (socket.AF_INET, socket.AF_INET6)
    return count


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    before = open_sockets()
    async with FakeUpstream(default=answer()) as server:
        yield server
    await eventually(lambda: len(asyncio.all_tasks()) == 1)
    await eventually(lambda: open_sockets() <= before)


@pytest.fixture
async def make_pool(upstream: FakeUpstream) -> AsyncIterator[PoolMaker]:
    """A pool on the fake upstream, closed at the end; what it opened must be gone then."""
    made: list[UpstreamPool] = []

    def make(**changes: Any) -> UpstreamPool:
        arguments: dict[str, Any] = {"host": upstream.host, "port": upstream.port, "backend": BackendName("fake")} | changes
        made.append(UpstreamPool(**arguments))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
        assert pool.open_connections == 0
    await eventually(lambda: upstream.connections_open == 0)


@pytest.fixture
def pool(make_pool: PoolMaker) -> UpstreamPool:
    return make_pool()
