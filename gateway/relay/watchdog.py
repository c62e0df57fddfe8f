"""The clocks of running answers. One ticker looks for late ones; no request and no chunk has a timer of its own."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.clock import Clock

# Answers that are looked at in one go; a look takes tens of microseconds where a stream is fast.
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Clocks:
    """Limits of one answer, in seconds.

    first_token_s: from sending to the first token-bearing event; streams only.
    stall_s: between two reads from the engine, while we want to read; streams only.
    total_s: from sending to the end. send_s: how long a client may take no byte while we have some.
    """

    first_token_s: float
    stall_s: float
    total_s: float
    send_s: float


class Watched(Protocol):
    def check(self, now: float) -> None:
        """Look at the own clocks and end what is late. Must not wait."""


class Watchdog:
    """Looks at every watched answer four times a second, a few at a time: a limit is kept to within that."""

    PERIOD_S = 0.25

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched: set[Watched] = set()
        self._awake = asyncio.Event()

    def watch(self, answer: Watched) -> None:
        if not self._watched:
            self._awake.set()
        self._watched.add(answer)

    def unwatch(self, answer: Watched) -> None:
        self._watched.discard(answer)

    def check(self, answers: Iterable[Watched]) -> None:
        """Look at those of the answers that are still watched."""
        now = self._clock.now()
        for answer in answers:
            if answer in self._watched:
                answer.check(now)

    async def run(self) -> None:
        """Ticks while anything is watched; sleeps without a timer otherwise. Runs until cancelled."""
        while True:
            if not self._watched:
                self._awake.clear()
                await self._awake.wait()
            await self._clock.sleep_until(self._clock.now() + self.PERIOD_S)
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        # Apart from the loop, which would keep what it saw alive until its next turn.
        answers = list(self._watched)
        for start in range(0, len(answers), _AT_ONCE):
            self.check(answers[start : start + _AT_ONCE])
            await asyncio.sleep(0)  # thousands of them hold up no chunk
