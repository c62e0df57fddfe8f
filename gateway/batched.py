"""Tasks that go on together: of all that can go on in a turn of the loop each takes a step, and then each the next.

A request's way is long, and what a processor has just done it does again much faster than anything else: the whole way for
one request, and then again for the next, costs a fifth more than its steps one after the other, each for all. So requests
are served in these, and `step` says where one step ends and the next begins.

A batched task waits for a callback of ours (`pause`, `go_on`) without a future. As soon as it awaits anything else it runs in
a task of asyncio, until it pauses again.
"""

import asyncio
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Protocol

# So many go on together. The others go on in the next turn, and whatever else happens goes between.
AT_ONCE: Final = 16


class Cancellable(Protocol):
    """What whoever ends a request needs of the task that serves it, of whichever kind that is."""

    def cancel(self) -> bool: ...

    def uncancel(self) -> int: ...


class _Here(threading.local):
    task: "BatchedTask | None" = None
    """Which one runs on this thread."""


_here: Final = _Here()


class Batches:
    """The batched tasks of one event loop."""

    def __init__(self) -> None:
        self._ready: list[BatchedTask] = []  # go on in the next turn
        self._new: list[BatchedTask] = []  # begin in it, behind those, if so many may still go on
        self._stepped: list[BatchedTask] = []  # go on in this one, when all have come to where they are
        self.are_shared = False  # more than one goes on in this turn

    def begin(
        self,
        coroutine: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[["BatchedTask"], object],
    ) -> "BatchedTask":
        """A task that begins in the next turn. on_done: called with it once it is over, however it ended.

        Where more are ready than may go on at once, those that have begun go before those that begin: bytes wait for them.
        """
        task = BatchedTask(self, coroutine, loop, on_done)
        self._have_turn(loop)
        self._new.append(task)
        return task

    def next_turn(self, task: "BatchedTask", loop: asyncio.AbstractEventLoop) -> None:
        self._have_turn(loop)
        self._ready.append(task)

    def _have_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if not (self._ready or self._new):
            loop.call_soon(self._turn, loop)

    def next_step(self, task: "BatchedTask") -> None:
        self._stepped.append(task)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        together, self._ready = self._ready[:AT_ONCE], self._ready[AT_ONCE:]
        if (room := AT_ONCE - len(together)) and self._new:
            together += self._new[:room]
            self._new = self._new[room:]
        if self._ready or self._new:
            loop.call_soon(self._turn, loop)
        self.are_shared = len(together) > 1
        while together:
            for task in together:
                task.take_step()
            together, self._stepped = self._stepped, []


class BatchedTask:
    """One coroutine on its way. Whoever cancels it sees what a task of asyncio shows."""

    __slots__ = (
        "_awaited",
        "_batches",
        "_coroutine",
        "_is_last",
        "_is_ready",
        "_is_running",
        "_loop",
        "_must_cancel",
        "_on_done",
        "_task",
    )

    def __init__(
        self,
        batches: Batches,
        coroutine: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[["BatchedTask"], object],
    ) -> None:
        self._batches = batches
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine  # None: it is over
        self._loop = loop
        self._on_done = on_done
        self._is_ready = True  # it begins or goes on in the next turn, or with the next step
        self._is_running = False
        self._is_last = False
        self._must_cancel = False
        self._task: asyncio.Task[None] | None = None  # in which it runs while it awaits anything but `pause`
        self._awaited: Any = None  # what that task is to await first

    def go_on(self) -> None:
        """What it paused for may be there: it goes on in the next turn. To say so twice makes no difference."""
        if not self._is_ready and self._task is None:
            self._is_ready = True
            self._batches.next_turn(self, self._loop)

    @types.coroutine
    def pause(self) -> Generator[Any, None, None]:
        """Wait for `go_on`. It may come for another reason than the one that is waited for."""
        yield self

    @types.coroutine
    def step(self) -> Generator[Any, None, None]:
        """Wait until all that go on in this turn have come to their next step."""
        if self._batches.are_shared and self._task is None:
            self._is_ready = True
            self._batches.next_step(self)
            yield self

    def last_step(self) -> Awaitable[None]:
        """As `step`, before the last one: from here on there is nothing left to cancel."""
        self._is_last = True
        self._must_cancel = False
        return self.step()

    @types.coroutine
    def in_task(self) -> Generator[Any, None, None]:
        """Run in a task of asyncio until the next pause."""
        if self._task is None:
            yield

    def take_step(self) -> None:
        """Its turn has come: run to the next wait."""
        self._is_ready = False
        if self._coroutine is None or self._task is not None:
            return
        error, self._must_cancel = asyncio.CancelledError() if self._must_cancel else None, False
        try:
            awaited = self._run(error)
        except (StopIteration, asyncio.CancelledError):
            return
        except Exception as unexpected:
            message = f"{self!r} ended with an error that nobody expected"
            self._loop.call_exception_handler({"message": message, "exception": unexpected})
            return
        if awaited is not self:
            self._awaited = awaited
            self._task = self._loop.create_task(self)  # type: ignore[arg-type]
        self._cancel_if_asked()

    def _run(self, error: BaseException | None) -> Any:
        """Returns what is awaited next, this task itself for a pause. Raises what a coroutine raises at its end."""
        coroutine = self._coroutine
        assert coroutine is not None
        before, _here.task = _here.task, self
        self._is_running = True
        try:
            return coroutine.send(None) if error is None else coroutine.throw(error)
        except BaseException:
            self._coroutine = None
            self._on_done(self)
            raise
        finally:
            self._is_running = False
            _here.task = before

    # What asyncio calls of the task in which it runs meanwhile, as of any coroutine.

    def send(self, _: None) -> Any:
        awaited, self._awaited = self._awaited, self
        return awaited if awaited is not self else self._run_in_task(None)

    def throw(self, error: BaseException) -> Any:
        self._awaited = self
        return self._run_in_task(error)

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()

    def _run_in_task(self, error: BaseException | None) -> Any:
        awaited = self._run(error)
        if awaited is self:
            self._task = None
        self._cancel_if_asked()
        if awaited is self:
            raise StopIteration
        return awaited

    def _cancel_if_asked(self) -> None:
        """It was cancelled while it ran, and waits now."""
        if self._must_cancel:
            self._must_cancel = False
            self.cancel()

    # As others see it.

    def cancel(self, msg: object = None) -> bool:
        """As asyncio.Task.cancel: returns whether it was still on its way."""
        if self._coroutine is None or self._is_last:
            return False
        if self._is_running:
            self._must_cancel = True  # at its next wait
        elif self._task is not None:
            return self._task.cancel(msg)
        else:
            self._must_cancel = True
            self.go_on()
        return True

    def uncancel(self) -> int:
        """As asyncio.Task.uncancel. Without a task of asyncio nothing is left of a cancellation once it was raised."""
        return 0 if self._task is None else self._task.uncancel()

    def __repr__(self) -> str:
        if self._coroutine is None:
            state = "over"
        elif self._task is not None:
            state = f"in {self._task!r}"
        else:
            state = "running" if self._is_running else "about to go on" if self._is_ready else "paused"
        return f"<batched task: {state}>"


Coroutine.register(BatchedTask)


def batched() -> BatchedTask | None:
    """The batched task that runs now, and may pause; None in any other."""
    return _here.task


def step() -> Awaitable[None]:
    """To await where one step of a request ends, and the next begins."""
    task = _here.task
    return _nothing() if task is None else task.step()


def last_step() -> Awaitable[None]:
    """As `step`, before the last one: who waits here is cancelled no more."""
    task = _here.task
    return _nothing() if task is None else task.last_step()


def in_task() -> Awaitable[None]:
    """To await where the caller must run in a task of asyncio, as `asyncio.timeout` asks of it. It does until it pauses."""
    task = _here.task
    return _nothing() if task is None else task.in_task()


async def _nothing() -> None: ...
