"""The clocks of running answers. One ticker looks for late ones; no request and no chunk has a timer of its own."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.clock import Clock

# Answers that are looked at in one go: a look takes tens of microseconds where a stream is fast, and holds up the others.
_AT_ONCE: Final = 8
# So many ticks in a period at most, and so many turns of the loop in a tick: of thousands of streams most are slow, and timers
# and turns for each eight would cost more than what they are for.
_TICKS: Final = 25
_TURNS: Final = 16


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
    """Looks at every watched answer four times a second, a few at a time all the while: a limit is kept to within that."""

    PERIOD_S = 0.25

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Who was not looked at for longest comes first. The period in which each was looked at last; -1: in none.
        self._watched: OrderedDict[Watched, int] = OrderedDict()
        self._period = 0
        self._awake = asyncio.Event()

    def watch(self, answer: Watched) -> None:
        if not self._watched:
            self._awake.set()
        self._watched[answer] = -1

    def unwatch(self, answer: Watched) -> None:
        self._watched.pop(answer, None)

    def look_at_next(self, count: int) -> None:
        """Look at so many, those whose turn it is in this period. A look may end answers, and let others begin."""
        now = self._clock.now()
        for _ in range(count):
            answer = next(iter(self._watched), None)
            if answer is None or self._watched[answer] == self._period:
                return
            self._watched[answer] = self._period
            self._watched.move_to_end(answer)
            answer.check(now)

    async def run(self) -> None:
        """Ticks while anything is watched; sleeps without a timer otherwise. Runs until cancelled."""
        while True:
            if not self._watched:
                self._awake.clear()
                await self._awake.wait()
            self._period += 1
            began, ticks = self._clock.now(), min(-(-len(self._watched) // _AT_ONCE), _TICKS)
            for tick in range(1, ticks + 1):
                await self._clock.sleep_until(began + self.PERIOD_S * tick / ticks)
                due = -(-len(self._watched) // ticks)
                at_once = max(_AT_ONCE, -(-due // _TURNS))
                for start in range(0, due, at_once):
                    self.look_at_next(min(at_once, due - start))
                    await asyncio.sleep(0)  # thousands of them hold up no chunk
