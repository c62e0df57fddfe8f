"""Large bodies are worked on beside the event loop."""

import asyncio
import threading

import pytest

from gateway.web.big_bodies import AT_ONCE, LIMIT_BYTES, BigBodies
from support.fake_upstream import eventually


async def test_a_small_body_is_worked_on_at_once_and_a_large_one_in_a_thread() -> None:
    bodies, here = BigBodies(), threading.current_thread()
    assert await bodies.read(lambda body: threading.current_thread(), b"x" * LIMIT_BYTES) is here
    assert await bodies.read(lambda body: threading.current_thread(), b"x" * (LIMIT_BYTES + 1)) is not here
    bodies.close()


async def test_what_the_work_raises_is_raised() -> None:
    bodies = BigBodies()

    def refuse(body: bytes, number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match="7"):
        await bodies.read(refuse, b"x" * (LIMIT_BYTES + 1), 7)
    bodies.close()


async def test_never_more_than_a_few_run_at_once_even_if_their_callers_leave() -> None:
    bodies, gate, running, most = BigBodies(), threading.Event(), [0], [0]
    lock = threading.Lock()

    def work(body: bytes) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.wait(5)
        with lock:
            running[0] -= 1
        return len(body)

    big = b"x" * (LIMIT_BYTES + 1)
    leaving = [asyncio.create_task(bodies.read(work, big)) for _ in range(3 * AT_ONCE)]
    await eventually(lambda: running[0] == AT_ONCE)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    staying = asyncio.create_task(bodies.read(work, big))
    await asyncio.sleep(0)
    gate.set()
    assert await staying == len(big)
    assert most[0] == AT_ONCE
    bodies.close()
