"""The ticket of a weighed request: what of it is worked out only where there is a choice."""

from gateway.core.request import CapState, InferenceRequest, Prompt
from gateway.core.ticket import Ticket
from gateway.web.journal import Journal
from gateway.web.rooms import Rooms
from gateway.web.tickets import ticket_of
from gateway.web.weigh import find_pool, weigh
from support.engine_scripts import script_vllm
from support.rooms import open_rooms
from support.scripted_engine import ScriptedEngine


async def ticket_for(rooms: Rooms, start: str) -> Ticket:
    journal = Journal("openai_chat", rooms.tally, rooms.metrics, rooms.recent, 0.0)
    request = InferenceRequest("tiny", (Prompt(1, messages=1),), CapState.SET, 100, is_chat=True, start=start)
    journal.request = request
    journal.weighed = await weigh(rooms, await find_pool(rooms, "tiny"), request)
    return ticket_of(journal, rooms.choices, {}, first_arrived=0.0, patience_s=None)


async def test_what_placement_hashes_is_the_start_of_the_text_where_there_is_more_than_one_backend(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    script_vllm(engine)
    script_vllm(other)
    async with open_rooms({"a": engine}) as rooms:
        assert (await ticket_for(rooms, "café")).affinity == b""
    async with open_rooms({"a": engine, "b": other}) as rooms:
        assert (await ticket_for(rooms, "café")).affinity == "café".encode()
        assert (await ticket_for(rooms, "é" * 1024)).affinity == ("é" * 512).encode()
