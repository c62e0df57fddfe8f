"""A gateway before a fake engine, and the words of the cases: STD, FULL, TWIN, IDLE.

The engine has 64 usable blocks of 16 tokens. STD takes 15 of them: four fit, five do not. FULL takes nearly all: it is
admitted only if nothing leaked. TWIN is two requests that never fit together: if they are open at once at the engine,
something was released twice. IDLE is nothing held, nothing in flight, nobody waiting.

Requests are told apart at the engine by their header `x-tag`, which the gateway forwards.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.book_watch import BookWatch, State
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeUpstream, eventually
from support.gates import held_head
from support.gateway_process import CASE_SETTINGS, GatewayProcess, running_gateway
from support.http_client import Answer, Connection, open_post, post

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODEL = "fake-model"
BLOCK_TOKENS = 16
BUDGET_BLOCKS = 64
STD_CAP = 224
FULL_CAP = 864
TWIN_CAP = 560

IDLE_WITHIN_S = 5.0
TWIN_OPEN_S = 0.02


def chat_body(cap: int | None = STD_CAP, **more: object) -> dict[str, object]:
    """A chat request of one short message."""
    body: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "ping"}]}
    if cap is not None:
        body["max_tokens"] = cap
    return body | more


def block_body(blocks: int, **more: object) -> dict[str, object]:
    """A completions request that takes exactly so many blocks: one token id, and the last token's KV is never written."""
    return {"model": MODEL, "prompt": [1], "max_tokens": blocks * BLOCK_TOKENS, **more}


def blocks_of(prompt_tokens: int, cap_tokens: int) -> int:
    """Blocks that one sequence may take, by the engine's own arithmetic."""
    return -(-(prompt_tokens + max(cap_tokens, 1) - 1) // BLOCK_TOKENS)


@dataclass(slots=True)
class Bench:
    """One gateway, one fake engine, both of this test module or test."""

    fake: FakeUpstream
    engine: FakeEngine
    gateway: GatewayProcess
    _numbers: Callable[[], int] = field(default_factory=lambda: count(1).__next__)

    @property
    def watch(self) -> BookWatch:
        assert self.gateway.watch is not None
        return self.gateway.watch

    def tag(self, stem: str) -> str:
        """A tag that no other request carries."""
        return f"{stem}-{self._numbers()}"

    # -- asking

    async def post(self, target: str, body: object, *, tag: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        return await post(self.gateway.url, target, body, _tagged(tag, headers))

    async def open(self, target: str, body: object, *, tag: str = "", headers: Mapping[str, str] | None = None) -> Connection:
        """Send a request and read nothing yet."""
        return await open_post(self.gateway.url, target, body, _tagged(tag, headers))

    async def std(self, *, tag: str = "", cap: int = STD_CAP) -> Answer:
        return await self.post(CHAT, chat_body(cap), tag=tag)

    async def take(self, blocks: int, tag: str, **more: object) -> Connection:
        """Send a request for so many blocks and return once it is at the engine."""
        connection = await self.open(COMPLETIONS, block_body(blocks, **more), tag=tag)
        await eventually(lambda: self.fake.open_requests(tag) > 0)
        return connection

    async def wait_in_line(self, blocks: int, tag: str, *, headers: Mapping[str, str] | None = None) -> Connection:
        """Send a request for so many blocks and return once one more is queued than before."""
        before = (await self.gateway.state()).queued
        connection = await self.open(COMPLETIONS, block_body(blocks), tag=tag, headers=headers)
        await self.state_where(lambda state: state.queued > before, f"{tag} is queued")
        return connection

    @asynccontextmanager
    async def everything_taken(self, blocks: int = BUDGET_BLOCKS) -> AsyncIterator[asyncio.Event]:
        """A request at the engine that holds so many blocks until the event is set or the block is left; it ends well."""
        gate, tag = asyncio.Event(), self.tag("taken")
        self.fake.script(tag, held_head(gate, self.engine.completion()))
        async with await self.take(blocks, tag) as holder:
            yield gate
            gate.set()
            assert (await holder.answer()).status == 200

    # -- awaiting

    async def state_where(self, fact: Callable[[State], object], what: str, *, within_s: float = IDLE_WITHIN_S) -> State:
        """The first snapshot of which the fact is true."""
        state: State | None = None
        try:
            async with asyncio.timeout(within_s), await Connection.open(self.gateway.admin_url) as connection:
                while True:
                    state = State((await connection.ask("GET", "/kvgate/state")).json())
                    if fact(state):
                        return state
                    await asyncio.sleep(0.005)
        except TimeoutError:
            seen = json.dumps(state.raw, indent=1) if state is not None else "no snapshot"
            raise AssertionError(f"did not come true within {within_s} s: {what}\n{seen}") from None

    # -- the words of the cases

    async def idle(self) -> State:
        """IDLE: everything ended, at the engine as well; and no snapshot so far broke a rule."""
        state = await self.state_where(lambda state: state.is_idle, "IDLE")
        await eventually(lambda: self.open_inference() == 0)
        assert not state.faults(), state.faults()
        self.watch.check()
        return state

    async def full(self) -> None:
        """FULL: nearly the whole budget at once. A leak would make it wait for ever."""
        tag = self.tag("full")
        async with asyncio.timeout(IDLE_WITHIN_S):
            answer = await self.std(tag=tag, cap=FULL_CAP)
        assert answer.status == 200, answer
        assert len(self.fake.tagged(tag)) == 1

    async def twin(self) -> None:
        """TWIN: two that do not fit together, at once. A double release would let them."""
        tag = self.tag("twin")
        self.fake.script(tag, self.engine.completion(first_gap_s=TWIN_OPEN_S))
        answers = await asyncio.gather(*(self.std(tag=tag, cap=TWIN_CAP) for _ in range(2)))
        assert [answer.status for answer in answers] == [200, 200], answers
        assert self.fake.high_water(tag) == 1, "two requests that do not fit together were open together"

    async def end_case(self) -> None:
        """What every case ends with."""
        await self.idle()
        await self.full()
        await self.twin()
        await self.idle()

    def open_inference(self) -> int:
        """Inference requests open at the engine; its probes do not count."""
        return sum(1 for request in self.fake.requests if request.end is None and request.method == b"POST")

    def arrivals(self, tag: str) -> int:
        """How often requests of this tag reached the engine."""
        return len(self.fake.tagged(tag))


def _tagged(tag: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    return {**({"x-tag": tag} if tag else {}), **(headers or {})}


@asynccontextmanager
async def running_bench(
    engine: FakeEngine | None = None, *, with_case_settings: bool = True, watched: bool = True, **settings: str
) -> AsyncIterator[Bench]:
    """A bench with these settings; on a clean end the gateway's exit and its books are checked."""
    engine = engine or FakeEngine()
    given = {**CASE_SETTINGS, **settings} if with_case_settings else settings
    async with (
        FakeUpstream(default=engine) as fake,
        running_gateway([fake.url], given, watched=watched) as gateway,
    ):
        yield Bench(fake, engine, gateway)


def without(body: Mapping[str, object], *names: str) -> dict[str, Any]:
    """The body less some of its members."""
    return {name: value for name, value in body.items() if name not in names}
