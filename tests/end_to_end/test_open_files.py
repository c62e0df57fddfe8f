"""A running gateway has room for the open files of all its connections, so that no stream waits for it under load."""

import re
import sys
from pathlib import Path

import pytest

from support.fake_engine import FakeEngine
from support.fake_upstream import FakeUpstream
from support.gateway_process import running_gateway

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and tables are read from Linux's /proc")

_PLACES = re.compile(r"^FDSize:\s+(\d+)$", re.MULTILINE)
_LIMITS = re.compile(r"^Max open files\s+(\d+|unlimited)\s+(\d+|unlimited)", re.MULTILINE)


@pytest.mark.parametrize("connections", ["auto", "1000"])
async def test_the_limit_is_raised_and_the_table_is_as_large_as_it_will_be(connections: str) -> None:
    async with (
        FakeUpstream(default=FakeEngine()) as fake,
        running_gateway([fake.url], {"KVGATE_MAX_CONNECTIONS": connections}) as gateway,
    ):
        proc = Path(f"/proc/{gateway.pid}")
        limits = _LIMITS.search((proc / "limits").read_text())
        places = _PLACES.search((proc / "status").read_text())
        assert limits is not None
        assert places is not None
        soft, hard = limits.groups()
        assert soft == hard
        allowed = float("inf") if soft == "unlimited" else int(soft)
        assert int(places[1]) >= min(allowed, 2 * 1000)
