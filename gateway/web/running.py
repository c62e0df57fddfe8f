"""What is on its way now, requests and the answers that take their place, and uncounted calls: what a drain waits for, and in
the end cuts."""

import asyncio
from typing import Protocol

from gateway.core.errors import Rejected, UpstreamStage
from gateway.core.outcomes import RejectReason


def shutting_down() -> Rejected:
    """What is told to who comes during a drain, or has no answer yet at its end."""
    return Rejected("this gateway is shutting down", reason=RejectReason.DRAINING, retry_after_s=None)


class Cuttable(Protocol):
    def cut(self, stage: UpstreamStage) -> None:
        """End now. Must not wait."""
        ...


class Running:
    """A request is in here until its answer takes its place. After `cut_all`, whatever is still added is cut as well."""

    def __init__(self) -> None:
        self._work: set[Cuttable] = set()
        self._is_cut = False
        self._became_idle = asyncio.Event()
        self._is_awaited = False  # else whoever leaves need not look who is still there

    def __len__(self) -> int:
        return len(self._work)

    def add(self, work: Cuttable) -> None:
        self._work.add(work)
        if self._is_cut:
            work.cut(UpstreamStage.DRAIN)

    def discard(self, work: Cuttable) -> None:
        self._work.discard(work)
        if self._is_awaited and not self._work:
            self._is_awaited = False
            self._became_idle.set()

    async def wait_until_idle(self) -> None:
        """Return once nothing is on its way."""
        while self._work:
            self._became_idle.clear()
            self._is_awaited = True
            await self._became_idle.wait()

    def cut_all(self) -> None:
        """End everything now: streams with an error event, other answers visibly broken, requests without one refused."""
        self._is_cut = True
        for work in list(self._work):
            work.cut(UpstreamStage.DRAIN)
