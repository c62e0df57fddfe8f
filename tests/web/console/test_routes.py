"""The console's routes: what a browser is given and what it may do with it, and a stream that ends whoever ends it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gateway.web.console.feed import Feed
from gateway.web.console.frame import encoded_frame, frame_of
from gateway.web.console.routes import add_console
from gateway.web.lifecycle import Lifecycle
from support.asgi_caller import Caller
from support.engine_scripts import script_vllm
from support.fake_upstream import eventually
from support.rooms import clock_of, open_rooms
from support.scripted_engine import ScriptedEngine
from support.tickets import ticket

PAGE = {
    "/console": "text/html; charset=utf-8",
    "/console/console.js": "text/javascript; charset=utf-8",
    "/console/console.css": "text/css; charset=utf-8",
    "/console/icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Console:
    app: FastAPI
    feed: Feed

    async def get(self, path: str, method: str = "GET") -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://gateway") as client:
            return await client.request(method, path)

    def watch(self) -> tuple[Caller, asyncio.Task[None]]:
        """Somebody opens the stream."""
        caller = Caller("/console/events", method="GET")
        return caller, asyncio.create_task(self.app(caller.scope, caller.receive, caller.send))


@asynccontextmanager
async def console(engine: ScriptedEngine, *, most_viewers: int = 16) -> AsyncIterator[Console]:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        lifecycle = Lifecycle(started=1000.0)
        feed = Feed(lambda: encoded_frame(rooms, lifecycle), clock_of(rooms), most_viewers=most_viewers)
        app = FastAPI()
        add_console(app, feed)
        yield Console(app, feed)
        feed.close()


@pytest.mark.parametrize(("path", "media_type"), PAGE.items())
async def test_each_part_of_the_page_is_served_with_its_type_and_may_load_nothing_from_elsewhere(
    engine: ScriptedEngine, path: str, media_type: str
) -> None:
    async with console(engine) as page:
        answer = await page.get(path)
        head = await page.get(path, "HEAD")
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert (head.status_code, head.content) == (200, b"")
    policy = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", PAGE)
async def test_nothing_on_the_page_has_an_address_of_elsewhere(engine: ScriptedEngine, path: str) -> None:
    async with console(engine) as page:
        text = (await page.get(path)).text
    for known in ("http://www.w3.org/2000/svg",):  # a name, not an address
        text = text.replace(known, "")
    assert "http:" not in text
    assert "https:" not in text
    assert "innerHTML" not in text
    assert "style=" not in text


async def test_the_stream_carries_snapshots_until_its_viewer_leaves(engine: ScriptedEngine) -> None:
    async with console(engine) as page:
        caller, serving = page.watch()
        await eventually(lambda: b"data: " in caller.body)
        assert caller.status == 200
        assert caller.header(b"content-type") == b"text/event-stream; charset=utf-8"
        first, *_ = [line for line in caller.body.split(b"\n") if line.startswith(b"data: ")]
        assert json.loads(first[6:])["state"]["backends"][0]["name"] == "a"
        assert len(page.feed) == 1
        caller.leave()
        await asyncio.wait_for(serving, 5)
        assert (len(page.feed), page.feed.is_working) == (0, False)


async def test_one_viewer_too_many_is_told_so_and_disturbs_nobody(engine: ScriptedEngine) -> None:
    async with console(engine, most_viewers=1) as page:
        caller, serving = page.watch()
        await eventually(lambda: len(page.feed) == 1)
        refused = await page.get("/console/events")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_viewers"
        assert len(page.feed) == 1
        caller.leave()
        await asyncio.wait_for(serving, 5)


@pytest.mark.parametrize(("site", "status"), [(b"same-origin", 200), (b"none", 200), (b"cross-site", 403), (b"same-site", 403)])
async def test_a_page_of_elsewhere_takes_nobodys_place(engine: ScriptedEngine, site: bytes, status: int) -> None:
    async with console(engine) as page:
        caller = Caller("/console/events", method="GET", headers=[(b"sec-fetch-site", site)])
        serving = asyncio.create_task(page.app(caller.scope, caller.receive, caller.send))
        await eventually(lambda: caller.status is not None)
        assert caller.status == status
        assert len(page.feed) == (1 if status == 200 else 0)
        caller.leave()
        await asyncio.wait_for(serving, 5)


async def test_the_end_of_the_gateway_is_the_tidy_end_of_the_stream(engine: ScriptedEngine) -> None:
    async with console(engine) as page:
        caller, serving = page.watch()
        await eventually(lambda: b"data: " in caller.body)
        page.feed.close()
        await asyncio.wait_for(serving, 5)
        assert caller.is_finished


# What a snapshot says


async def frame_with(engine: ScriptedEngine, running: int, waiting: int) -> dict[str, Any]:
    """A frame while so many tickets of 8 blocks run, and so many of 64 wait."""
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        grants = [
            await rooms.controller.admit(ticket(number, 8, pool="a", deadline=2000.0), on_queued=lambda _: None)
            for number in range(1, running + 1)
        ]
        behind = [ticket(1000 + number, 64, pool="a", arrived=1000.0, deadline=1060.0) for number in range(waiting)]
        waits = [rooms.controller.admit(each, on_queued=lambda _: None) for each in behind]
        for wait in waits:
            wait.send(None)
        clock_of(rooms).advance(2.5)
        frame = frame_of(rooms, Lifecycle(started=1000.0))
        assert json.loads(encoded_frame(rooms, Lifecycle(started=1000.0))) == json.loads(json.dumps(frame))
        for wait in waits:
            wait.close()
        for grant in grants:
            grant.release()
        return frame


async def test_a_frame_says_what_is_held_by_lane_and_what_each_waits_for(engine: ScriptedEngine) -> None:
    frame = await frame_with(engine, running=3, waiting=2)
    assert frame["held_by_lane"] == {"a": {"standard": 24}}
    first, second = frame["waiting"]
    assert (first["reason"], first["needs_blocks"], first["free_blocks"], first["backend"]) == ("blocks", 64, 40, "a")
    assert (first["position"], second["position"], first["waits_s"], first["left_s"]) == (0, 1, 2.5, 57.5)


async def test_a_frame_stays_small_however_long_the_line_is(engine: ScriptedEngine) -> None:
    frame = await frame_with(engine, running=1, waiting=500)
    assert len(frame["waiting"]) == 50
    assert frame["state"]["lanes"]["standard"]["requests"] == 500
    assert len(json.dumps(frame)) < 64 * 1024
