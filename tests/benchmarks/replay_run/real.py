"""The real run: the pretend engine and `kvgate serve`, each a process of its own, and one client for each request.

A client sends as many token ids as the prompt has tokens, so that gateway and engine count the same and exactly, and asks for
an answer of just the trace's length, whatever cap it sends. Answers are streams.
"""

import asyncio
import json
import os
import time
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.proxies.processes import cpu_s, machine_busy_s
from benchmarks.replay_run.scenes import Scene
from gateway.cli.demo_processes import running_simulator
from gateway.replay.trace import Request, Trace
from support.gateway_process import running_gateway

_MODEL: Final = "simulated-8b"
_VOCABULARY: Final = 30_000
# Answers that nothing lengthens are over at once, so that `min_tokens` says how long each becomes.
_MEAN_OUTPUT: Final = "0.001"
_READ_BYTES: Final = 1 << 16


@dataclass(slots=True)
class Played:
    """statuses: of all answers; 0 where there was none. late_s: by how much clients sent after their time. cores: that each
    process kept busy, on average, and all others of the machine."""

    span_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    late_s: list[float] = field(default_factory=list)
    cores: dict[str, float] = field(default_factory=dict)


def play(trace: Trace, scene: Scene, settings: Mapping[str, str], log: Path, *, within_s: float) -> Played:
    """Play a trace, and leave the gateway's log in `log`. Raises TimeoutError if it takes longer than that."""
    played, said = asyncio.run(_play(trace, scene, settings, within_s=within_s))
    log.write_text(said + "\n")
    return played


async def _play(trace: Trace, scene: Scene, settings: Mapping[str, str], *, within_s: float) -> tuple[Played, str]:
    engine = (
        *("--num-gpu-blocks", str(scene.blocks + 1)),  # one holds no tokens
        *("--max-model-len", str(scene.context_tokens)),
        *("--speed", f"{scene.speed:g}"),
        *("--mean-output", _MEAN_OUTPUT),
    )
    async with running_simulator(*engine) as (simulator, url):
        async with running_gateway([url], settings, watched=False) as gateway:
            pids = {"engine": simulator.process.pid, "gateway": gateway.pid, "clients": os.getpid()}
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            busy = machine_busy_s()
            async with asyncio.timeout(within_s):
                played = await _Clients(trace, gateway.url, scene.sessions).run()
            used_s = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
            used_s["clients"] -= used_s["engine"] + used_s["gateway"]  # they are its children
            used_s["others"] = machine_busy_s() - busy - sum(used_s.values())
            played.cores = {name: seconds / played.span_s for name, seconds in used_s.items()}
        return played, gateway.text


class _Clients:
    def __init__(self, trace: Trace, url: str, sessions: int | None) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._trace = trace
        self._places = asyncio.Semaphore(sessions if trace.has_sessions and sessions is not None else len(trace))
        self._played = Played()
        self._started = time.perf_counter()

    async def run(self) -> Played:
        self._started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for index in self._trace.order:
                at = self._started + self._trace.at(index)
                await self._wait_until(at)
                await self._places.acquire()
                group.create_task(self._come(index, at), name=f"client-{index}")
        self._played.span_s = time.perf_counter() - self._started
        return self._played

    async def _wait_until(self, at: float) -> None:
        while (left_s := at - time.perf_counter()) > 0:
            await asyncio.sleep(left_s)

    async def _come(self, index: int, at: float) -> None:
        """One request, and those that follow it in its session, however each ends."""
        if not self._trace.has_sessions:
            self._played.late_s.append(time.perf_counter() - at)
        following: int | None = index
        while following is not None:
            self._played.statuses[await self._ask(following, self._trace.row(following))] += 1
            following = self._trace.next_turn(following)
            if following is not None:
                due = time.perf_counter() + self._trace.think_s(following)
                await self._wait_until(due)
                self._played.late_s.append(time.perf_counter() - due)
        self._places.release()

    async def _ask(self, index: int, request: Request) -> int:
        """The status of the answer, once its last byte has come; 0 if it broke off."""
        body = request_body(index, request)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head.encode() + body)
                status = int((await reader.readline()).split()[1])
                end = b""
                while part := await reader.read(_READ_BYTES):
                    end = (end + part)[-64:]
            finally:
                writer.close()
        except (OSError, IndexError, ValueError):
            return 0
        return status if status != 200 or b"[DONE]" in end else 0


def request_body(index: int, request: Request) -> bytes:
    """Completions over token ids. The first id differs, as prompts begin differently."""
    assert request.output_tokens is not None, "a finished trace knows all lengths"
    cap = request.cap_tokens
    is_cut = cap is not None and request.output_tokens >= cap
    length: dict[str, object] = {"ignore_eos": True} if is_cut else {"min_tokens": request.output_tokens}
    fields = {"model": _MODEL, "stream": True, "max_tokens": cap, **length}
    ids = f"{index % _VOCABULARY}{',1' * (request.prompt_tokens - 1)}"
    return f'{json.dumps(fields)[:-1]}, "prompt": [{ids}]}}'.encode()
