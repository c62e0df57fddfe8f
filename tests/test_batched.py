"""Tasks that go on together, step by step, and become tasks of asyncio where they wait for anything of asyncio's."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from gateway.batched import AT_ONCE, BatchedTask, Batches, batched, in_task, last_step, step


class Stage:
    """Tasks of one loop, and what they said in which order."""

    def __init__(self) -> None:
        self.batches = Batches()
        self.said: list[str] = []
        self.over: list[BatchedTask] = []

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> BatchedTask:
        return self.batches.begin(coroutine, asyncio.get_running_loop(), self.over.append)

    async def says(self, name: str, *waits: Callable[[], Awaitable[object]]) -> None:
        """Say one's name and a number before each wait, and at the end."""
        for number, wait in enumerate(waits):
            self.said.append(f"{name}{number}")
            await wait()
        self.said.append(f"{name}{len(waits)}")


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def pause() -> None:
    task = batched()
    assert task is not None
    await task.pause()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_task_begins_in_the_next_turn_and_is_over_at_its_end(stage: Stage) -> None:
    task = stage.begin(stage.says("a"))
    assert stage.said == []
    await turns(1)
    assert stage.said == ["a0"]
    assert stage.over == [task]
    assert not task.cancel()


async def test_all_come_to_a_step_before_any_goes_on_and_nothing_goes_between(stage: Stage) -> None:
    for name in "abc":
        stage.begin(stage.says(name, step, step))
    asyncio.get_running_loop().call_soon(stage.said.append, "next in the loop")
    await turns(1)
    assert stage.said == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2", "next in the loop"]


async def test_who_is_alone_waits_at_no_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[BatchedTask] = []
    monkeypatch.setattr(stage.batches, "next_step", waited.append)
    stage.begin(stage.says("a", step, last_step))
    await turns(1)
    assert stage.said == ["a0", "a1", "a2"]
    assert waited == []


async def test_so_many_go_on_in_a_turn_and_the_others_in_the_next(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    for number in range(AT_ONCE + 1):
        stage.begin(stage.says(f"{number}.", step))
    loop.call_soon(stage.said.append, "between")
    await turns(2)
    at = stage.said.index("between")
    assert at == 2 * AT_ONCE
    assert stage.said[at + 1 :] == [f"{AT_ONCE}.0", f"{AT_ONCE}.1"]


async def test_those_that_have_begun_go_before_those_that_begin(stage: Stage) -> None:
    """A crowd that comes does not keep first tokens waiting."""
    paused = [stage.begin(stage.says(f"p{number}.", pause)) for number in range(3)]
    await turns()
    stage.said.clear()
    for number in range(2 * AT_ONCE):
        stage.begin(stage.says(f"{number}."))
    for task in paused:
        task.go_on()
    await turns(1)
    assert stage.said == ["p0.1", "p1.1", "p2.1", *(f"{number}.0" for number in range(AT_ONCE - 3))]
    await turns()
    assert len(stage.said) == 3 + 2 * AT_ONCE


async def test_who_is_cancelled_before_it_begins_never_does(stage: Stage) -> None:
    task = stage.begin(stage.says("a"))
    assert task.cancel()
    await turns()
    assert stage.said == []
    assert stage.over == [task]


async def test_who_pauses_goes_on_when_told_and_once_however_often_it_was_told(stage: Stage) -> None:
    task = stage.begin(stage.says("a", pause, pause))
    await turns()
    assert stage.said == ["a0"]
    task.go_on()
    task.go_on()
    await turns()
    assert stage.said == ["a0", "a1"]
    task.go_on()
    await turns()
    assert stage.over == [task]
    task.go_on()
    await turns()
    assert stage.said == ["a0", "a1", "a2"]


async def test_what_is_told_before_the_pause_is_not_lost(stage: Stage) -> None:
    async def tells_itself() -> None:
        task = batched()
        assert task is not None
        task.go_on()
        await task.pause()
        stage.said.append("went on")

    stage.begin(tells_itself())
    await turns()
    assert stage.said == ["went on"]


async def test_who_awaits_a_future_becomes_a_task_until_it_pauses(stage: Stage) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    seen: list[asyncio.Task[Any] | None] = []

    async def serves() -> None:
        seen.append(_current())
        stage.said.append(await future)
        seen.append(_current())
        await pause()
        seen.append(_current())

    task = stage.begin(serves())
    await turns()
    assert stage.said == []
    task.go_on()  # nothing that it waits for: a future says itself that it is there
    await turns()
    assert stage.said == []
    future.set_result("the result")
    await turns()
    assert stage.said == ["the result"]
    assert stage.over == []
    task.go_on()
    await turns()
    assert stage.over == [task]
    assert [each is not None for each in seen] == [False, True, False]


def _current() -> asyncio.Task[Any] | None:
    return asyncio.current_task()


async def test_a_future_that_failed_is_raised_where_it_is_awaited(stage: Stage) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serves() -> None:
        try:
            await future
        except LookupError as error:
            stage.said.append(str(error))
        await asyncio.sleep(0)
        stage.said.append("and went on")

    task = stage.begin(serves())
    await turns()
    future.set_exception(LookupError("lost"))
    await turns(5)
    assert stage.said == ["lost", "and went on"]
    assert stage.over == [task]


async def test_a_timeout_works_in_a_task(stage: Stage) -> None:
    async def serves() -> None:
        await in_task()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            stage.said.append("too late")
        await in_task()  # it is in one
        await pause()
        stage.said.append("went on")

    task = stage.begin(serves())
    await asyncio.wait_for(_until(lambda: stage.said == ["too late"]), 5)
    await turns()
    task.go_on()
    await turns()
    assert stage.said == ["too late", "went on"]


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("wait", [pause, never, asyncio.sleep], ids=["paused", "in a task", "about to begin one"])
async def test_a_cancelled_task_sees_it_where_it_waits(stage: Stage, wait: Any) -> None:
    async def serves() -> None:
        try:
            await (wait(3600) if wait is asyncio.sleep else wait())
        except asyncio.CancelledError:
            stage.said.append("cancelled")
            raise

    task = stage.begin(serves())
    await turns(1 if wait is asyncio.sleep else 3)
    assert task.cancel()
    assert stage.said == []  # in the next turn, as ever
    await turns()
    assert stage.said == ["cancelled"]
    assert stage.over == [task]
    assert not task.cancel()


async def test_who_is_cancelled_before_it_begins_never_begins(stage: Stage) -> None:
    task = stage.begin(stage.says("a"))
    assert task.cancel()
    await turns()
    assert stage.said == []
    assert stage.over == [task]


@pytest.mark.parametrize("wait", [pause, never])
@pytest.mark.parametrize("was_in_task", [False, True])
async def test_who_cancels_itself_sees_it_at_its_next_wait(stage: Stage, wait: Any, *, was_in_task: bool) -> None:
    async def serves() -> None:
        if was_in_task:
            await asyncio.sleep(0)
        task = batched()
        assert task is not None
        task.cancel()
        stage.said.append("goes on")
        try:
            await wait()
        except asyncio.CancelledError:
            stage.said.append("cancelled")
        task.uncancel()
        await asyncio.sleep(0)
        stage.said.append("and not again")

    task = stage.begin(serves())
    await turns(9)
    assert stage.said == ["goes on", "cancelled", "and not again"]
    assert stage.over == [task]


async def test_who_has_come_to_its_last_step_is_cancelled_no_more(stage: Stage) -> None:
    async def ends(name: str) -> None:
        await last_step()
        stage.said.append(name)

    tasks = [stage.begin(ends("a")), stage.begin(ends("b")), stage.begin(stage.says("c", lambda: cancel(tasks)))]

    async def cancel(which: list[BatchedTask]) -> None:
        assert [task.cancel() for task in which[:2]] == [False, False]

    await turns()
    assert stage.said == ["c0", "c1", "a", "b"]
    assert stage.over == [tasks[2], *tasks[:2]]


async def test_an_unexpected_error_is_told_to_the_loop_and_stops_no_other(stage: Stage) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def fails() -> None:
        await step()
        raise LookupError("nobody expected this")

    failed = stage.begin(fails())
    other = stage.begin(stage.says("b", step))
    await turns()
    assert [str(context["exception"]) for context in told] == ["nobody expected this"]
    assert stage.said == ["b0", "b1"]
    assert stage.over == [failed, other]
    assert batched() is None


async def test_one_that_is_dropped_while_it_pauses_is_closed(stage: Stage) -> None:
    async def serves() -> None:
        try:
            await pause()
        finally:
            await last_step()
            stage.said.append("closed")

    stage.begin(serves())
    await turns()
    gc.collect()
    assert stage.said == ["closed"]  # nobody could ever have told it to go on


async def test_plain_tasks_neither_wait_at_steps_nor_need_a_task(stage: Stage) -> None:
    assert batched() is None
    await asyncio.wait_for(stage.says("a", step, last_step, in_task), 5)
    assert stage.said == ["a0", "a1", "a2", "a3"]


async def test_it_says_what_it_does(stage: Stage) -> None:
    async def serves() -> None:
        stage.said.append(repr(batched()))
        await pause()
        await asyncio.sleep(0.001)

    task = stage.begin(serves())
    assert repr(task) == "<batched task: about to go on>"
    await turns()
    assert stage.said == ["<batched task: running>"]
    assert repr(task) == "<batched task: paused>"
    task.go_on()
    await turns()
    assert repr(task).startswith("<batched task: in <Task pending")
    await asyncio.wait_for(_until(lambda: bool(stage.over)), 5)
    assert repr(task) == "<batched task: over>"
