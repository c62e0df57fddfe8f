"""Exact counts in the background: only while somebody waits, each once, and never the end of anything."""

import asyncio
from dataclasses import replace

import pytest

from gateway.admission.grant import Grant
from gateway.core.errors import Rejected
from gateway.core.names import BackendName
from gateway.core.offer import CountKind, PromptCount
from gateway.core.outcomes import RejectReason
from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from gateway.core.ticket import Need, Ticket
from gateway.tokens.ratio import SAMPLES
from gateway.web.rooms import Rooms
from support.engine_scripts import script_vllm
from support.fake_upstream import eventually
from support.rooms import held_blocks, open_rooms
from support.scripted_engine import Scripted, ScriptedEngine
from support.tickets import ticket

A = BackendName("a")
CHAT = InferenceRequest(
    "tiny", (Prompt(20),), CapState.ABSENT, None, is_chat=True, to_count=Countable(chat={"messages": b"[]"})
)


async def run(rooms: Rooms, number: int, bound_blocks: int, exact_blocks: int) -> Grant:
    """Admit a request that is weighed by a bound, and by an exact count needs less; as the straight line does."""
    placed = ticket(number, bound_blocks, pool="a", deadline=2000.0)
    rooms.recount.note(placed, CHAT, lambda count: {A: Need(exact_blocks)})

    def queued(placed: Ticket) -> None:
        rooms.recount.somebody_waits(placed)

    return await rooms.controller.admit(placed, on_queued=queued)


async def test_nothing_is_counted_while_nobody_waits(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await run(rooms, 1, 40, 10)
        await run(rooms, 2, 20, 10)
        assert held_blocks(rooms) == 60
        assert engine.asked("/tokenize") == []


async def test_who_runs_shrinks_once_somebody_waits_and_the_waiter_gets_the_room(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await run(rooms, 1, 60, 10)
        async with asyncio.timeout(5):
            await run(rooms, 2, 40, 10)
        # The first was counted; then nobody waited any more, so the second keeps its bound.
        assert held_blocks(rooms) == 50
        assert len(engine.asked("/tokenize")) == 1


async def test_who_waits_is_counted_when_those_who_run_are_exact(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await rooms.controller.admit(ticket(1, 50, pool="a", deadline=2000.0), on_queued=lambda _: None)
        async with asyncio.timeout(5):
            await run(rooms, 2, 40, 10)
        assert held_blocks(rooms) == 60


async def test_each_is_counted_once_whatever_comes_of_it(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers["/tokenize"] = Scripted(500, b"{}")
    async with open_rooms({"a": engine}) as rooms:
        first = await run(rooms, 1, 60, 10)
        waiter = asyncio.create_task(run(rooms, 2, 40, 10))
        await eventually(lambda: len(engine.asked("/tokenize")) == 2)
        await eventually(lambda: not _is_counting())
        assert held_blocks(rooms) == 60
        first.release()
        await waiter
        assert len(engine.asked("/tokenize")) == 2


async def test_who_has_ended_while_it_was_counted_is_left_alone(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    gate = asyncio.Event()
    engine.answers["/tokenize"].gate = gate
    async with open_rooms({"a": engine}) as rooms:
        first = await run(rooms, 1, 60, 10)
        waiter = asyncio.create_task(run(rooms, 2, 40, 30))
        await eventually(lambda: bool(engine.asked("/tokenize")))
        first.release()
        await waiter
        gate.set()
        await eventually(lambda: not _is_counting())
        assert held_blocks(rooms) == 40


async def test_nobody_is_counted_on_after_its_end_and_the_next_has_its_turn(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    gate = asyncio.Event()
    engine.answers["/tokenize"].gate = gate
    async with open_rooms({"a": engine}) as rooms:
        first = await run(rooms, 1, 30, 10)
        await run(rooms, 2, 20, 10)
        waiter = asyncio.create_task(run(rooms, 3, 60, 25))
        await eventually(lambda: len(engine.asked("/tokenize")) == 1)
        rooms.recount.forget(first.ticket.id)
        # The engine still sits on the first question, and the second is asked.
        await eventually(lambda: len(engine.asked("/tokenize")) == 2)
        gate.set()
        first.release()
        await waiter
        await eventually(lambda: not _is_counting())


async def test_a_waiter_that_no_budget_can_hold_by_its_exact_count_is_refused(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        await rooms.controller.admit(ticket(1, 50, pool="a", deadline=2000.0), on_queued=lambda _: None)
        with pytest.raises(Rejected, match=r"65 .*64") as refused:
            async with asyncio.timeout(5):
                await run(rooms, 2, 40, 65)
        assert refused.value.reason is RejectReason.KV_BUDGET


async def test_a_stop_ends_the_counting(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.answers["/tokenize"].gate = asyncio.Event()
    async with open_rooms({"a": engine}) as rooms:
        await run(rooms, 1, 60, 10)
        waiter = asyncio.create_task(run(rooms, 2, 40, 10))
        await eventually(lambda: bool(engine.asked("/tokenize")))
        await rooms.recount.stop()
        assert not _is_counting()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert not rooms.controller.has_waiting_for(A)


def _is_counting() -> bool:
    return any(task.get_name().startswith("recount") for task in asyncio.all_tasks())


async def test_where_nobody_can_count_what_was_learned_of_such_prompts_takes_its_place(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    engine.json("/tokenize", {"detail": "Not Found"}, status=404)
    async with open_rooms({"a": engine}) as rooms:
        for number in range(SAMPLES):
            learned = replace(CHAT, prompts=(Prompt(4000 + number),))
            rooms.ratios.learn("", learned, 1000)
        placed = ticket(1, 60, pool="a", deadline=2000.0)
        seen: list[PromptCount] = []

        def reweigh(count: PromptCount) -> dict[BackendName, Need]:
            seen.append(count)
            return {A: Need(10)}

        rooms.recount.note(placed, replace(CHAT, prompts=(Prompt(4100),)), reweigh)
        await rooms.controller.admit(placed, on_queued=lambda _: None)
        waiter = ticket(2, 40, pool="a", deadline=2000.0)
        async with asyncio.timeout(5):
            await rooms.controller.admit(waiter, on_queued=rooms.recount.somebody_waits)
    (count,) = seen
    assert count.kind is CountKind.BOUND_ONLY
    assert 1000 < (count.largest or 0) < 1100
