"""The two processes of `kvgate demo`: the pretend engine and the gateway, each started, awaited and ended for certain."""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import IO, Final

import gateway
from gateway.simulator.http_client import BrokenAnswer, get

START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 5.0
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})


class DemoFailed(Exception):
    """The demo cannot go on; the text says why, for the user."""


class Child:
    """A running process of ours. What it writes to standard error is kept and shown only if it fails."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, said: IO[bytes]) -> None:
        self.name = name
        self.process = process
        self._said = said

    def failure(self, what: str) -> DemoFailed:
        """An error that quotes the last that the process wrote."""
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        quoted = "".join(f"\n  {line}" for line in lines[-8:])
        return DemoFailed(f"the {self.name} {what}{quoted}")

    async def wait(self) -> DemoFailed:
        """Wait until it ends, which it should not."""
        code = await self.process.wait()
        return self.failure(f"ended by itself, status {code}")


@contextlib.asynccontextmanager
async def running_simulator(*arguments: str) -> AsyncIterator[tuple[Child, str]]:
    """The pretend engine on a free port of loopback, and its URL. Raises DemoFailed."""
    command = ("gateway.simulator", "--port", "0", "--until-stdin-closes", *arguments)
    async with _running("pretend engine", command, {}) as child:
        assert child.process.stdout is not None  # it is a pipe: _running made it one
        try:
            async with asyncio.timeout(START_LIMIT_S):
                line = (await child.process.stdout.readline()).decode()
        except TimeoutError:
            raise child.failure(f"did not start within {START_LIMIT_S:.0f} s") from None
        if not line.startswith("ready "):
            raise child.failure("did not start")
        yield child, line.split()[1]


@contextlib.asynccontextmanager
async def running_gateway(backend_url: str, *, port: int, admin_port: int) -> AsyncIterator[tuple[Child, str, str]]:
    """`kvgate serve` before one backend, ready: its URL and that of its admin port. Raises DemoFailed."""
    command = (
        "gateway.cli.demo_gateway",
        "serve",
        "--backends",
        backend_url,
        "--port",
        str(port),
        "--admin-port",
        str(admin_port),
    )
    # Defaults, but for what a demo wants: it is local, it writes no log that grows, and it ends quickly.
    settings = {
        "KVGATE_HOST": "127.0.0.1",
        "KVGATE_ADMIN_HOST": "127.0.0.1",
        "KVGATE_LOG_LEVEL": "warning",
        "KVGATE_DRAIN_TIMEOUT": "2s",
    }
    async with _running("gateway", command, settings) as child:
        url, admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        await _become_ready(child, url)
        yield child, url, admin_url


async def _become_ready(child: Child, url: str) -> None:
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while child.process.returncode is None:
                with contextlib.suppress(BrokenAnswer):  # not listening yet
                    if (await get(f"{url}/ready"))[0] == 200:
                        return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise child.failure(f"was not ready within {START_LIMIT_S:.0f} s") from None
    raise child.failure("did not start")


@contextlib.asynccontextmanager
async def _running(name: str, command: tuple[str, ...], settings: Mapping[str, str]) -> AsyncIterator[Child]:
    """`python -m command` as a child; ended when the block is left, however it is left."""
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if not settings else said,
            stderr=said,
            env=_clean_environment(settings),
            # `-m` looks in the working directory first: this is the one where our own package is, installed or checked out.
            cwd=Path(gateway.__file__).parents[1],
            # Ctrl-C on a terminal goes to the whole group: the demo alone hears it, and ends its children in order.
            process_group=0,
        )
        try:
            yield Child(name, process, said)
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask a process to end, and make it end after STOP_LIMIT_S. It has ended when this returns."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without settings of the gateway and without proxies, which must not stand before loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("KVGATE_")}
    return {**{name: value for name, value in kept.items() if name.lower() not in _PROXIES}, **settings}


def free_port(*preferred: int) -> int:
    """The first of the preferred ports of loopback that can be listened on, else any that is free."""
    for port in (*preferred, 0):
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("127.0.0.1", port))
            trial.listen()
            number: int = trial.getsockname()[1]
            return number
    raise DemoFailed("no port of 127.0.0.1 can be listened on")
