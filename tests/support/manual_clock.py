"""A clock that stands still until a test moves it."""

import asyncio


class ManualClock:
    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep_until(self, instant: float) -> None:
        if instant <= self._now:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((instant, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move on and wake whoever slept until then."""
        self._now += seconds
        due = [woken for instant, woken in self._sleepers if instant <= self._now]
        self._sleepers = [(instant, woken) for instant, woken in self._sleepers if instant > self._now]
        for woken in due:
            if not woken.done():
                woken.set_result(None)

    @property
    def sleepers(self) -> int:
        return sum(1 for _, woken in self._sleepers if not woken.done())
