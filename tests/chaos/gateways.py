"""The gateway under the storm: in this process, with a checked book and every object in reach, or as a process of its own."""

import asyncio
import gc
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock
from urllib.parse import urlsplit

from chaos.checking_book import CheckingBook
from gateway import assembly
from gateway.books import BookContract
from gateway.books import memory_book as real_memory_book
from gateway.clock import MonotonicClock
from gateway.core.queue import QueueLimits
from gateway.logs import fields_of
from gateway.settings import Settings
from support.gateway_process import GatewayProcess, start_gateway

TESTS = Path(__file__).parent.parent

Report = Callable[[str], None]

# Objects of one request each. When no request is on its way there are none of them.
PER_REQUEST = (
    "admission.grant.Grant",
    "core.ledger.Reservation",
    "core.line.Waiting",
    "core.ticket.Ticket",
    "relay.downstream.AsgiDownstream",
    "relay.stream.Answer",
    "relay.timeline.Timeline",
    "relay.upstream.UpstreamExchange",
    "web.journal.Journal",
    "web.pass_through._Call",
    "web.serve_request.Line",
    "web.tally.Entry",
)
# What a whole gateway has stays reachable after its end, since FastAPI remembers routes for ever; its connections must not.
PER_CONNECTION = ("relay.upstream_connection.UpstreamConnection", "web.http_protocol.HttpProtocol", "web.http_protocol.Cycle")

# What uvicorn says as an error, and is none: an answer that kvgate breaks off on purpose (gateway/logs.py knows it, too),
# and an end that did not wait for clients that take nothing.
_DELIBERATE = ("ASGI callable returned without", "Cancel 0 running task(s)")


class UnderFire(Protocol):
    """A gateway, from its start to its end. It can be started again afterwards."""

    @property
    def is_up(self) -> bool: ...

    @property
    def port(self) -> int: ...

    @property
    def admin_url(self) -> str: ...

    async def start(self, backends: str) -> None: ...

    def take_outcomes(self) -> Mapping[str, tuple[str, int | None]]:
        """Outcome and status by request id, of the requests that ended since the last call."""
        ...

    def check_idle(self) -> None:
        """Report what is left although no request is on its way."""
        ...

    async def drain(self) -> None:
        """Ask it to end, as an operator does, and wait until it has. Report what is not as it should be then."""
        ...


def live_objects(names: tuple[str, ...]) -> Counter[str]:
    """How many objects of the gateway's classes with these names are alive."""
    gc.collect()
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        name = f"{kind.__module__}.{kind.__name__}".removeprefix("gateway.")
        if name in names:
            found[name] += 1
    return found


def _is_ours(task: asyncio.Task[Any]) -> bool:
    """Whether a task runs code of the tests, not of the gateway or of its server."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(code.co_filename).is_relative_to(TESTS)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class _Listener(logging.Handler):
    """Hears what the gateway logs: outcomes go into a table, errors and tracebacks are findings."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, int | None]] = {}
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "kvgate.request":
            fields: Any = fields_of(record)
            self.outcomes[fields["request_id"]] = (fields["outcome"], fields.get("status"))
        if (record.levelno >= logging.ERROR or record.exc_info) and not record.getMessage().startswith(_DELIBERATE):
            self._report(f"logged: {record.name}: {logging.Formatter().format(record)[-1500:]}")


@dataclass
class InProcess:
    """Runs `Gateway` in this loop. checked: its book is a `CheckingBook`."""

    settings: Mapping[str, str]
    report: Report
    checked: bool = True
    book: CheckingBook | None = None
    _listener: _Listener | None = None
    _task: asyncio.Task[int] | None = None
    _alive_before: Counter[str] | None = None
    _level_before: int = logging.NOTSET
    _url: str = ""
    _admin_url: str = ""
    calls: int = 0
    grants: int = 0
    waited: int = 0

    @property
    def is_up(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def port(self) -> int:
        return urlsplit(self._url).port or 0

    @property
    def admin_url(self) -> str:
        return self._admin_url

    async def start(self, backends: str) -> None:
        if self._alive_before is None:  # what an earlier test has left
            self._alive_before = live_objects(PER_CONNECTION + PER_REQUEST)
        self._listener = _Listener(self.report)
        for name in ("kvgate", "uvicorn", "asyncio"):
            logging.getLogger(name).addHandler(self._listener)
            logging.getLogger(name).propagate = False
        self._level_before = logging.getLogger("kvgate").level
        logging.getLogger("kvgate").setLevel(logging.INFO)
        given: dict[str, Any] = {"KVGATE_BACKENDS": backends, **self.settings}
        with mock.patch.object(assembly, "memory_book", self._make_book):
            gateway = assembly.Gateway(Settings(**given), MonotonicClock())
        sockets = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(2)]
        self._url, self._admin_url = (f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in sockets)
        self._task = asyncio.create_task(gateway.run(*sockets), name="gateway under fire")

    def _make_book(self, *, limits: QueueLimits, **arguments: Any) -> BookContract:
        book = real_memory_book(limits=limits, **arguments)
        if not self.checked:
            return book
        self.book = CheckingBook(book, self.report, max_requests=limits.max_requests, max_passes=limits.max_passes)
        return self.book

    def take_outcomes(self) -> Mapping[str, tuple[str, int | None]]:
        assert self._listener is not None
        taken, self._listener.outcomes = self._listener.outcomes, {}
        return taken

    def check_idle(self) -> None:
        if self.book is not None and (self.book.held_blocks or self.book.waiting):
            self.report(f"leak: {self.book.held_blocks} blocks are held and {self.book.waiting} wait, for nobody")
        alive = live_objects(PER_REQUEST) - (self._alive_before or Counter())
        if alive:
            self.report(f"leak: alive though no request is on its way: {dict(alive)}")

    async def drain(self) -> None:
        assert self._task is not None
        assert self._listener is not None
        os.kill(os.getpid(), signal.SIGTERM)
        done, _ = await asyncio.wait({self._task}, timeout=30)
        if not done:
            self.report("hangs: the gateway has not ended 30 s after SIGTERM")
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=5)
        elif (error := self._task.exception()) is not None:
            self.report(f"the gateway ended with {error!r}")
        if self.book is not None:
            self.calls += self.book.calls
            self.grants += self.book.grants
            self.waited += self.book.waited
            if self.book.held_blocks:
                self.report(f"leak: {self.book.held_blocks} blocks are held after the end")
        self.book = self._task = None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        for _ in range(20):
            left = [task for task in asyncio.all_tasks() if not _is_ours(task)]
            if not left:
                break
            await asyncio.sleep(0.05)
        else:
            self.report(f"leak: tasks go on after the end: {left}"[:2000])
        left_alive = live_objects(PER_CONNECTION + PER_REQUEST) - (self._alive_before or Counter())
        if left_alive:
            self.report(f"leak: alive after the end: {dict(left_alive)}")
        for name in ("kvgate", "uvicorn", "asyncio"):
            logging.getLogger(name).removeHandler(self._listener)
            logging.getLogger(name).propagate = True
        logging.getLogger("kvgate").setLevel(self._level_before)


@dataclass
class Subprocess:
    """`python -m gateway serve`, seen from outside only."""

    settings: Mapping[str, str]
    report: Report
    process: GatewayProcess | None = None
    _seen_lines: int = 0
    _idle_files: int = 0

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def port(self) -> int:
        assert self.process is not None
        return urlsplit(self.process.url).port or 0

    @property
    def admin_url(self) -> str:
        assert self.process is not None
        return self.process.admin_url

    async def start(self, backends: str) -> None:
        self._seen_lines = 0
        self.process = await start_gateway([backends], self.settings)
        await self.process.listening()
        self._idle_files = self.process.open_files()

    def take_outcomes(self) -> Mapping[str, tuple[str, int | None]]:
        assert self.process is not None
        events, start = self.process.log_events, self._seen_lines
        self._seen_lines = len(events)
        return {event["request_id"]: (event["outcome"], event.get("status")) for event in events[start:] if "outcome" in event}

    def check_idle(self) -> None:
        assert self.process is not None
        # Warm connections to the engines may stay; there are a few dozen at most.
        if (files := self.process.open_files()) > self._idle_files + 100:
            self.report(f"leak: {files} files are open though no request is on its way; {self._idle_files} were at the start")

    async def drain(self) -> None:
        assert self.process is not None
        ended = await self.process.stop(within_s=30)
        if ended.code != 0:
            self.report(f"the gateway ended with {ended.code}: {ended.output[-1000:]}")

    async def kill(self) -> None:
        if self.process is not None:
            await self.process.kill()
