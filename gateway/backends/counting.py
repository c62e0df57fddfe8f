"""ExactCounter: the tokens of a request's prompts as the engine itself counts them.

It promises: None rather than a guess, and never an exception; two questions at a time per backend, a bounded wait for a
turn, bounded bodies; a backend that has no such route is asked once and then not again until another engine answers there.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from gateway.backends.engines import CountCall
from gateway.backends.engines.answers import member
from gateway.backends.probe import Answer, NeedsKey
from gateway.backends.roster import Roster
from gateway.core.errors import UpstreamFailed
from gateway.core.names import BackendName
from gateway.core.request import InferenceRequest

AT_ONCE: Final = 2
WAIT_S: Final = 2.0
MAX_BODY_BYTES: Final = 4 * 2**20
MAX_ANSWER_BYTES: Final = 16 * 2**20  # vLLM and llama.cpp answer with the tokens themselves
MAX_TEXTS: Final = 8
# Longer than any context: such a count is garbage.
MAX_TOKENS: Final = 2**31

log = logging.getLogger("kvgate.backends")


@dataclass(slots=True)
class _Desk:
    """Where one backend's counts are asked for. absent_at: the generation of the engine that had no such route, by path."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    absent_at: dict[str, int] = field(default_factory=dict)


class ExactCounter:
    def __init__(self, roster: Roster, *, wait_s: float = WAIT_S) -> None:
        """wait_s: the longest wait for a turn."""
        self._roster = roster
        self._wait_s = wait_s
        self._desks: dict[BackendName, _Desk] = {}

    async def count(self, backend: BackendName, request: InferenceRequest) -> tuple[int, ...] | None:
        """Tokens of each prompt of `request`, in order; None if they cannot be had. Raises KeyError for an unknown backend."""
        given = [prompt.token_ids for prompt in request.prompts]
        asked = given.count(None)
        watch = self._roster.watch(backend)
        if not asked:
            return tuple(count for count in given if count is not None)
        # What a picture or a sound becomes in tokens is not in the text that these routes count.
        if any(prompt.media_parts for prompt in request.prompts) or asked > MAX_TEXTS:
            return None
        desk = self._desks.setdefault(backend, _Desk())
        calls = watch.engine.count_calls(request)
        if calls is None or len(calls) != asked or not watch.view.healthy:
            return None
        if any(desk.absent_at.get(call.path) == watch.generation for call in calls):
            return None
        if sum(len(call.body) for call in calls) > MAX_BODY_BYTES:
            return None
        answers: list[int] = []
        for call in calls:
            count = await self._ask(backend, desk, call)
            if count is None:
                return None
            answers.append(count)
        counted = iter(answers)
        return tuple(next(counted) if count is None else count for count in given)

    async def _ask(self, backend: BackendName, desk: _Desk, call: CountCall) -> int | None:
        watch = self._roster.watch(backend)
        try:
            async with asyncio.timeout(self._wait_s):
                await desk.turns.acquire()
        except TimeoutError:
            return None
        try:
            answer = await watch.probe.post(call.path, call.body, max_bytes=MAX_ANSWER_BYTES)
        except (UpstreamFailed, NeedsKey) as error:
            log.debug("%s: no count: %s", backend, error)
            return None
        finally:
            desk.turns.release()
        if _has_no_route(answer):
            desk.absent_at[call.path] = watch.generation
            log.info(
                "%s: it does not count tokens (%s answers %d): prompts are bounded instead", backend, call.path, answer.status
            )
            return None
        count = call.read(answer.json()) if answer.ok else None
        return count if count is not None and count <= MAX_TOKENS else None


def _has_no_route(answer: Answer) -> bool:
    """404, 405 or 501 for the route itself: vLLM answers 404 to a model that it does not have, too."""
    if answer.status not in (404, 405, 501):
        return False
    error = answer.json()
    return member(error, "error", "param") != "model" and "model" not in str(member(error, "error", "message") or "").lower()
