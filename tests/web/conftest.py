"""Scripted engines for rooms in this process."""

from collections.abc import AsyncIterator

import pytest

from support.scripted_engine import ScriptedEngine


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture
async def other() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as scripted:
        yield scripted
