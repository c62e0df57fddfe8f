"""Feed: one snapshot a second for everybody who looks, and none while nobody does.

It promises: a snapshot is taken and encoded once, however many look; a viewer that is slow gets the newest one next and
never a backlog; there are at most so many viewers; `close` ends all of them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.clock import Clock

log = logging.getLogger("kvgate.console")

PERIOD_S: Final = 1.0
MOST_VIEWERS: Final = 16


class Viewer:
    """One open console: the newest snapshot that it has not taken yet."""

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self._is_closed = False
        self._news = asyncio.Event()

    def tell(self, snapshot: bytes) -> None:
        self._newest = snapshot
        self._news.set()

    def close(self) -> None:
        """Nothing more will be told, or wanted."""
        self._is_closed = True
        self._news.set()

    async def next(self) -> bytes | None:
        """The newest snapshot not taken yet, once there is one; None at the end."""
        await self._news.wait()
        self._news.clear()
        return None if self._is_closed else self._newest


class Feed:
    def __init__(self, take: Callable[[], bytes], clock: Clock, *, most_viewers: int = MOST_VIEWERS) -> None:
        """take: makes one snapshot, without waiting."""
        self._take = take
        self._clock = clock
        self._most_viewers = most_viewers
        self._viewers: set[Viewer] = set()
        self._newest: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Viewers."""
        return len(self._viewers)

    @property
    def is_working(self) -> bool:
        """Whether snapshots are being taken."""
        return self._task is not None

    def join(self) -> Viewer | None:
        """A new viewer; None while there are as many as may be, or after the end."""
        if self._is_closed or len(self._viewers) >= self._most_viewers:
            return None
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console feed")
        elif self._newest is not None:
            viewer.tell(self._newest)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """It looks no longer. The second time does nothing."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = self._newest = None

    def close(self) -> None:
        """End every viewer's stream, now and from now on."""
        self._is_closed = True
        for viewer in self._viewers:
            viewer.close()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            started = self._clock.now()
            try:
                self._newest = self._take()
            except Exception:  # a bug in a picture of the gateway must not end the gateway
                log.exception("a snapshot for the console could not be taken")
                for viewer in self._viewers:
                    viewer.close()
            else:
                for viewer in self._viewers:
                    viewer.tell(self._newest)
            await self._clock.sleep_until(started + PERIOD_S)
