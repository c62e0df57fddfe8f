"""The bytes that an engine of the storm answers with, worked out from the plan, so that the client can demand exactly them."""

import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

from chaos.plan import BIG_PIECE, Act, Plan

DONE = b"data: [DONE]\n\n"
_LIES: tuple[Any, ...] = (
    {"prompt_tokens": -5, "completion_tokens": 1 << 70, "total_tokens": 0},
    {"prompt_tokens": "12", "completion_tokens": 3.5},
    {"prompt_tokens": 10**12, "completion_tokens": 10**12},
    {"prompt_tokens": None},
    [1, 2],
    "lots",
    True,
)


def usage_of(plan: Plan) -> Any:
    if plan.act is Act.USAGE_LIES:
        return _LIES[plan.cut_seed % len(_LIES)]
    return {"prompt_tokens": 5, "completion_tokens": plan.events, "total_tokens": 5 + plan.events}


def _finish_of(plan: Plan) -> str:
    """What is asked for without a cap runs into the one that the gateway has written, if it wrote one."""
    return "length" if plan.kind == "uncapped" else "stop"


def events_of(plan: Plan, *, wants_usage: bool) -> list[bytes]:
    """The events of a whole stream, `[DONE]` last. Usage comes in an event of its own, and only if it was asked for."""
    found = []
    for number in range(plan.events):
        finish = _finish_of(plan) if number == plan.events - 1 else None
        text = BIG_PIECE if plan.is_big else f"t{plan.number}.{number} "
        part: Mapping[str, Any] = {"delta": {"content": text}} if plan.is_chat else {"text": text}
        found.append(_event([{"index": 0, **part, "finish_reason": finish}]))
    if wants_usage:
        found.append(_event([], usage=usage_of(plan)))
    return [*found, DONE]


def _event(choices: list[Mapping[str, Any]], **more: Any) -> bytes:
    return b"data: " + json.dumps({"id": "c", "created": 1, "choices": choices, **more}).encode() + b"\n\n"


def plain_of(plan: Plan) -> bytes:
    """The body of a whole answer that is no stream."""
    text = f"t{plan.number} " * plan.events
    part: Mapping[str, Any] = {"message": {"role": "assistant", "content": text}} if plan.is_chat else {"text": text}
    choice = {"index": 0, **part, "finish_reason": _finish_of(plan)}
    return json.dumps({"id": "c", "created": 1, "choices": [choice], "usage": usage_of(plan)}).encode()


def expected_of(plan: Plan) -> bytes:
    """What a client gets of a whole answer: what it did not ask for is not in it."""
    return b"".join(events_of(plan, wants_usage=plan.wants_usage)) if plan.is_stream else plain_of(plan)


def split(data: bytes, seed: int, most: int) -> list[bytes]:
    """The data in at most `most` pieces, cut anywhere."""
    dice = random.Random(seed)
    edges = sorted({0, len(data), *(dice.randint(0, len(data)) for _ in range(dice.randint(0, most - 1)))})
    return [data[start:end] for start, end in itertools.pairwise(edges)] or [data]
