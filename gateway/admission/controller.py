"""The controller: the only caller of the book, and the only place where waiting for a grant happens.

It promises:
* `admit` ends in a grant, in `Rejected`, or in the cancellation of its caller, and in none of them is anything left held
  or queued. A waiter that is cancelled after its grant arrived gives that grant back here, and nowhere else.
* what a call makes possible (a release frees room for three waiters) is delivered in the same tick, before any await.
* the pump is the one timer for deadlines; nothing polls.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from gateway.admission.grant import Grant
from gateway.admission.running_answer import Reports, RunningAnswer
from gateway.books import BookContract
from gateway.clock import Clock
from gateway.core.commitment import Ending
from gateway.core.decisions import NOTHING, Changes, Granted, Refused, Standing
from gateway.core.errors import Rejected
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, LaneName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.pace import Pace
from gateway.core.snapshots import BookSnapshot, Holding
from gateway.core.ticket import Need, Ticket
from gateway.core.waits import WaitSnapshot

_SENTENCES: dict[RejectReason, str] = {
    RejectReason.QUEUE_FULL: "the queue is full",
    RejectReason.PREDICTED_WAIT: "the wait would be longer than this request can wait",
    RejectReason.QUEUE_TIMEOUT: "no room became free before the deadline",
    RejectReason.TENANT_LIMIT: "the limit of this tenant is reached",
    RejectReason.NO_BACKEND: "no healthy backend serves this request",
    RejectReason.DRAINING: "this gateway is shutting down",
    RejectReason.KV_BUDGET: "this request needs more KV blocks than any backend has",
}


def rejected(refused: Refused) -> Rejected:
    """The book's refusal as the error that travels to the caller, with its numbers in words."""
    text = _SENTENCES[refused.reason]
    if refused.need_blocks:
        text += f" (needs {refused.need_blocks} KV blocks"
        text += f", of {refused.limit_blocks})" if refused.limit_blocks else ")"
    if refused.predicted_wait_s is not None:
        text += f"; predicted wait {refused.predicted_wait_s:.1f} s"
    return Rejected(text, reason=refused.reason, retry_after_s=refused.retry_after_s)


class Controller:
    """Joins tickets to the book, delivers its grants, and keeps its deadlines."""

    def __init__(self, book: BookContract, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._waiting: dict[TicketId, asyncio.Future[Grant]] = {}
        self._somebody_waits = asyncio.Event()
        # The pump's sleep, and the deadline that ends it; None: it does not sleep until one.
        self._sleep: tuple[asyncio.Task[None], float] | None = None
        self._paces: dict[BackendName, Pace] = {}
        self._reports = Reports(
            progress=lambda ticket, tokens: self._deliver(book.progress(ticket.id, tokens, now=clock.now())),
            first_token=lambda ticket, seen: self._deliver(book.first_token(ticket.id, was_seen=seen, now=clock.now())),
            gaps=lambda name, seconds, tokens: self._deliver(book.saw_gaps(name, seconds, tokens, now=clock.now())),
            learn=self._learn,
            patience_s=lambda ticket, is_stream: book.prefill_patience_s(ticket.id, is_stream=is_stream),
        )

    async def admit(self, ticket: Ticket, *, on_queued: Callable[[Ticket], None]) -> Grant:
        """A grant for the ticket, at once or after waiting in line; `on_queued` is called before the wait.

        Raises Rejected. When the caller is cancelled, the ticket leaves the line or its grant is given back.
        """
        return self.join(ticket, self._clock.now()) or await self.wait(ticket, on_queued=on_queued)

    def join(self, ticket: Ticket, now: float) -> Grant | None:
        """The first half of `admit`: a grant, or None for a ticket that stands in line now, so that its caller goes on with
        `wait` before anything else can happen. Raises Rejected."""
        decision = self._book.join(ticket, now=now)
        if isinstance(decision, Granted):
            return Grant(decision, self._give_back)
        if isinstance(decision, Refused):
            raise rejected(decision)
        return None

    async def wait(self, ticket: Ticket, *, on_queued: Callable[[Ticket], None]) -> Grant:
        """The other half, for a ticket that stands in line."""
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiting[ticket.id] = future
        self._arm()
        try:
            on_queued(ticket)
            return await future
        except Rejected:
            raise
        except BaseException:
            # Cancelled, mostly. Its grant may have arrived in this very tick: then it is given back.
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()
            else:
                self._deliver(self._book.leave(ticket.id, now=self._clock.now()))
            raise
        finally:
            self._waiting.pop(ticket.id, None)

    def standing(self, ticket: TicketId) -> Standing | None:
        """Where a ticket stands in line; None if it does not wait."""
        return self._book.standing(ticket, now=self._clock.now())

    def free_blocks(self, names: Iterable[BackendName]) -> int:
        """The most blocks that are free now on one of these backends, at least 0."""
        most_blocks = 0
        for name in names:
            free_blocks = self._book.free_blocks(name)
            if free_blocks > most_blocks:
                most_blocks = free_blocks
        return most_blocks

    def _give_back(self, grant: Grant) -> None:
        changes = self._book.release(grant.ticket.id, now=self._clock.now())
        grant.released_blocks = changes.released_blocks
        if changes.granted or changes.refused:
            self._deliver(changes)

    def _learn(self, ticket: Ticket, tokens: int, ending: Ending) -> None:
        changes = self._book.learn(ticket, tokens, ending, now=self._clock.now())
        if changes is not NOTHING:
            self._deliver(changes)

    def follow(self, grant: Grant, *, is_stream: bool) -> RunningAnswer:
        """What was granted is sent now: whoever relays its answer tells how far it is."""
        name = grant.backend
        pace = self._paces.get(name)
        if pace is None:
            pace = self._paces[name] = self._book.pace(name)
        return RunningAnswer(grant.ticket, name, pace, self._reports, is_stream, self._clock.now())

    def reweigh(self, ticket: TicketId, needs: Mapping[BackendName, Need]) -> None:
        """The exact count of a waiting or running request arrived: it needs this instead."""
        self._deliver(self._book.reweigh(ticket, needs, now=self._clock.now()))

    def set_backend(
        self,
        name: BackendName,
        *,
        budget: Budget | None,
        serving: bool,
        foreign_blocks: int,
        weighed_anew: Mapping[TicketId, Mapping[BackendName, Need]] | None = None,
    ) -> None:
        """What the roster learned of a backend. Waiting tickets may be granted or refused by it, those that the change
        makes something else of by what they need now."""
        changes = self._book.set_backend(
            name,
            budget=budget,
            serving=serving,
            foreign_blocks=foreign_blocks,
            weighed_anew=weighed_anew,
            now=self._clock.now(),
        )
        self._deliver(changes)

    def read_engine(self, name: BackendName, preemptions: int | None, *, overrun_fails_all: bool) -> None:
        """A reading of an engine: what it preempted so far, None where it does not tell."""
        self._deliver(self._book.read_engine(name, preemptions, overrun_fails_all=overrun_fails_all, now=self._clock.now()))

    def drain(self) -> None:
        """From now on nobody new is let in, and everybody in line is refused."""
        self._deliver(self._book.drain(now=self._clock.now()))

    def is_waiting(self, ticket: TicketId) -> bool:
        """Whether it stands in line: neither granted nor refused, even where it does not know yet."""
        future = self._waiting.get(ticket)
        return future is not None and not future.done()

    def has_waiting_for(self, backend: BackendName) -> bool:
        return self._book.has_waiting_for(backend)

    def worst_blocks(self, backend: BackendName) -> int:
        """The most blocks that what runs there may have written by now."""
        held = self.snapshot().backends.get(backend)
        return held.worst_blocks if held is not None else 0

    def snapshot(self) -> BookSnapshot:
        return self._book.snapshot(now=self._clock.now())

    def waits(self, *, most: int) -> tuple[WaitSnapshot, ...]:
        """The first `most` tickets of every lane, each with what it waits for."""
        return self._book.waits(most=most, now=self._clock.now())

    def charged_by_lane(self) -> Mapping[BackendName, Mapping[LaneName, int]]:
        """Blocks charged on each backend where any are, by lane. It looks at everything that runs."""
        return self._book.charged_by_lane()

    def holding(self, ticket_id: TicketId) -> Holding | None:
        """What a granted ticket holds now, None if nothing (any more)."""
        return self._book.holding(ticket_id)

    async def pump(self) -> None:
        """Ends tickets whose deadline has passed. Runs until cancelled."""
        while True:
            deadline = self._book.next_deadline()
            if deadline is None:
                self._somebody_waits.clear()
                await self._somebody_waits.wait()
                continue
            sleep = asyncio.create_task(self._clock.sleep_until(deadline), name="sleep until the next deadline")
            self._sleep = sleep, deadline
            try:
                await asyncio.wait({sleep})
            finally:
                self._sleep = None
                sleep.cancel()
            self._deliver(self._book.expire(now=self._clock.now()))

    def _arm(self) -> None:
        """Wake the pump if it sleeps without a deadline, or for one that is later than the next."""
        self._somebody_waits.set()
        deadline = self._book.next_deadline()
        if self._sleep is not None and deadline is not None and deadline < self._sleep[1]:
            self._sleep[0].cancel()

    def _deliver(self, changes: Changes) -> None:
        for granted in changes.granted:
            grant = Grant(granted, self._give_back)
            future = self._waiting.get(granted.ticket.id)
            if future is None or future.done():
                grant.release()
            else:
                future.set_result(grant)
        for refused in changes.refused:
            future = self._waiting.get(refused.ticket.id)
            if future is not None and not future.done():
                future.set_exception(rejected(refused))
