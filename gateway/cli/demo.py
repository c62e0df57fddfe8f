"""`kvgate demo`: the same burst of agents at a pretend engine, straight and through the gateway, and what that changes.

The engine (simulator/) and the gateway (`kvgate serve`, all defaults) run as processes of their own; the clients run in this
one. Afterwards both keep serving for whoever wants to try, until Ctrl-C.
"""

import asyncio
import json
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

import typer

from gateway.cli.demo_processes import Child, DemoFailed, free_port, running_gateway, running_simulator
from gateway.cli.demo_view import DemoView, GateReading, Moment
from gateway.simulator.http_client import BrokenAnswer, get
from gateway.simulator.load import Burst, Load, Report
from gateway.simulator.scrape import read_engine

DEFAULT_PORT: Final = 8700
DEFAULT_ADMIN_PORT: Final = 8701
INTERRUPTED_EXIT: Final = 130

# Agents whose answers mostly run into the cap that they set, as tool-calling agents' do, and together need some two and a
# half times the blocks that there are. The pace is three times that of an 8B model on an A10G, so that nobody waits long:
# about eleven seconds without the gate, two or three more with it.
NUM_BLOCKS: Final = 385  # one of them never holds tokens
ENGINE: Final = (
    *("--num-gpu-blocks", str(NUM_BLOCKS), "--block-size", "16", "--max-model-len", "4096"),
    *("--speed", "3", "--mean-output", "320"),
)
MODEL: Final = "simulated-8b"
BURST: Final = Burst(
    agents=32, turns=2, task_tokens=200, tool_tokens=60, cap_tokens=200, think_s=0.2, spread_s=0.3, model=MODEL
)
BURST_LIMIT_S: Final = 45.0
LOOK_EVERY_S: Final = 0.2


def demo(
    once: Annotated[bool, typer.Option("--once", help="End after the summary instead of serving on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the gateway; another free one is taken if it is in use.")
    ] = DEFAULT_PORT,
) -> None:
    """Show what the gateway does, with a pretend engine: no GPU, no model, no settings needed."""
    raise SystemExit(asyncio.run(_Demo(once=once, as_json=as_json, port=port).run_until_signal()))


class _Demo:
    """One run of the demo. Exit status: 0 if the gate did what it is for, 1 if not, INTERRUPTED_EXIT if it was cut short."""

    def __init__(self, *, once: bool, as_json: bool, port: int) -> None:
        self._once = once
        self._as_json = as_json
        self._port = port
        self._result: dict[str, Any] = {"ungated": None, "gated": None, "preemptions_saved": None, "ok": False, "problems": []}
        self._is_told = False

    async def run_until_signal(self) -> int:
        """Run, or stop early in good order: children are ended before this returns."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stopped.set)
        running = asyncio.create_task(self._run())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not running.done():
            running.cancel()
        await asyncio.wait({running})
        if running.cancelled() and not self._is_told:
            return INTERRUPTED_EXIT
        if not running.cancelled():
            running.result()  # what it raised is a bug: shown as it is
        return 0 if self._result["ok"] else 1

    async def _run(self) -> None:
        with DemoView(beside_json=self._as_json) as view:
            try:
                async with AsyncExitStack() as stack:
                    await self._both_bursts(stack, view)
            except (DemoFailed, BrokenAnswer) as error:
                view.settle()
                self._result["problems"].append(str(error))
                self._result["ok"] = False
                self._tell(view)

    async def _both_bursts(self, stack: AsyncExitStack, view: DemoView) -> None:
        simulator, engine_url = await stack.enter_async_context(running_simulator(*ENGINE))
        view.say(
            f"{BURST.agents} agents, {BURST.turns} turns each; a pretend engine with {NUM_BLOCKS - 1} KV blocks of 16 tokens."
        )
        view.say("1. Straight at the engine: it admits what fits now, and preempts when the answers grow.")
        self._result["ungated"] = ungated = await _run_burst(view, "Straight at the engine", engine_url, engine_url, None)
        view.say(f"   {_outcome(ungated)}")
        view.say("2. The same through kvgate: each request is held for prompt and output cap, and waits until that fits.")
        port = free_port(self._port)
        admin_port = free_port(*(candidate for candidate in (DEFAULT_ADMIN_PORT,) if candidate != port))
        gateway, url, admin_url = await stack.enter_async_context(running_gateway(engine_url, port=port, admin_port=admin_port))
        self._result["gated"] = gated = await _run_burst(view, "Through kvgate", url, engine_url, admin_url)
        view.say(f"   {_outcome(gated)}")
        self._judge(ungated, gated)
        view.compare(ungated, gated)
        self._tell(view)
        if not self._once:
            for line in _how_to_try(url, admin_url, engine_url):
                view.say(line)
            raise await _first_to_end(simulator, gateway)

    def _judge(self, ungated: dict[str, Any], gated: dict[str, Any]) -> None:
        """The result as a whole: `ok` only if each of the three things that the demo claims was seen."""
        problems: list[str] = self._result["problems"]
        if not ungated["preemptions"]:
            problems.append("the engine did not preempt without the gate, so there was nothing to show")
        if gated["preemptions"]:
            problems.append(f"the engine preempted {gated['preemptions']} times behind the gate")
        if gated["completed"] != gated["requests"]:
            problems.append(f"{gated['failed']} of {gated['requests']} requests through the gate failed: {gated['errors']}")
        self._result["preemptions_saved"] = ungated["preemptions"] - gated["preemptions"]
        self._result["ok"] = not problems

    def _tell(self, view: DemoView) -> None:
        """The verdict in a line, and as JSON where that was asked for."""
        for problem in self._result["problems"]:
            view.say(f"kvgate demo: {problem}")
        if self._result["ok"]:
            view.say(f"{self._result['preemptions_saved']} preemptions saved.")
        if self._as_json and not self._is_told:
            sys.stdout.write(json.dumps(self._result, allow_nan=False) + "\n")
            sys.stdout.flush()
        self._is_told = True


async def _run_burst(view: DemoView, title: str, url: str, engine_url: str, admin_url: str | None) -> dict[str, Any]:
    """Run the burst against `url`, showing it as it goes. The result has the report's summary and the engine's preemptions."""
    before = await read_engine(engine_url)
    load = Load(url, BURST)
    started = time.monotonic()
    running = asyncio.create_task(load.run())
    peak_queued = peak_held_blocks = 0
    try:
        while not running.done():
            await asyncio.wait({running}, timeout=LOOK_EVERY_S)
            elapsed_s = time.monotonic() - started
            if elapsed_s > BURST_LIMIT_S:
                raise DemoFailed(
                    f"{title.lower()}, {load.tally.total - load.tally.ended} requests had no end in {elapsed_s:.0f} s"
                )
            engine = await read_engine(engine_url)
            gate = await _read_gate(admin_url) if admin_url is not None else None
            if gate is not None:
                peak_queued, peak_held_blocks = max(peak_queued, gate.queued), max(peak_held_blocks, gate.held_blocks)
            view.show(Moment(title, elapsed_s, load.tally, engine, engine.preemptions - before.preemptions, gate))
    finally:
        view.settle()
        running.cancel()
        await asyncio.wait({running})
    report = running.result()
    after = await read_engine(engine_url)
    result = {**report.summary(), "frozen_streams": _frozen(report), "preemptions": after.preemptions - before.preemptions}
    if admin_url is not None:
        result |= {"peak_queued": peak_queued, "peak_held_blocks": peak_held_blocks}
    return result


def _frozen(report: Report) -> int:
    return sum(call.error is None and call.worst_gap_s > 1.0 for call in report.calls)


async def _read_gate(admin_url: str) -> GateReading:
    """Held blocks and queue as the gateway tells them. Raises BrokenAnswer if it does not."""
    status, body = await get(f"{admin_url}/kvgate/state")
    try:
        state = json.loads(body)
        backend = state["backends"][0]
        return GateReading(
            held_blocks=int(backend["held_blocks"]),
            budget_blocks=int(backend["budget_blocks"]),
            queued=int(state["queue"]["requests"]),
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BrokenAnswer(f"/kvgate/state ({status}) has no such figures: {error!r}") from error


async def _first_to_end(*children: Child) -> DemoFailed:
    """Wait as long as all children run, which they should until a signal comes."""
    waiting = [asyncio.create_task(child.wait()) for child in children]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in waiting:
            task.cancel()


def _outcome(result: dict[str, Any]) -> str:
    counts = f"{result['completed']} of {result['requests']} completed in {result['wall_s']:.1f} s"
    return f"{counts}, {result['preemptions']} preemptions."


def _how_to_try(url: str, admin_url: str, engine_url: str) -> tuple[str, ...]:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "stream": True}
    return (
        "",
        "Both are still running. Try the gateway with curl:",
        f"  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(ask)}'",
        "or with the openai client (pip install openai):",
        f"  from openai import OpenAI; client = OpenAI(base_url='{url}/v1', api_key='none')",
        f"  print(client.chat.completions.create(model='{MODEL}', messages=[{{'role': 'user', 'content': 'hello'}}]))",
        f"What is held and queued:  curl {admin_url}/kvgate/state    metrics: {admin_url}/metrics",
        f"The engine without the gate:  {engine_url}",
        "With an engine of your own:  kvgate serve --backends http://127.0.0.1:8000",
        "Ctrl-C ends both.",
    )
