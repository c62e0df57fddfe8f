"""Clients of one scenario: connections that ask, check every answer to its last byte, and ask again."""

import asyncio
import json
import time
from typing import Any, Final, cast

import httptools

from benchmarks.proxies.bodies import DONE, NUMBER, PATH, TOTAL_TOKENS, expected_answer, request_body
from benchmarks.proxies.scenarios import Scenario

_QUOTED: Final = 5
_MOST_ERRORS: Final = 200
"""After so many nobody connects anew."""


class Findings:
    """What all clients of a scenario saw. Durations are in seconds, lags in nanoseconds; `now` is monotonic seconds."""

    def __init__(self, scenario: Scenario, *, port: int, seconds: float) -> None:
        self.scenario = scenario
        self.port = port
        self.began = time.perf_counter()
        self.asks_until = self.began + seconds
        self.request = _request(scenario, port)
        self.open_answers = self.most_open = 0
        self.ok = self.verbatim = self.errors = 0
        self.first_errors: list[str] = []
        self.latencies_s: list[float] = []
        self.ttfts_s: list[float] = []
        self.lags_ns: list[int] = []
        self._expected = expected_answer(scenario.plan)
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def asks_again(self) -> bool:
        return not self.scenario.is_once and time.perf_counter() < self.asks_until

    def connect(self, *, after_s: float = 0.0) -> None:
        """Open one more connection, which asks at once."""
        task = asyncio.create_task(self._connect(after_s), name="connect")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            await asyncio.get_running_loop().create_connection(lambda: Client(self), "127.0.0.1", self.port)
        except OSError as error:
            self.failed(f"no connection: {error}")

    def failed(self, what: str) -> None:
        self.errors += 1
        if len(self.first_errors) < _QUOTED:
            self.first_errors.append(what)

    def answered(self, status: int, body: bytes) -> None:
        """An answer has come to its tidy end."""
        fault = self._fault(status, body)
        if fault is not None:
            self.failed(fault)
            return
        self.ok += 1
        self.verbatim += self._expected.is_verbatim(body)

    def _fault(self, status: int, body: bytes) -> str | None:
        """What an answer lacks; None if it is whole. One that was written anew may still be whole."""
        if status != 200:
            return f"status {status}: {body[:200].decode('latin-1')}"
        if self._expected.is_verbatim(body):
            return None
        plan = self.scenario.plan
        if plan is None:
            return _fault_of_plain(body)
        numbers = [int(number) for number in NUMBER.findall(body)]
        if len(numbers) != plan.chunks or not (plan.is_stamped or numbers == list(range(plan.chunks))):
            return f"{len(numbers)} chunks of {plan.chunks}, or not in order"
        return None if DONE.strip() in body[-40:] else f"no end of the stream: {body[-80:]!r}"


def _fault_of_plain(body: bytes) -> str | None:
    try:
        is_whole = json.loads(body)["usage"]["total_tokens"] == TOTAL_TOKENS
    except (ValueError, KeyError, TypeError):
        return f"no such answer: {body[:80]!r}"
    return None if is_whole else "another usage than was sent"


def _request(scenario: Scenario, port: int) -> bytes:
    body = request_body(scenario.body_bytes, scenario.plan)
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nuser-agent: bench\r\naccept: */*\r\n"
        "content-type: application/json\r\nauthorization: Bearer sk-bench\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._plan = findings.scenario.plan
        self._leaves_after = findings.scenario.hang_up_after
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._is_open = False
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._pieces = []
        self._is_open = True
        findings = self._findings
        findings.open_answers += 1
        findings.most_open = max(findings.most_open, findings.open_answers)
        self._asked = time.perf_counter()
        self._transport.write(self._findings.request)

    def _close_answer(self) -> None:
        self._is_open = False
        self._findings.open_answers -= 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._findings.failed(f"no HTTP: {error}")
            self._transport.abort()

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._plan is None:
            return
        findings = self._findings
        if len(self._pieces) == 1:
            findings.ttfts_s.append(time.perf_counter() - self._asked)
        if self._plan.is_stamped:
            arrived_ns = time.monotonic_ns()
            findings.lags_ns += [arrived_ns - int(sent_ns) for sent_ns in NUMBER.findall(data)]
        if self._is_open and self._leaves_after is not None and len(self._pieces) >= self._leaves_after:
            self._close_answer()
            self._transport.abort()

    def on_message_complete(self) -> None:
        if not self._is_open:
            return
        findings = self._findings
        self._close_answer()
        findings.latencies_s.append(time.perf_counter() - self._asked)
        findings.answered(self._parser.get_status_code(), b"".join(self._pieces))
        is_kept = self._parser.should_keep_alive()
        if is_kept and findings.asks_again:
            self._ask()
        elif not is_kept:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        findings = self._findings
        if self._is_open:
            self._close_answer()
            findings.failed(f"cut off after {len(self._pieces)} pieces: {exc!r}")
        if findings.asks_again and findings.errors < _MOST_ERRORS:
            findings.connect()
