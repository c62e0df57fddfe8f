"""What operators and balancers ask: health, readiness, state, metrics, and the reserve. Saturation is never unreadiness."""

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, StrictStr

from gateway import __version__
from gateway.backends.view import BackendView, Pool
from gateway.core.commitment.evidence import ENOUGH
from gateway.core.gap import GapCause, ledger_gap
from gateway.core.names import BackendName, PoolName
from gateway.core.reserve import Reserve
from gateway.core.snapshots import BackendSnapshot, BookSnapshot, LineSnapshot
from gateway.metrics import EXPOSITION_TYPE, GaugeName, GaugeRow
from gateway.web.control_errors import add_errors, error_response
from gateway.web.journal import Phase
from gateway.web.lifecycle import Lifecycle
from gateway.web.rooms import Rooms

_READ = ["GET", "HEAD"]


class ReserveChange(BaseModel):
    """`PUT /kvgate/reserve`: the new reserve, for one backend or, without `backend`, for all."""

    model_config = ConfigDict(extra="forbid")

    reserve: StrictStr
    backend: StrictStr | None = None


def add_health(app: FastAPI, rooms: Rooms, lifecycle: Lifecycle) -> None:
    """`/health`: the process answers. `/ready`: a budget was known once, and it is not shutting down."""

    @app.api_route("/health", methods=_READ, tags=["operations"], summary="The process is alive")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/ready", methods=_READ, tags=["operations"], summary="Requests may be sent here")
    async def ready() -> JSONResponse:
        if lifecycle.is_stopping:
            return JSONResponse({"status": "draining"}, status_code=503)
        if not rooms.roster.ready:
            waiting = {view.name: view.state_text for view in rooms.roster.views()}
            return JSONResponse({"status": "no budget known yet", "backends": waiting}, status_code=503)
        return JSONResponse({"status": "ready"})


def admin_app(rooms: Rooms, lifecycle: Lifecycle, *, token: str | None, is_open: bool) -> FastAPI:
    """The control plane. is_open: it listens beyond loopback, so writes need the token; without one nobody may write."""
    app = FastAPI(title="kvgate control plane", version=__version__, redirect_slashes=False)
    add_health(app, rooms, lifecycle)
    add_errors(app, not_found="{path} is not served on this port")
    rooms.metrics.read_gauges_from(lambda: gauge_rows(rooms))

    @app.api_route("/metrics", methods=_READ, tags=["operations"], summary="Prometheus metrics")
    async def metrics() -> Response:
        pieces: list[bytes] = []
        for piece in rooms.metrics.pieces():
            pieces.append(piece)
            await asyncio.sleep(0)  # a scrape of many series takes its time: whoever streams goes between
        return Response(b"".join(pieces), media_type=EXPOSITION_TYPE)

    @app.api_route("/kvgate/state", methods=_READ, tags=["operations"], summary="Everything at one instant")
    async def state() -> dict[str, Any]:
        return state_of(rooms, lifecycle)

    @app.put("/kvgate/reserve", tags=["operations"], summary="Change the reserve; what runs goes on")
    async def change_reserve(change: ReserveChange, request: Request) -> Response:
        if token is None and is_open:
            return error_response(403, "writes_closed", "writes are closed here: set KVGATE_ADMIN_TOKEN to open them")
        if token is not None and not _is_bearer(request, token):
            return error_response(401, "invalid_token", "this needs `Authorization: Bearer <KVGATE_ADMIN_TOKEN>`")
        try:
            rooms.roster.set_reserve(
                Reserve.parse(change.reserve), BackendName(change.backend) if change.backend is not None else None
            )
        except KeyError:
            return error_response(404, "unknown_backend", f"there is no backend {change.backend!r}")
        except ValueError as error:
            return error_response(400, "invalid_reserve", str(error))
        return JSONResponse({"backends": state_of(rooms, lifecycle)["backends"]})

    return app


def _is_bearer(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(given.strip().encode(), token.encode())


def state_of(rooms: Rooms, lifecycle: Lifecycle) -> dict[str, Any]:
    """`GET /kvgate/state`: one snapshot of the book, the roster and the tally, taken without a wait in between."""
    now = rooms.clock.now()
    book, counts = rooms.controller.snapshot(), rooms.tally.counts()
    backends: list[dict[str, Any]] = []
    assumptions: list[str] = []
    warnings: list[str] = []
    for view in rooms.roster.views():
        held = book.backends.get(view.name)
        capacity = view.capacity
        backends.append(
            {
                "name": view.name,
                "url": view.url,
                "engine": view.engine,
                "engine_version": view.engine_version,
                "models": list(view.models),
                "healthy": view.healthy,
                "state": view.state_text,
                "block_tokens": capacity.weighing.block_tokens if capacity else None,
                "max_context": capacity.weighing.max_context if capacity else None,
                "budget_blocks": capacity.budget.blocks if capacity else None,
                "reserve_blocks": capacity.budget.reserve_blocks if capacity else None,
                "held_blocks": held.charged_blocks if held else 0,
                "worst_case_blocks": held.worst_blocks if held else 0,
                "foreign_blocks": view.foreign_blocks,
                "free_blocks": held.free_blocks if held else 0,
                "seats": capacity.budget.seats if capacity else None,
                "budget_source": capacity.source if capacity else None,
                "budgets": dict(capacity.budgets) if capacity else {},
                "weighing": capacity.weighing.words if capacity else None,
                "commitment": _mode(held),
                "forecast": _forecast(rooms, view, held, now),
                "guards": asdict(held.guards) if held is not None and held.guards is not None else None,
                "engine_used_blocks": view.used_blocks,
                "ledger_gap": (
                    {cause.value: blocks for cause, blocks in gap_causes(view, held).items()}
                    if held is not None and view.used_blocks is not None
                    else None
                ),
                "engine_running": view.running,
                "engine_waiting": view.waiting,
                "engine_preemptions": view.preemptions,
                "in_flight": held.in_flight if held else 0,
            }
        )
        if said := str(rooms.media.get(view.name, "")):
            assumptions.append(f"{view.name}: {said}")
        if capacity is not None:
            assumptions += [f"{view.name}: {text}" for text in capacity.assumptions]
            warnings += [f"{view.name}: {text}" for text in capacity.warnings]
    lanes: dict[str, dict[str, Any]] = {}
    for lines in book.pools.values():
        for lane, line in lines.items():
            shown = lanes.setdefault(lane, _empty_lane(line))
            shown["requests"] += line.requests
            shown["blocks"] += line.blocks
            shown["held_blocks"] += line.held_blocks
            if line.cap_blocks is not None:
                shown["cap_blocks"] = (shown["cap_blocks"] or 0) + line.cap_blocks
            for name, tenant in line.tenants.items():
                tenants = shown["tenants"].setdefault(name, {"requests": 0, "blocks": 0, "held_blocks": 0})
                tenants["requests"] += tenant.requests
                tenants["blocks"] += tenant.blocks
                tenants["held_blocks"] += tenant.held_blocks
            shown["oldest_s"] = _older(shown["oldest_s"], _age(line.oldest_arrived, now))
    oldest_s: float | None = None
    for shown in lanes.values():
        oldest_s = _older(oldest_s, shown["oldest_s"])
    return {
        "version": __version__,
        "uptime_s": round(now - lifecycle.started, 3),
        "mode": book.mode.value,
        "draining": lifecycle.is_stopping,
        "assumptions": assumptions,
        "warnings": warnings,
        "backends": backends,
        "queue": {
            "requests": counts.queued,
            "blocks": sum(shown["blocks"] for shown in lanes.values()),
            "oldest_s": oldest_s,
        },
        "lanes": lanes,
        "in_flight": counts.in_flight,
        "reading": counts.reading,
        "received": counts.received,
        "outcomes": {outcome.value: number for outcome, number in counts.outcomes.items() if number},
    }


def _mode(held: BackendSnapshot | None) -> str:
    return "forecast" if held is not None and held.commitment.is_forecast else "strict"


def _forecast(rooms: Rooms, view: BackendView, held: BackendSnapshot | None, now: float) -> dict[str, Any] | None:
    """Why the commitment is what it is: what the engine did, and on how much evidence each class is forecast."""
    if held is None:
        return None
    commitment = held.commitment
    families = {Pool(PoolName(view.name), (view,)).family(model) for model in (*view.models, None)}
    return {
        "why": commitment.why,
        "headroom": commitment.headroom,
        "last_preemption_s": _age(commitment.last_preemption, now),
        "guessed_blocks": commitment.cold_blocks,
        "classes": [
            {
                "class": " / ".join(seen.name),
                "answers": seen.completions,
                "is_forecast": commitment.is_forecast and seen.completions >= ENOUGH,
                "expected_tokens": seen.expected_tokens,
            }
            for seen in rooms.evidence.seen()
            if seen.name[0] in families
        ],
    }


def gauge_rows(rooms: Rooms) -> Iterator[GaugeRow]:
    """Every gauge's samples, from one snapshot."""
    now, book = rooms.clock.now(), rooms.controller.snapshot()
    for view in rooms.roster.views():
        name = (str(view.name),)
        held = book.backends.get(view.name)
        yield GaugeRow(GaugeName.BACKEND_UP, name, float(view.healthy))
        yield GaugeRow(GaugeName.COMMITMENT, (view.name, _mode(held)), 1.0)
        if held is not None:
            yield GaugeRow(GaugeName.HEADROOM, name, held.commitment.headroom)
            if held.guards is not None:
                yield GaugeRow(GaugeName.UNANSWERED_TOKENS, name, held.guards.unanswered_tokens)
                if held.guards.seat_limit is not None:
                    yield GaugeRow(GaugeName.SEAT_LIMIT, name, held.guards.seat_limit)
        pool = rooms.upstreams[view.name].pool
        yield GaugeRow(GaugeName.UPSTREAM_CONNECTIONS, (view.name, "idle"), pool.idle_connections)
        yield GaugeRow(GaugeName.UPSTREAM_CONNECTIONS, (view.name, "busy"), pool.open_connections - pool.idle_connections)
        yield GaugeRow(GaugeName.UPSTREAM_CONNECTIONS, (view.name, "opening"), pool.openings.under_way)
        yield GaugeRow(GaugeName.UPSTREAM_CONNECTS, (view.name, "opened"), pool.openings.opened)
        yield GaugeRow(GaugeName.UPSTREAM_CONNECTS, (view.name, "failed"), pool.openings.failed)
        yield GaugeRow(GaugeName.UPSTREAM_REQUESTS, (view.name, "ready"), pool.requests - pool.fresh_requests)
        yield GaugeRow(GaugeName.UPSTREAM_REQUESTS, (view.name, "fresh"), pool.fresh_requests)
        yield GaugeRow(GaugeName.FOREIGN_BLOCKS, name, view.foreign_blocks)
        if view.capacity is not None:
            yield GaugeRow(GaugeName.BUDGET_BLOCKS, name, view.capacity.budget.blocks)
            yield GaugeRow(GaugeName.RESERVE_BLOCKS, name, view.capacity.budget.reserve_blocks)
        if held is not None:
            yield GaugeRow(GaugeName.HELD_BLOCKS, name, held.charged_blocks)
            yield GaugeRow(GaugeName.WORST_CASE_BLOCKS, name, held.worst_blocks)
            yield GaugeRow(GaugeName.IN_FLIGHT, name, held.in_flight)
        if view.used_blocks is not None:
            yield GaugeRow(GaugeName.ENGINE_USED_BLOCKS, name, view.used_blocks)
            if held is not None:
                causes = gap_causes(view, held)
                yield GaugeRow(GaugeName.LEDGER_GAP_BLOCKS, name, sum(causes.values()))
                for cause, blocks in causes.items():
                    yield GaugeRow(GaugeName.LEDGER_GAP_CAUSE_BLOCKS, (view.name, cause.value), blocks)
        if view.preemptions is not None:
            yield GaugeRow(GaugeName.ENGINE_PREEMPTIONS, name, view.preemptions)
    phases = rooms.open_requests.phases()
    for phase in Phase:
        yield GaugeRow(GaugeName.OPEN_REQUESTS, (phase.value,), phases[phase.value])
    yield from _line_rows(rooms, book, now)


def _line_rows(rooms: Rooms, book: BookSnapshot, now: float) -> Iterator[GaugeRow]:
    # An autoscaler takes a missing figure for a broken one: a pool in which nobody ever waited has a backlog of 0.
    for pool_name in rooms.roster.pool_names():
        if pool_name not in book.pools:
            yield GaugeRow(GaugeName.BACKLOG_SECONDS, (pool_name,), 0.0)
    for pool_name, lines in book.pools.items():
        ages = [_age(line.oldest_arrived, now) or 0.0 for line in lines.values()]
        drain = book.drain_blocks_per_s.get(pool_name)
        waiting_blocks = sum(line.blocks for line in lines.values())
        backlog_s = waiting_blocks / drain if drain else max(ages, default=0.0)
        yield GaugeRow(GaugeName.BACKLOG_SECONDS, (pool_name,), backlog_s)
        for lane, line in lines.items():
            yield GaugeRow(GaugeName.QUEUE_REQUESTS, (pool_name, lane), line.requests)
            yield GaugeRow(GaugeName.QUEUE_BLOCKS, (pool_name, lane), line.blocks)


def gap_causes(view: BackendView, held: BackendSnapshot) -> Mapping[GapCause, int]:
    """The gap between the ledger and the engine's own gauge, which is known, by cause."""
    return ledger_gap(
        charged_blocks=held.charged_blocks,
        worst_blocks=held.worst_blocks,
        foreign_blocks=view.foreign_blocks,
        used_blocks=view.used_blocks or 0,
        held_seats=held.seats_held,
        running=view.running,
    )


def _empty_lane(line: LineSnapshot) -> dict[str, Any]:
    """A lane over all pools, before anything is added. cap_blocks: null where it has no cap; tenants: who waits or runs."""
    return {
        "requests": 0,
        "blocks": 0,
        "oldest_s": None,
        "weight": line.weight,
        "max_requests": line.max_requests,
        "held_blocks": 0,
        "cap_blocks": None,
        "tenants": {},
    }


def _age(arrived: float | None, now: float) -> float | None:
    return None if arrived is None else round(now - arrived, 3)


def _older(one: float | None, other: float | None) -> float | None:
    ages: Iterable[float] = (age for age in (one, other) if age is not None)
    return max(ages, default=None)
