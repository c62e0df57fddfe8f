"""The connections to one backend that are being opened, and who waits for one.

It promises:
* a first wave is no storm: at first 32 are being opened at the same time, one more with each that opened, never above 256,
  and 32 again after one that failed.
* who waits longest is served first, by what comes first: a connection that becomes free, or one that has opened. What is
  sent again takes only the latter, and goes ahead: it has waited before.
* a wait ends within its time. A failure to open is told to who waits longest, and to nobody else.
* who gives up leaves nothing behind: of what is being opened, what nobody wants any more is given up too.
* ahead of need it opens what it is asked for, and after a failure nothing until somebody who waited has got through.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.errors import UpstreamFailed
from gateway.relay.upstream_connection import UpstreamConnection

AT_FIRST: Final = 32
AT_MOST: Final = 256
# Loops keep time by the millisecond: what is due within one is due.
_TICK_S: Final = 0.002

_Line = OrderedDict[asyncio.Future[UpstreamConnection], float]
"""Who waits, in the order in which they began to, and when that was, by the loop's clock."""


class UpstreamOpenings:
    """open_one: opens a connection or raises UpstreamFailed; cancelled, it leaves nothing open. spare: takes what has opened
    and nobody waits for. too_late: the failure of who has waited for `limit_s`.

    opened, failed: how many did so far. `waiting` may be looked at: who takes a connection that becomes free.
    """

    def __init__(
        self,
        open_one: Callable[[], Awaitable[UpstreamConnection]],
        *,
        spare: Callable[[UpstreamConnection], None],
        too_late: Callable[[], UpstreamFailed],
        limit_s: float,
        name: str,
    ) -> None:
        self._open_one = open_one
        self._spare = spare
        self._too_late = too_late
        self._limit_s = limit_s
        self._name = name
        self.opened = 0
        self.failed = 0
        self.waiting: _Line = OrderedDict()
        self._sent_again: _Line = OrderedDict()  # those who take only what has just been opened
        self._opening: dict[asyncio.Task[None], float] = {}  # since when
        self._may_be_opening = AT_FIRST
        self._ahead = 0
        self._is_wary = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """How many are being opened."""
        return len(self._opening)

    async def wait(self, *, since: float, is_sent_again: bool = False, is_first: bool = False) -> UpstreamConnection:
        """A connection on which nothing is under way. It may have died since it was given.

        since: when the wait began, by the loop's clock. is_first: it has been in line before, and got nothing of use.
        Raises UpstreamFailed.
        """
        line = self._sent_again if is_sent_again else self.waiting
        waiter: asyncio.Future[UpstreamConnection] = asyncio.get_running_loop().create_future()
        line[waiter] = since
        if is_first:
            line.move_to_end(waiter, last=False)
        self._open_what_is_wanted()
        try:
            return await waiter
        except asyncio.CancelledError:
            line.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give(waiter.result())  # it came with the cancellation
            self._give_up_surplus()
            raise

    def give(self, connection: UpstreamConnection) -> bool:
        """Whether one that has become free is somebody's now."""
        if not _serve(self.waiting, connection):
            return False
        if len(self._opening) > self._wanted:
            self._ahead += 1  # what was being opened for them may lie ready: more will come
        return True

    def open_ahead(self, count: int) -> None:
        """Have so many on the way beside those for who waits."""
        if not self._is_wary:
            self._ahead = count
            self._open_what_is_wanted()

    def close(self, failure: UpstreamFailed) -> None:
        """Who waits gets `failure`; nothing is opened any more, unless somebody waits again."""
        self._ahead = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._opening):
            task.cancel()
        self._opening.clear()
        for line in (self._sent_again, self.waiting):
            while line:
                _fail(line, failure)

    # Opening.

    @property
    def _wanted(self) -> int:
        return len(self._sent_again) + len(self.waiting) + self._ahead

    def _open_what_is_wanted(self) -> None:
        loop = asyncio.get_running_loop()
        limit = min(self._wanted, self._may_be_opening)
        while len(self._opening) < limit:
            self._opening[loop.create_task(self._open(), name=self._name)] = loop.time()
        if self._timer is None and self._opening:
            lines = (self._sent_again, self.waiting, self._opening)
            first = min(next(iter(each.values())) for each in lines if each)
            self._timer = loop.call_at(first + self._limit_s, self._end_what_is_late)

    def _give_up_surplus(self) -> None:
        while len(self._opening) > self._wanted:
            task, _ = self._opening.popitem()
            task.cancel()

    async def _open(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            connection = await self._open_one()
        except UpstreamFailed as failure:
            self._opening.pop(task, None)
            self.failed += 1
            self._be_wary()
            if not _fail(self._sent_again, failure):
                _fail(self.waiting, failure)
        else:
            self._opening.pop(task, None)
            self.opened += 1
            self._may_be_opening = min(self._may_be_opening + 1, AT_MOST)
            self._give(connection)
        self._open_what_is_wanted()

    def _give(self, connection: UpstreamConnection) -> None:
        if (connection.is_fresh and _serve(self._sent_again, connection)) or _serve(self.waiting, connection):
            self._is_wary = False
        elif self._ahead or not connection.is_fresh:
            self._ahead = max(self._ahead - 1, 0)
            self._spare(connection)
        else:
            connection.close()  # who wanted it has gone meanwhile

    def _be_wary(self) -> None:
        self._may_be_opening = AT_FIRST
        self._ahead = 0
        self._is_wary = True

    def _end_what_is_late(self) -> None:
        self._timer = None
        began_by = asyncio.get_running_loop().time() - self._limit_s + _TICK_S
        for line in (self._sent_again, self.waiting):
            while line and next(iter(line.values())) <= began_by:
                _fail(line, self._too_late())
        late = [task for task, since in self._opening.items() if since <= began_by]
        for task in late:
            del self._opening[task]
            task.cancel()
        if late:
            self.failed += len(late)
            self._be_wary()
        self._give_up_surplus()
        self._open_what_is_wanted()

    def __repr__(self) -> str:
        return f"<{len(self.waiting) + len(self._sent_again)} wait for a connection, {self.under_way} are being opened>"


def _serve(line: _Line, connection: UpstreamConnection) -> bool:
    waiter = _first(line)
    if waiter is None:
        return False
    waiter.set_result(connection)
    return True


def _fail(line: _Line, failure: UpstreamFailed) -> bool:
    waiter = _first(line)
    if waiter is None:
        return False
    waiter.set_exception(failure)
    return True


def _first(line: _Line) -> asyncio.Future[UpstreamConnection] | None:
    """Who has waited longest and not gone; they wait no more."""
    while line:
        waiter, _ = line.popitem(last=False)
        if not waiter.done():
            return waiter
    return None
