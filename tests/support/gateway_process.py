"""kvgate as an operator runs it: `python -m gateway serve` in a process of its own, on free ports.

    async with running_gateway([fake.url], {"KVGATE_RESERVE": "0"}) as gateway:
        answer = await post(gateway.url, "/v1/chat/completions", body)

The environment is clean but for the settings given. Every wait is bounded, the process is ended by its id, and what it
left on its outputs is read to the end: a traceback anywhere fails the test, whatever the answers were.

All the while a watcher (book_watch.py) reads `/kvgate/state` and holds each snapshot against the rules of the books.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.book_watch import BookWatch, State
from support.http_client import PATIENCE_S, Answer, ask

START_S = 30.0
STOP_S = 15.0

PROGRAMS = {
    "both": ("-m", "gateway"),
    "asgi": (
        "-c",
        "import gateway.cli as cli, gateway.web.inference as web; web.Inference.find = lambda *_: None; cli.main()",
    ),
}
"""How kvgate is started. asgi: no request is taken past ASGI, as none is that is written in an unusual way."""

front = "both"
"""Which of them this run of tests tries (`--front`)."""

CASE_SETTINGS = {"KVGATE_RESERVE": "0", "KVGATE_COMMITMENT": "strict"}
"""What every case assumes unless it is about these settings."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How the process ended, and everything it wrote."""

    code: int
    output: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.strip()]


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape. Samples are found by name and by the labels given; labels not given may be anything."""

    samples: tuple[tuple[str, Mapping[str, str], float], ...]

    @classmethod
    def parse(cls, text: str) -> "Metrics":
        return cls(
            tuple(
                (sample.name, sample.labels, sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            )
        )

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name that carry these labels; 0 if there are none."""
        return sum(value for key, found, value in self.samples if key == name and labels.items() <= found.items())

    def has(self, name: str) -> bool:
        return any(key == name for key, _, _ in self.samples)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of the samples of that name, for each value of one label."""
        sums: dict[str, float] = {}
        for key, found, value in self.samples:
            if key == name:
                sums[found[label]] = sums.get(found[label], 0.0) + value
        return sums


@dataclass(slots=True)
class GatewayProcess:
    """A started process, ready or not."""

    process: asyncio.subprocess.Process
    output: list[str] = field(default_factory=list)
    _listening: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _addresses: tuple[str, str] = ("", "")
    _readers: list[asyncio.Task[None]] = field(default_factory=list)
    watch: BookWatch | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        """Of the data plane."""
        return self._addresses[0]

    @property
    def admin_url(self) -> str:
        return self._addresses[1]

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    @property
    def text(self) -> str:
        return "\n".join(self.output)

    @property
    def log_events(self) -> list[dict[str, Any]]:
        """The lines of the log that are JSON objects."""
        found = []
        for line in self.output:
            if line.startswith("{"):
                event = json.loads(line)
                assert isinstance(event, dict)
                found.append(event)
        return found

    # -- starting

    def read_outputs(self) -> None:
        for stream, name in ((self.process.stdout, "stdout"), (self.process.stderr, "stderr")):
            assert stream is not None
            self._readers.append(asyncio.create_task(self._read(stream), name=f"gateway-{name}"))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            self.output.append(line)
            if '"listening"' in line and not self._listening.is_set():
                event = json.loads(line)
                self._addresses = (event["url"], event["admin_url"])
                self._listening.set()
        self._ended.set()

    async def listening(self) -> None:
        """Return once both addresses are known. Fails if the process ends before."""
        waits = [asyncio.create_task(self._listening.wait()), asyncio.create_task(self._ended.wait())]
        try:
            await asyncio.wait(waits, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        assert self._listening.is_set(), f"the gateway did not come up:\n{self.text}"

    async def ready(self) -> None:
        """Return once /ready is 200."""
        async with asyncio.timeout(START_S):
            while (await self.probe("/ready")).status != 200:
                assert self.is_running, f"ended before it was ready:\n{self.text}"
                await asyncio.sleep(0.02)

    # -- looking

    async def probe(self, target: str, *, on_data_port: bool = False) -> Answer:
        return await ask(self.url if on_data_port else self.admin_url, "GET", target)

    async def state(self) -> State:
        answer = await self.probe("/kvgate/state")
        assert answer.status == 200, answer
        return State(answer.json())

    async def metrics(self) -> Metrics:
        answer = await self.probe("/metrics")
        assert answer.status == 200, answer
        return Metrics.parse(answer.body.decode())

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Stop it for the length of the block: all that happens meanwhile, it finds at once, in one turn of its loop."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
            await asyncio.sleep(0.002)  # for what was begun here to reach the kernel, in the order in which it was begun
        finally:
            self.process.send_signal(signal.SIGCONT)

    # -- stopping

    async def stop(self, sig: signal.Signals = signal.SIGTERM, *, within_s: float = STOP_S) -> Exit:
        """Signal it and wait for its end."""
        if self.is_running:
            self.process.send_signal(sig)
        return await self.exited(within_s=within_s)

    async def exited(self, *, within_s: float = STOP_S) -> Exit:
        """Wait for its end, whoever caused it. Fails on a traceback, or if it has not ended in time."""
        try:
            async with asyncio.timeout(within_s):
                code = await self.process.wait()
                await asyncio.gather(*self._readers)
        except TimeoutError:
            await self.kill()
            raise AssertionError(f"still running after {within_s} s:\n{self.text}") from None
        self.check_output()
        return Exit(code, self.text)

    def check_output(self) -> None:
        for sign in ("Traceback", "never retrieved", "was never awaited", "Exception ignored", "Unclosed"):
            assert sign not in self.text, f"{sign!r} in the gateway's output:\n{self.text}"

    async def kill(self) -> None:
        if self.is_running:
            self.process.kill()
        async with asyncio.timeout(PATIENCE_S):
            await self.process.wait()
            await asyncio.gather(*self._readers)


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """What the process sees: the path, these settings, and nothing of whoever runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH") if name in os.environ}
    return {**kept, "KVGATE_PORT": "0", "KVGATE_ADMIN_PORT": "0", "KVGATE_LOG_FORMAT": "json", **settings}


async def start_gateway(
    upstreams: Sequence[str], settings: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> GatewayProcess:
    """Start the process and read what it says; wait for nothing. The caller ends it."""
    given = dict(settings or {})
    if upstreams:
        given["KVGATE_BACKENDS"] = ",".join(upstreams)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *PROGRAMS[front],
        "serve",
        *arguments,
        env=environment(given),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 22,
    )
    gateway = GatewayProcess(process)
    gateway.read_outputs()
    return gateway


@asynccontextmanager
async def running_gateway(
    upstreams: Sequence[str],
    settings: Mapping[str, str] | None = None,
    *,
    wait_ready: bool = True,
    watched: bool = True,
) -> AsyncIterator[GatewayProcess]:
    """A gateway before these upstreams, ready, watched, and stopped at the end unless the test has stopped it.

    Leaving without an error checks the exit code, the outputs and what the watcher saw.
    """
    gateway = await start_gateway(upstreams, settings)
    try:
        await gateway.listening()
        if wait_ready:
            await gateway.ready()
        if watched:
            gateway.watch = BookWatch(gateway.admin_url)
            gateway.watch.start()
        yield gateway
        if gateway.watch is not None:
            await gateway.watch.stop()
            gateway.watch.check()
        if gateway.is_running:
            ended = await gateway.stop()
            assert ended.code == 0, ended
        gateway.check_output()
    finally:
        if gateway.watch is not None:
            await gateway.watch.stop()
        await gateway.kill()


async def refused_start(upstreams: Sequence[str], settings: Mapping[str, str], arguments: Sequence[str] = ()) -> Exit:
    """A start that has to end by itself, with a code other than 0 and one clear line."""
    gateway = await start_gateway(upstreams, settings, arguments)
    try:
        ended = await gateway.exited(within_s=START_S)
    finally:
        await gateway.kill()
    assert ended.code != 0, ended
    assert ended.lines, "ended without a word"
    return ended


def speaks_of(line: str, *words: str) -> bool:
    """Whether a line an operator reads has all of these words, in whatever case."""
    return all(re.search(re.escape(word), line, re.IGNORECASE) for word in words)
