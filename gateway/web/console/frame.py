"""Frame: what the console shows at one instant, as one JSON object. Neither prompts nor keys can be in it.

It is the state of `/kvgate/state` and, beside it, who runs, who waits and for what, the last minutes and the last refusals.
Every list is bounded; where more exist, their number is told.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.core.snapshots import Holding
from gateway.core.waits import WaitSnapshot
from gateway.web.journal import Phase
from gateway.web.lifecycle import Lifecycle
from gateway.web.open_requests import RequestRow
from gateway.web.operations import state_of
from gateway.web.recent import STEP_S
from gateway.web.rooms import Rooms

MOST_WAITING: Final = 50  # of each lane
MOST_RUNNING: Final = 100

_RUNS: Final = frozenset({Phase.WAITING.value, Phase.STREAMING.value})


def encoded_frame(rooms: Rooms, lifecycle: Lifecycle) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(frame_of(rooms, lifecycle))


def frame_of(rooms: Rooms, lifecycle: Lifecycle) -> dict[str, Any]:
    """The snapshot, taken without a wait in between. Blocks, tokens and seconds."""
    now = rooms.clock.now()
    rows = [request.row(now) for request in rooms.open_requests]
    running: list[dict[str, Any]] = []
    running_total = 0
    for row in rows:
        if row.phase not in _RUNS or row.backend is None:
            continue
        running_total += 1
        if len(running) == MOST_RUNNING:
            continue
        holding = rooms.controller.holding(row.ticket_id)
        running.append(_running(row, holding))
    by_id = {row.ticket_id: row for row in rows}
    waiting = [_waiting(wait, by_id.get(wait.ticket_id), now) for wait in rooms.controller.waits(most=MOST_WAITING)]
    return {
        "state": state_of(rooms, lifecycle),
        "held_by_lane": rooms.controller.charged_by_lane(),
        "running": running,
        "running_total": running_total,
        "waiting": waiting,
        "refusals": [
            {
                "ago_s": round(now - refusal.at, 1),
                "id": refusal.request_id,
                "reason": refusal.reason.value,
                "status": refusal.status,
                "message": refusal.message,
                "model": refusal.model,
                "lane": refusal.lane,
                "tenant": refusal.tenant,
                "blocks": refusal.blocks,
                "waited_s": refusal.waited_s,
            }
            for refusal in rooms.recent.refusals
        ],
        "series": {"step_s": STEP_S, **rooms.recent.series()},
    }


def _running(row: RequestRow, holding: Holding | None) -> dict[str, Any]:
    """holding None: the engine is done with it, and its client still reads."""
    return {
        "id": row.request_id,
        "model": row.model,
        "tenant": row.tenant,
        "lane": row.lane,
        "dialect": row.dialect,
        "backend": row.backend,
        "phase": row.phase,
        "age_s": round(row.age_s, 1),
        "phase_s": round(row.phase_s, 1),
        "charged_blocks": holding.charged_blocks if holding is not None else 0,
        "worst_blocks": holding.worst_blocks if holding is not None else 0,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": max(row.output_tokens or 0, holding.output_tokens if holding is not None else 0),
        "cap_tokens": row.cap_tokens,
        "is_stream": row.is_stream,
    }


def _waiting(wait: WaitSnapshot, row: RequestRow | None, now: float) -> Mapping[str, Any]:
    return {
        "id": row.request_id if row is not None else str(wait.ticket_id),
        "model": row.model if row is not None else "",
        "tenant": row.tenant if row is not None else "",
        "lane": wait.lane,
        "pool": wait.pool,
        "position": wait.position,
        "needs_blocks": wait.needs_blocks,
        "needs_seats": wait.needs_seats,
        "waits_s": round(now - wait.arrived, 1),
        "left_s": round(wait.deadline - now, 1),
        "reason": wait.reason.value,
        "backend": wait.backend,
        "free_blocks": wait.free_blocks,
        "passes": wait.passes,
        "is_collecting": wait.is_collecting,
    }
