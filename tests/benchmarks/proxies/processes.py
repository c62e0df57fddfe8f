"""Processes: what they cost, by /proc, and how they are started, awaited and ended. Linux only."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import gateway
from benchmarks.proxies.bodies import PATH, request_body

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TESTS: Final = Path(__file__).parents[2]
_STOP_S: Final = 5.0
# Below the ports from which Linux connects, so that no client's connection takes one in between.
_PORTS: Final = range(12_000, 32_000)
_QUOTED_BYTES: Final = 1500


class NotStarted(Exception):
    """A process did not come to answer. The text says why, and quotes the end of what it wrote."""


def tree(root_pid: int) -> list[int]:
    """A process and all that descend from it; empty if it is gone."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    look_at = [root_pid] if _stat(root_pid) else []
    while look_at:
        found.append(look_at.pop())
        look_at += children.get(found[-1], [])
    return found


def cpu_s(root_pid: int) -> float:
    """User and system seconds that the tree has used, exact to 10 ms."""
    ticks = 0
    for pid in tree(root_pid):
        if fields := _stat(pid):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def resident_bytes(root_pid: int) -> int:
    """What the tree has resident; a page that two of its processes share counts twice."""
    pages = 0
    for pid in tree(root_pid):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * _PAGE_BYTES


def machine_busy_s() -> float:
    """Seconds that the processors of the whole machine have been busy."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _idle, _waiting, *interrupts = map(int, line.split()[1:9])
    return (user + nice + system + sum(interrupts)) / _TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def free_port() -> int:
    """A port of loopback on which nobody listens."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def our_environment() -> dict[str, str]:
    """In which our own modules are found, wherever a process is started."""
    places = (Path(gateway.__file__).parents[1], _TESTS)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}


def our_module(name: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules by this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def _chat() -> bytes:
    body = request_body(1024)
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


CHAT: Final = _chat()
"""A whole request for a plain answer."""


@contextmanager
def running(
    command: Sequence[str],
    *,
    port: int,
    environment: Mapping[str, str],
    scratch: Path,
    within_s: float,
    first_asked: bytes = CHAT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves on `port`, once it answers what is first asked there; ended, with all its children, at the end.

    scratch: its working folder, where what it writes is kept in a file. Raises NotStarted.
    """
    said = scratch / "said"
    with said.open("wb") as sink:
        process = subprocess.Popen(
            command, env=environment, cwd=scratch, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
    try:
        failure = _await_answer(process, port, first_asked, within_s)
        if failure is not None:
            end_of_it = said.read_bytes()[-_QUOTED_BYTES:].decode("utf-8", "replace")
            raise NotStarted(f"{Path(command[0]).name}: {failure}\n{end_of_it}")
        yield process
    finally:
        _end(process)


def _await_answer(process: subprocess.Popen[bytes], port: int, asked: bytes, within_s: float) -> str | None:
    """Ask until a good answer comes. Returns what went wrong, None if nothing."""
    last = "nothing listens"
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if process.poll() is not None:
            return f"ended with {process.returncode}"
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(asked)
                answer = connection.recv(4096)
        except OSError as error:
            last = str(error)
        else:
            if answer.startswith(b"HTTP/1.1 200"):
                return None
            last = answer.decode("latin-1")
        time.sleep(0.1)
    return f"no good answer within {within_s:g} s: {last}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends, by force if it will not, and so does what it started."""
    if process.poll() is not None:
        return
    children = tree(process.pid)[1:]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
