"""Clock: monotonic seconds and waiting for an instant. Tests bring their own; nothing here reads the wall clock."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """`now` is monotonic seconds. `sleep_until` returns once `now() >= instant`."""

    def now(self) -> float: ...

    async def sleep_until(self, instant: float) -> None: ...


class MonotonicClock:
    """The real one: time.monotonic, which asyncio's own timers use as well."""

    now = staticmethod(time.monotonic)  # asked some twenty times a request

    async def sleep_until(self, instant: float) -> None:
        while (left_s := instant - time.monotonic()) > 0:
            await asyncio.sleep(left_s)
