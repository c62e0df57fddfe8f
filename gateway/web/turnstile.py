"""The turnstile: how many requests start in one turn of the event loop.

A thousand clients that connect at once are parsed within a turn or two, and each start costs about a millisecond; whoever
asks for `/health` in that moment would wait for all of them. So only a few start in a turn, the others in the next ones,
in their order; what else happened meanwhile goes between. While fewer come than may start, nobody waits for anything.
"""

import asyncio
from collections import deque
from typing import Final

STARTS_PER_TURN: Final = 16


class Turnstile:
    """Lets `per_turn` at most through in one turn of the loop, in the order in which they came."""

    def __init__(self, per_turn: int = STARTS_PER_TURN) -> None:
        self._per_turn = per_turn
        self._passed = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._is_turning = False
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first who came

    def lets_pass(self) -> bool:
        """Whether it is one's turn at once, as it is unless more came in this turn than may start in it; if not, `enter`."""
        if not self._is_turning:
            self._is_turning = True
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            loop.call_soon(self._turn, loop)
        if self._line or self._passed >= self._per_turn:
            return False
        self._passed += 1
        return True

    async def enter(self) -> None:
        """Return when it is one's turn."""
        if self.lets_pass():
            return
        assert self._loop is not None
        place: asyncio.Future[None] = self._loop.create_future()
        self._line.append(place)
        await place

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._passed = 0
        while self._line and self._passed < self._per_turn:
            place = self._line.popleft()
            # One who was cancelled meanwhile uses nobody's turn.
            if not place.done():
                place.set_result(None)
                self._passed += 1
        self._is_turning = self._passed > 0
        if self._is_turning:
            loop.call_soon(self._turn, loop)
