"""Agent-like clients: each takes several turns over a growing conversation, streams, thinks, and comes back when told to.

A refusal (429, 503) is tried again after the time that the answer names, as the SDKs do, unless it says not to. What is
measured is what a caller sees: time to the first token from its first try on, and the longest silence between two tokens.
The same `Burst` against the same engine asks for the same tokens each time.
"""

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from gateway.simulator.http_client import BrokenAnswer, Exchange, request
from gateway.simulator.toy_text import answer_text

_RETRY_STATUSES = (429, 503)


@dataclass(frozen=True, slots=True)
class Burst:
    """What the clients do. Tokens are of the pretend engine's tokenizer.

    task_tokens: of the first prompt; tool_tokens: what each further turn adds to the last answer; spread_s: within which all
    agents begin; think_s: mean time between turns; max_tries: of one call; retry_cap_s: the longest told wait that is honoured.
    """

    agents: int = 24
    turns: int = 2
    task_tokens: int = 200
    tool_tokens: int = 100
    cap_tokens: int = 256
    think_s: float = 0.2
    spread_s: float = 0.5
    max_tries: int = 8
    retry_cap_s: float = 30.0
    call_timeout_s: float = 120.0
    model: str = "simulated-8b"
    seed: int = 1

    @property
    def calls(self) -> int:
        return self.agents * self.turns


@dataclass(slots=True)
class Call:
    """One turn's request as its caller saw it; seconds from the first try on. error: None if it completed."""

    agent: int
    turn: int
    tries: int = 0
    refusals: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None
    worst_gap_s: float = 0.0
    total_s: float = 0.0
    error: str | None = None


@dataclass(slots=True)
class Tally:
    """How a burst stands: calls in each phase. For whoever shows it while it runs."""

    total: int
    waiting: int = 0  # sent, no token yet
    streaming: int = 0
    completed: int = 0
    failed: int = 0
    refusals: int = 0

    @property
    def ended(self) -> int:
        return self.completed + self.failed


@dataclass(frozen=True, slots=True)
class Report:
    """What a burst came to. `summary()` is the form for people and JSON."""

    calls: tuple[Call, ...]
    wall_s: float

    @property
    def completed(self) -> int:
        return sum(call.error is None for call in self.calls)

    def summary(self) -> dict[str, Any]:
        """Seconds are over completed calls; None where there are none."""
        done = [call for call in self.calls if call.error is None]
        firsts = [call.ttft_s for call in done if call.ttft_s is not None]
        gaps = [call.worst_gap_s for call in done]
        tokens = sum(call.output_tokens for call in done)
        return {
            "requests": len(self.calls),
            "completed": len(done),
            "failed": len(self.calls) - len(done),
            "refusals": sum(call.refusals for call in self.calls),
            "wall_s": round(self.wall_s, 3),
            "output_tokens": tokens,
            "output_tokens_per_s": round(tokens / self.wall_s, 1) if self.wall_s else None,
            "ttft_s_p50": _quantile(firsts, 0.5),
            "ttft_s_p95": _quantile(firsts, 0.95),
            "worst_gap_s_median": round(statistics.median(gaps), 4) if gaps else None,
            "worst_gap_s_max": round(max(gaps), 4) if gaps else None,
            "errors": sorted({call.error for call in self.calls if call.error is not None}),
        }


@dataclass(slots=True)
class Load:
    """A burst against one base URL (`http://host:port`, without `/v1`). `tally` may be read while it runs."""

    url: str
    burst: Burst
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(total=self.burst.calls)

    async def run(self) -> Report:
        """Run all agents to their end. Failures are in the report, none is raised."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            agents = [group.create_task(self._agent(number)) for number in range(self.burst.agents)]
        calls = tuple(call for agent in agents for call in agent.result())
        return Report(calls, time.monotonic() - started)

    async def _agent(self, number: int) -> list[Call]:
        burst = self.burst
        draw = random.Random(f"{burst.seed}/{number}")
        talk = [{"role": "user", "content": f"Agent {number}:" + answer_text(draw.getrandbits(32), 0, burst.task_tokens)}]
        calls: list[Call] = []
        await asyncio.sleep(draw.uniform(0, burst.spread_s))
        for turn in range(burst.turns):
            if turn:
                await asyncio.sleep(draw.uniform(0.5, 1.5) * burst.think_s)
            call = Call(agent=number, turn=turn)
            calls.append(call)
            said = await self._call(call, talk, draw)
            talk.append({"role": "assistant", "content": said})
            found = answer_text(draw.getrandbits(32), 0, burst.tool_tokens)
            talk.append({"role": "user", "content": f"The tool answered:{found}"})
        return calls

    async def _call(self, call: Call, talk: list[dict[str, str]], draw: random.Random) -> str:
        """One turn, with its retries. Returns what the model said; how it went is in `call`."""
        ask = {
            "model": self.burst.model,
            "messages": talk,
            "max_tokens": self.burst.cap_tokens,
            "seed": self.burst.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(ask).encode()
        talking = _Talking(call, self.tally)
        self.tally.waiting += 1
        try:
            async with asyncio.timeout(self.burst.call_timeout_s):
                while (pause_s := await self._try(call, body, talking)) is not None:
                    await asyncio.sleep(pause_s * draw.uniform(1.0, 1.1))
        except TimeoutError:
            call.error = f"no end within {self.burst.call_timeout_s:g} s"
        except BrokenAnswer as error:
            call.error = str(error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            call.error = f"not an answer of the OpenAI kind: {error!r}"
        finally:
            talking.end()
        return talking.text

    async def _try(self, call: Call, body: bytes, talking: "_Talking") -> float | None:
        """One try: None when the call has ended, for good or ill; else seconds after which to try again."""
        call.tries += 1
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        async with request("POST", f"{self.url}/v1/chat/completions", body=body, headers=headers) as exchange:
            if exchange.status == 200:
                await talking.follow(exchange)
                return None
            said = (await exchange.body()).decode("utf-8", "replace")[:200]
            if exchange.status in _RETRY_STATUSES:
                call.refusals += 1
                self.tally.refusals += 1
                pause_s = told_wait_s(exchange.headers, call.tries)
                if pause_s is not None and pause_s <= self.burst.retry_cap_s and call.tries < self.burst.max_tries:
                    return pause_s
            call.error = f"{exchange.status}: {said}"
            return None


class _Talking:
    """One answer as it streams in: times of its tokens, its text, and whether it came to a proper end."""

    def __init__(self, call: Call, tally: Tally) -> None:
        self.text = ""
        self._call = call
        self._tally = tally
        self._started = time.monotonic()
        self._last: float | None = None

    async def follow(self, exchange: Exchange) -> None:
        """Read the stream to its end. An error event, or an end without finish_reason, is an error of the call."""
        call = self._call
        finish: str | None = None
        buffered = b""
        async for part in exchange.parts():
            *events, buffered = (buffered + part).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: {"):
                    continue  # [DONE], or a comment that keeps the connection alive
                chunk = json.loads(event[6:])
                if chunk.get("error"):
                    call.error = f"in the stream: {chunk['error'].get('message')}"
                for choice in chunk.get("choices", ()):
                    finish = choice.get("finish_reason") or finish
                    if text := choice["delta"].get("content"):
                        self.text += text
                        self._token()
                if usage := chunk.get("usage"):
                    call.output_tokens = usage["completion_tokens"]
        if finish is None and call.error is None:
            call.error = "the stream ended without a finish_reason"

    def end(self) -> None:
        """The call is over: count it."""
        self._call.total_s = time.monotonic() - self._started
        if self._last is None:
            self._tally.waiting -= 1
        else:
            self._tally.streaming -= 1
        if self._call.error is None:
            self._tally.completed += 1
        else:
            self._tally.failed += 1

    def _token(self) -> None:
        now = time.monotonic()
        if self._last is None:
            self._call.ttft_s = now - self._started
            self._tally.waiting -= 1
            self._tally.streaming += 1
        else:
            self._call.worst_gap_s = max(self._call.worst_gap_s, now - self._last)
        self._last = now


def told_wait_s(headers: Any, tries: int) -> float | None:
    """Seconds to wait before the next try, as the OpenAI SDK reads the answer; None: do not try again."""
    if headers.get("x-should-retry") == "false":
        return None
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):
            continue
    return float(min(0.5 * 2 ** (tries - 1), 8.0))


def _quantile(values: list[float], part: float) -> float | None:
    """The nearest-rank quantile, rounded to 0.1 ms; None of nothing."""
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(part * len(values)))], 4)
