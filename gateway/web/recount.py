"""Recount: exact counts in the background, while somebody waits because of a bound.

A request that fits on its bound waits for nothing, and holds more than it may take. That matters only once somebody
waits for the same backend: then the exact counts of those who run there and of those who wait are asked for, one after
another, and each shrinks its hold when it arrives; where none can be had, what was learned of such prompts' bytes takes its
place. Nothing is asked for while nobody waits.
"""

import asyncio
from collections.abc import Callable, Mapping

from gateway.admission.controller import Controller
from gateway.core.names import BackendName, TicketId
from gateway.core.offer import CountKind, PromptCount
from gateway.core.request import InferenceRequest
from gateway.core.ticket import Need, Ticket
from gateway.tokens.ratio import Ratios
from gateway.web.counting import Counting

# What the same request needs on each backend, once its prompts are counted exactly.
Reweigh = Callable[[PromptCount], Mapping[BackendName, Need]]


# A waiting or running request that is weighed by a bound.
_Bounded = tuple[Ticket, InferenceRequest, Reweigh]


class Recount:
    """Keeps the requests that are weighed by a bound, and counts them while somebody waits. One task per backend at most."""

    def __init__(self, counter: Counting, controller: Controller, ratios: Ratios) -> None:
        self._counter = counter
        self._controller = controller
        self._ratios = ratios
        self._bounded: dict[TicketId, _Bounded] = {}
        self._tasks: dict[BackendName, asyncio.Task[None]] = {}
        self._counts: dict[TicketId, asyncio.Task[PromptCount | None]] = {}

    def note(self, ticket: Ticket, request: InferenceRequest, reweigh: Reweigh) -> None:
        """This request is weighed by a bound from now on; `forget` it when it ends."""
        self._bounded[ticket.id] = (ticket, request, reweigh)

    def forget(self, ticket: TicketId) -> None:
        """The request has ended: no engine is kept busy counting it, and its prompt is kept no longer than it was."""
        if self._bounded.pop(ticket, None) is not None:
            return  # it was never asked for
        count = self._counts.pop(ticket, None)
        if count is not None:
            count.cancel()

    def somebody_waits(self, ticket: Ticket) -> None:
        """This ticket was queued: see to it that exact counts are asked for where it may run."""
        if not self._bounded:
            return
        for backend in ticket.needs:
            task = self._tasks.get(backend)
            if task is None or task.done():
                self._tasks[backend] = asyncio.create_task(self._count_on(backend), name=f"recount on {backend}")

    async def _count_on(self, backend: BackendName) -> None:
        while self._controller.has_waiting_for(backend):
            # The oldest first: those who run, then those at the head of the line.
            bounded = next((seen for seen in self._bounded.values() if backend in seen[0].needs), None)
            if bounded is None:
                return
            # Asked for once, whatever comes of it.
            (ticket, request, reweigh), number = bounded, bounded[0].id
            del self._bounded[number]
            count = self._counts[number] = asyncio.create_task(
                self._count(backend, ticket, request), name=f"count of ticket {number} on {backend}"
            )
            try:
                await asyncio.wait({count})
            finally:
                self.forget(number)
            counted = None if count.cancelled() else count.result()
            if counted is not None:
                self._controller.reweigh(number, reweigh(counted))

    async def _count(self, backend: BackendName, ticket: Ticket, request: InferenceRequest) -> PromptCount | None:
        """The exact count or, where none can be had, what the bytes of such prompts came to."""
        counted = await self._counter.count(backend, request)
        if counted is not None:
            return counted
        estimate = self._ratios.estimate(ticket.family, request)
        return None if estimate is None else PromptCount(estimate, CountKind.BOUND_ONLY)

    async def stop(self) -> None:
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
