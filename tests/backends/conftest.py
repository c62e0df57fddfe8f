"""One scripted engine, and a probe of it."""

from collections.abc import AsyncIterator

import pytest

from gateway.backends.probe import Probe, Prober
from gateway.core.names import BackendName
from support.scripted_engine import NO_TLS, ScriptedEngine


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture
async def probe(engine: ScriptedEngine) -> AsyncIterator[Probe]:
    prober = Prober(tls=NO_TLS)
    yield prober.probe(BackendName("a"), engine.url)
    await prober.close()
