"""What operators and balancers ask: readiness, state and metrics in the shapes that are a contract, and the reserve."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import httpx
import pytest

from gateway.core.names import BackendName
from gateway.core.outcomes import Outcome
from gateway.metrics import GaugeName
from gateway.web.app import data_app
from gateway.web.lifecycle import Lifecycle
from gateway.web.operations import admin_app, gauge_rows, state_of
from gateway.web.rooms import Rooms
from support.engine_scripts import script_plain_server, script_vllm
from support.rooms import clock_of, open_rooms
from support.samples import sample
from support.scripted_engine import ScriptedEngine
from support.tickets import ticket

# The contract: what is here may be relied upon; there may be more.
STATE = {
    "version": str,
    "uptime_s": float,
    "mode": str,
    "draining": bool,
    "assumptions": list,
    "backends": list,
    "queue": dict,
    "lanes": dict,
    "in_flight": int,
    "reading": int,
    "received": int,
    "outcomes": dict,
}
BACKEND = {
    "name": str,
    "url": str,
    "engine": str,
    "engine_version": str,
    "models": list,
    "healthy": bool,
    "block_tokens": int,
    "max_context": int,
    "budget_blocks": int,
    "reserve_blocks": int,
    "held_blocks": int,
    "worst_case_blocks": int,
    "foreign_blocks": int,
    "free_blocks": int,
    "seats": type(None),
    "budget_source": str,
    "budgets": dict,
    "weighing": str,
    "commitment": str,
    "engine_used_blocks": int,
    "in_flight": int,
}


def assert_shape(found: dict[str, Any], shape: dict[str, type]) -> None:
    for name, kind in shape.items():
        assert isinstance(found[name], kind), f"{name} is {found[name]!r}"


@asynccontextmanager
async def asking(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        yield client


def admin(rooms: Rooms, *, token: str | None = None, is_open: bool = False, lifecycle: Lifecycle | None = None) -> Any:
    return admin_app(rooms, lifecycle or Lifecycle(started=1000.0), token=token, is_open=is_open)


def state(rooms: Rooms) -> dict[str, Any]:
    return state_of(rooms, Lifecycle(started=1000.0))


async def test_a_scrape_of_two_hundred_models_lets_others_go_between(engine: ScriptedEngine) -> None:
    """Whoever streams then waits for a piece of it at most."""
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        for number in range(200):
            rooms.metrics.requests_ended(f"model-{number}", Outcome.COMPLETED, "anonymous", [1.0])
            rooms.metrics.token_gaps(f"model-{number}", [0.01])
        pieces, turns = 0, [0]
        real = rooms.metrics.pieces

        def counted() -> Iterator[bytes]:
            nonlocal pieces
            for piece in real():
                pieces += 1
                turns.append(0)
                yield piece

        async def stream() -> None:
            while True:
                turns[-1] += 1
                await asyncio.sleep(0)

        async with asking(admin(rooms)) as client:
            with mock.patch.object(rooms.metrics, "pieces", counted):
                streaming = asyncio.create_task(stream())
                text = (await client.get("/metrics")).text
                streaming.cancel()
        assert 'kvgate_request_seconds_count{model="model-199"} 1.0' in text
        assert pieces > 20
        assert min(turns[1:]) >= 1, "after each piece the loop has gone on"


async def test_the_state_has_the_shape_that_others_rely_on(engine: ScriptedEngine) -> None:
    script_vllm(engine, usage=0.25)
    async with open_rooms({"a": engine}) as rooms, asking(admin(rooms)) as client:
        answer = await client.get("/kvgate/state")
    assert answer.status_code == 200
    assert_shape(answer.json(), STATE)
    (backend,) = answer.json()["backends"]
    assert_shape(backend, BACKEND)
    assert (backend["name"], backend["engine"], backend["models"]) == ("a", "vllm", ["tiny"])
    assert (backend["budget_blocks"], backend["engine_used_blocks"], backend["budgets"]) == (64, 16, {"engine": 64})
    assert answer.json()["queue"] == {"requests": 0, "blocks": 0, "oldest_s": None}


async def test_a_backend_that_tells_no_capacity_has_the_same_shape_with_nothing_in_it(engine: ScriptedEngine) -> None:
    script_plain_server(engine)
    async with open_rooms({"a": engine}) as rooms:
        (backend,) = state(rooms)["backends"]
    assert set(BACKEND) <= set(backend)
    assert backend["budget_blocks"] is None
    assert backend["free_blocks"] == 0
    assert "KVGATE_KV_BLOCKS" in backend["state"]


async def test_who_runs_and_who_waits_is_shown_at_the_same_instant(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        runs = await rooms.controller.admit(ticket(1, 40, pool="a", deadline=2000.0), on_queued=lambda _: None)
        waits = rooms.controller.admit(ticket(2, 30, pool="a", arrived=1000.0, deadline=2000.0), on_queued=lambda _: None)
        waits.send(None)
        clock_of(rooms).advance(2.5)
        shown = state(rooms)
        (backend,) = shown["backends"]
        assert (backend["held_blocks"], backend["free_blocks"], backend["in_flight"]) == (40, 24, 1)
        assert shown["lanes"] == {
            "standard": {
                "requests": 1,
                "blocks": 30,
                "oldest_s": 2.5,
                "weight": 1.0,
                "max_requests": 1024,
                "held_blocks": 40,
                "cap_blocks": None,
                "tenants": {"anonymous": {"requests": 1, "blocks": 30, "held_blocks": 40}},
            }
        }
        assert (shown["queue"]["blocks"], shown["queue"]["oldest_s"], shown["uptime_s"]) == (30, 2.5, 2.5)
        rows = {(row.gauge, row.labels): row.value for row in gauge_rows(rooms)}
        assert rows[GaugeName.HELD_BLOCKS, ("a",)] == 40
        assert rows[GaugeName.QUEUE_BLOCKS, ("a", "standard")] == 30
        assert rows[GaugeName.QUEUE_REQUESTS, ("a", "standard")] == 1
        assert rows[GaugeName.BACKLOG_SECONDS, ("a",)] == 2.5, "the age of the oldest, while the drain is unknown"
        runs.release()
        waits.close()


async def test_it_is_counted_whether_requests_found_a_connection_ready(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        pool = rooms.upstreams[BackendName("a")].pool
        exchange = await pool.send(b"GET", b"/version", [(b"host", b"a")], b"")
        await exchange.head()
        exchange.abort(None)
        pool.requests += 2  # on a connection that lay ready; this engine keeps none
        rows = {(row.gauge, row.labels[1]): row.value for row in gauge_rows(rooms) if len(row.labels) == 2}
        assert (rows[GaugeName.UPSTREAM_REQUESTS, "fresh"], rows[GaugeName.UPSTREAM_REQUESTS, "ready"]) == (1, 2)
        assert (rows[GaugeName.UPSTREAM_CONNECTS, "opened"], rows[GaugeName.UPSTREAM_CONNECTS, "failed"]) == (1, 0)
        assert rows[GaugeName.UPSTREAM_CONNECTIONS, "opening"] == 0


async def test_only_outcomes_that_occurred_are_listed(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        rooms.tally.arrive().end(Outcome.CAPPED)
        assert state(rooms)["outcomes"] == {"capped": 1}
        assert state(rooms)["received"] == 1


async def test_ready_says_which_budget_it_waits_for_and_never_takes_a_yes_back_for_an_outage(engine: ScriptedEngine) -> None:
    async with open_rooms({"a": engine}) as rooms:
        lifecycle = Lifecycle(started=1000.0)
        async with asking(data_app(rooms, lifecycle)) as client:
            waiting = await client.get("/ready")
            assert waiting.status_code == 503
            assert "KVGATE_KV_BLOCKS" in waiting.json()["backends"]["a"]
            script_vllm(engine)
            clock_of(rooms).advance(60.0)
            await rooms.roster.look()
            assert (await client.get("/ready")).status_code == 200
            await engine.go_away()
            for _ in range(3):
                await rooms.roster.look()
            assert (await client.get("/ready")).status_code == 200
            lifecycle.is_stopping = True
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/health")).status_code == 200
            assert (await client.head("/health")).status_code == 200


async def test_the_exposition_shows_what_the_state_shows(engine: ScriptedEngine) -> None:
    script_vllm(engine, usage=0.25, preemptions=3)
    async with open_rooms({"a": engine}) as rooms, asking(admin(rooms)) as client:
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        for name, value in {
            "kvgate_budget_blocks": 64,
            "kvgate_reserve_blocks": 0,
            "kvgate_held_blocks": 0,
            "kvgate_worst_case_blocks": 0,
            "kvgate_foreign_blocks": 0,
            "kvgate_engine_used_blocks": 16,
            "kvgate_ledger_gap_blocks": -16,
            "kvgate_in_flight": 0,
            "kvgate_engine_preemptions_total": 3,
            "kvgate_backend_up": 1,
        }.items():
            assert sample(rooms.metrics, name, backend="a") == value, name
        assert sample(rooms.metrics, "kvgate_commitment", backend="a", mode="strict") == 1


async def test_the_gap_to_the_engine_is_told_with_its_cause_in_metrics_and_state(engine: ScriptedEngine) -> None:
    script_vllm(engine, usage=0.5, running=1)
    async with open_rooms({"a": engine}) as rooms:
        causes = {row.labels[1]: row.value for row in gauge_rows(rooms) if row.gauge is GaugeName.LEDGER_GAP_CAUSE_BLOCKS}
        assert causes == {"estimate": 0, "orphaned": -32, "foreign": 0}, "it runs one sequence, and we hold no seat"
        assert state(rooms)["backends"][0]["ledger_gap"] == causes
        runs = await rooms.controller.admit(ticket(1, 40, pool="a", deadline=2000.0), on_queued=lambda _: None)
        (gap,) = [row.value for row in gauge_rows(rooms) if row.gauge is GaugeName.LEDGER_GAP_BLOCKS]
        assert gap == 8
        runs.release()


async def test_an_autoscaler_finds_a_backlog_of_nothing_before_anybody_came(
    engine: ScriptedEngine, other: ScriptedEngine
) -> None:
    script_vllm(engine)
    script_vllm(other, models=("large",))
    async with open_rooms({"a": engine, "b": other}) as rooms:
        backlogs = {row.labels: row.value for row in gauge_rows(rooms) if row.gauge is GaugeName.BACKLOG_SECONDS}
        assert backlogs == {("a",): 0.0, ("b",): 0.0}
        runs = await rooms.controller.admit(ticket(1, 40, pool="a", deadline=2000.0), on_queued=lambda _: None)
        rows = [row.labels for row in gauge_rows(rooms) if row.gauge is GaugeName.BACKLOG_SECONDS]
        assert sorted(rows) == [("a",), ("b",)], "each pool once, whether it had a line or not"
        runs.release()


async def test_every_phase_has_a_figure_also_when_nobody_is_in_it(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms:
        phases = {row.labels[0]: row.value for row in gauge_rows(rooms) if row.gauge is GaugeName.OPEN_REQUESTS}
    assert phases == {"upload": 0, "queued": 0, "waiting": 0, "streaming": 0}


# The reserve


async def test_the_reserve_is_changed_for_one_backend_or_for_all(engine: ScriptedEngine, other: ScriptedEngine) -> None:
    for each in (engine, other):
        script_vllm(each)
    async with open_rooms({"a": engine, "b": other}) as rooms, asking(admin(rooms)) as client:
        answer = await client.put("/kvgate/reserve", json={"reserve": "10%", "backend": "b"})
        assert answer.status_code == 200
        assert [backend["reserve_blocks"] for backend in answer.json()["backends"]] == [0, 7]
        answer = await client.put("/kvgate/reserve", json={"reserve": "5"})
        assert [backend["reserve_blocks"] for backend in answer.json()["backends"]] == [5, 5]
        assert rooms.controller.snapshot().backends[rooms.roster.views()[0].name].free_blocks == 59


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"reserve": "10%", "backend": "nobody"}, 404),
        ({"reserve": "much"}, 400),
        ({"reserve": "64"}, 400),
        ({"reserve": "100%"}, 400),
    ],
)
async def test_a_reserve_that_cannot_be_is_refused_and_changes_nothing(
    engine: ScriptedEngine, change: dict[str, str], status: int
) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms, asking(admin(rooms)) as client:
        answer = await client.put("/kvgate/reserve", json=change)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        assert state(rooms)["backends"][0]["reserve_blocks"] == 0


@pytest.mark.parametrize("change", [{}, {"reserve": 5}, {"reserve": "5", "more": 1}, {"reserve": "5", "backend": 7}, []])
async def test_a_change_of_another_shape_is_the_callers_error(engine: ScriptedEngine, change: object) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms, asking(admin(rooms)) as client:
        answer = await client.put("/kvgate/reserve", json=change)
        assert answer.status_code in (400, 422)
        assert state(rooms)["backends"][0]["reserve_blocks"] == 0


@pytest.mark.parametrize(
    ("token", "is_open", "sent", "status"),
    [
        (None, False, None, 200),
        (None, True, None, 403),
        (None, True, "Bearer guess", 403),
        ("t0ken", True, None, 401),
        ("t0ken", True, "Bearer guess", 401),
        ("t0ken", True, "t0ken", 401),
        ("t0ken", True, "bearer t0ken", 200),
        ("t0ken", False, None, 401),
        ("t0ken", False, "Bearer t0ken", 200),
    ],
)
async def test_writes_need_the_token_and_off_loopback_there_is_none_without(
    engine: ScriptedEngine, token: str | None, is_open: bool, sent: str | None, status: int
) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms, asking(admin(rooms, token=token, is_open=is_open)) as client:
        headers = {"authorization": sent} if sent is not None else {}
        answer = await client.put("/kvgate/reserve", json={"reserve": "5"}, headers=headers)
        assert answer.status_code == status
        assert state(rooms)["backends"][0]["reserve_blocks"] == (5 if status == 200 else 0)
        assert (await client.get("/kvgate/state")).status_code == 200, "reads stay open"


async def test_a_token_that_is_no_ascii_is_a_wrong_one(engine: ScriptedEngine) -> None:
    script_vllm(engine)
    async with open_rooms({"a": engine}) as rooms, asking(admin(rooms, token="t0ken", is_open=True)) as client:
        headers = {b"authorization": "Bearer tökén".encode()}
        assert (await client.put("/kvgate/reserve", json={"reserve": "5"}, headers=headers)).status_code == 401
