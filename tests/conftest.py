"""Fixtures for every test, and how hard the suites that can go on for ever shall try."""

import pytest

from support import gateway_process


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvgate")
    group.addoption("--chaos-requests", type=int, default=3_000, help="requests of the chaos suite's storm")
    group.addoption("--chaos-seed", type=int, default=1, help="the storm's seed: the same one makes the same plans")
    group.addoption("--fuzz-inputs", type=int, default=300, help="inputs for each target of the fuzz suite")
    group.addoption("--memory-streams", type=int, default=200, help="streams that the memory benchmark holds at once")
    group.addoption("--memory-hold", type=float, default=1.0, help="seconds for which it holds them")
    group.addoption("--memory-requests", type=int, default=6_000, help="requests that follow")
    group.addoption("--front", choices=gateway_process.PROGRAMS, default="both", help="asgi: no request goes past ASGI")
    group.addoption("--attackers", type=int, default=100, help="slow clients of the attackers' benchmark")


def pytest_configure(config: pytest.Config) -> None:
    gateway_process.front = config.getoption("--front")
