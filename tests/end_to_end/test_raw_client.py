"""The raw client against the bare upstream, nothing between: what it calls cut is cut, and how it leaves is how it leaves."""

import asyncio
import json

import pytest

from support.bench import CHAT, chat_body
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeUpstream, answer, chunk, eventually, head, never_answer, send_raw
from support.gates import EVENT_STREAM, chat_event, held_stream
from support.http_client import Broken, Connection, open_post, post

CUTS = {
    "reset": send_raw(head(200, EVENT_STREAM), chunk(chat_event("one ")), then="reset"),
    "closed without the last chunk": send_raw(head(200, EVENT_STREAM), chunk(chat_event("one ")), then="close"),
    "closed within a chunk": send_raw(head(200, EVENT_STREAM), b"40\r\ndata: {", then="close"),
    "closed within the promised length": send_raw(head(200, [(b"content-length", b"9")]) + b"1234", then="close"),
}
WHOLE = {
    "by length": answer(200, b"whole"),
    "in chunks": answer(200, b"whole", framing="chunked"),
    "until the close": answer(200, b"whole", framing="close"),
}


@pytest.mark.parametrize("name", CUTS)
async def test_a_cut_answer_is_not_tidy(name: str) -> None:
    async with FakeUpstream(default=CUTS[name]) as fake:
        assert not (await post(fake.url, "/", {})).is_tidy


@pytest.mark.parametrize("name", WHOLE)
async def test_a_whole_answer_is_tidy(name: str) -> None:
    async with FakeUpstream(default=WHOLE[name]) as fake:
        found = await post(fake.url, "/", {})
        assert (found.is_tidy, found.body) == (True, b"whole")


async def test_a_peer_that_says_nothing_and_goes_is_broken() -> None:
    async with FakeUpstream(default=send_raw(then="close")) as fake, await open_post(fake.url, "/", {}) as client:
        with pytest.raises(Broken):
            await client.head()


async def test_several_answers_come_one_after_the_other_on_one_connection() -> None:
    async with FakeUpstream(default=FakeEngine()) as fake, await Connection.open(fake.url) as client:
        for _ in range(3):
            found = await client.ask("POST", CHAT, json.dumps(chat_body(stream=True)).encode())
            assert found.events[-1] == b"[DONE]"
            assert await client.is_silent()
        assert fake.connections_seen == 1


@pytest.mark.parametrize("how", ["vanish", "hang_up", "half_close"])
@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_client_that_leaves_is_seen_to_go(how: str, is_silent: bool) -> None:
    behaviour = never_answer() if is_silent else held_stream(asyncio.Event())
    async with FakeUpstream(default=behaviour) as fake, await open_post(fake.url, CHAT, chat_body(stream=True)) as client:
        await eventually(lambda: fake.open_requests() == 1)
        getattr(client, how)()
        await eventually(lambda: fake.requests[0].end == "client gone")
