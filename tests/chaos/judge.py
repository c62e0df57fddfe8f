"""The engine's own view of what it was given: it works every request's blocks out by itself and adds up what is open.

This is the judge of over-admission that shares nothing with the gateway: no bound, no grant, no book. It sees requests when
they arrive, and their ends when it has answered or the connection is gone. A gateway closes an old connection and sends
a new request in one breath, so an excess counts only if those who make it up are still there a moment later.

What may be open is what the engine has told: after a change the larger of the old and the new budget counts until the
gateway has come back for the page of metrics often enough to have understood.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PAGES_TO_UNDERSTAND = 4


@dataclass(slots=True)
class Open:
    """One request that the engine works on. needs: blocks, at most."""

    plan: int
    needs: int
    seats: int


@dataclass(slots=True)
class Judge:
    """One engine's. reserve: the part of the budget that the gateway was told never to grant beside others.

    settle: waits until the ends of connections that were closed by now have been seen.
    """

    name: str
    reserve: float
    report: Callable[[str], None]
    settle: Callable[[], Any]
    budget: int = 0
    seats: int | None = None
    most_open: int = 0
    most_blocks: int = 0
    judged: int = 0
    context: int = 0
    _older: int = 0  # a budget that was larger, and may still be believed
    _older_context: int = 0
    _pages_left: int = 0
    _open: dict[int, Open] = field(default_factory=dict)
    _tickets: Any = field(default_factory=itertools.count)
    _looks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def blocks(self) -> int:
        return sum(each.needs for each in self._open.values())

    def tell_budget(self, budget: int, context: int, seats: int | None) -> None:
        """The engine has another budget and another context from now on."""
        self._older = max(self.budget, self._older if self._pages_left else 0)
        self._older_context = min(self.context, self._older_context) if self._pages_left else self.context
        self._pages_left = PAGES_TO_UNDERSTAND if self.budget else 0
        self.budget, self.context, self.seats = budget, context, seats

    @property
    def believed_context(self) -> int:
        """What a gateway may take for the longest sequence: of a context that grew, it may still know the shorter."""
        return min(self.context, self._older_context) if self._pages_left else self.context

    def page_was_read(self) -> None:
        self._pages_left = max(self._pages_left - 1, 0)

    def opened(self, plan: int, needs: int, seats: int) -> int:
        """A request has arrived. Returns what `ended` is to be called with."""
        ticket: int = next(self._tickets)
        self._open[ticket] = Open(plan, needs, seats)
        self.judged += 1
        self.most_open = max(self.most_open, len(self._open))
        self.most_blocks = max(self.most_blocks, self.blocks)
        if self._excess(self._open):
            look = asyncio.get_running_loop().create_task(self._look_again(dict(self._open)), name=f"judge of {self.name}")
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        return ticket

    def ended(self, ticket: int) -> None:
        self._open.pop(ticket, None)

    async def _look_again(self, suspects: dict[int, Open]) -> None:
        await self.settle()
        left = {ticket: each for ticket, each in suspects.items() if ticket in self._open}
        if excess := self._excess(left):
            self.report(f"over-admitted on {self.name}: {excess}")

    def _excess(self, requests: Mapping[int, Open]) -> str:
        """What is too much, "" if nothing is."""
        blocks, seats = sum(each.needs for each in requests.values()), sum(each.seats for each in requests.values())
        budget = max(self.budget, self._older if self._pages_left else 0)
        numbers = f"{blocks} blocks in {len(requests)} requests (plans {sorted(each.plan for each in requests.values())})"
        if len(requests) == 1:
            return f"{numbers}, of {budget}" if blocks > budget else ""
        if blocks > budget - int(-(-budget * self.reserve // 1)):
            return f"{numbers}, of {budget} less {self.reserve:.0%}"
        if self.seats is not None and seats > self.seats:
            return f"{seats} sequences in {len(requests)} requests, of {self.seats}"
        return ""
