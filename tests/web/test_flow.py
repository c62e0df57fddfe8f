"""Who writes to a client waits while it takes nothing, and no longer."""

import asyncio

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.web.flow import Flow


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@pytest.fixture
async def flow() -> Flow:
    return Flow(Transport())


async def test_nobody_waits_for_a_client_that_takes_everything(flow: Flow) -> None:
    with pytest.raises(StopIteration):
        flow.drain().send(None)


async def test_all_who_wait_go_on_when_the_client_takes_more(flow: Flow) -> None:
    flow.pause_writing()
    waiting = [asyncio.create_task(flow.drain()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    flow.resume_writing()
    await asyncio.gather(*waiting)
    assert not flow.write_paused


async def test_who_waits_again_waits_for_the_next_time(flow: Flow) -> None:
    for _ in range(2):
        flow.pause_writing()
        waiting = asyncio.create_task(flow.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        flow.resume_writing()
        await waiting


async def test_who_gives_up_leaves_nothing_behind(flow: Flow) -> None:
    flow.pause_writing()
    waiting = asyncio.create_task(flow.drain())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    flow.resume_writing()
    await flow.drain()


async def test_reading_is_paused_and_resumed_once_each() -> None:
    transport = Transport()
    flow = Flow(transport)
    for _ in range(2):
        flow.pause_reading()
    for _ in range(2):
        flow.resume_reading()
    assert transport.calls == ["pause", "resume"]


async def test_it_is_told_all_that_uvicorns_own_is_told() -> None:
    theirs = {name for name, value in vars(FlowControl).items() if callable(value)}
    assert theirs == {"__init__", "drain", "pause_reading", "resume_reading", "pause_writing", "resume_writing"}
    assert vars(FlowControl(Transport())).keys() - vars(Flow(Transport())).keys() == {"_is_writable_event"}
