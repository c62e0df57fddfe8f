"""Refusals: why a ticket is declined rather than kept waiting, with the numbers that its caller can act on."""

from collections.abc import Mapping

from gateway.core.decisions import Refused, Standing
from gateway.core.drain import DrainRate
from gateway.core.guards import Guards
from gateway.core.ledger import BackendLedger, Ledger
from gateway.core.line import Waiting
from gateway.core.names import PoolName
from gateway.core.outcomes import RejectReason
from gateway.core.queue import Queue, QueueLimits
from gateway.core.ticket import Ticket

# Beyond a lane's places there is a quarter more for those who were refused and come back as they were told: whoever is done
# asks again at once, and would else have taken every place before them.
_FOR_RETURNING = 4


class Refusals:
    """Reads the ledger, the queue, the drain of each pool and the pace of each backend; changes nothing."""

    def __init__(
        self, ledger: Ledger, queue: Queue, drains: Mapping[PoolName, DrainRate], guards: Guards, limits: QueueLimits
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._drains = drains
        self._guards = guards
        self._limits = limits

    def by_tenant(self, ticket: Ticket) -> Refused | None:
        """The reason for which its tenant's own terms keep a ticket out, whatever room there is; None if they do not."""
        terms = ticket.terms
        if terms.cap_blocks is not None and self.never_fits(ticket):
            return self.refuse(ticket, RejectReason.KV_BUDGET)
        if terms.cap_requests is not None and self._queue.requests_of(terms.name) >= terms.cap_requests:
            return self.refuse(ticket, RejectReason.TENANT_LIMIT)
        return None

    def why_not_wait(self, waiting: Waiting, *, now: float) -> Refused | None:
        """The reason for which a ticket that cannot be granted now must not take its place either; None if it may.

        What waiting can never cure comes first, so that nobody is told to come back in vain.
        """
        ticket, line = waiting.ticket, waiting.line
        if not self._can_be_served(ticket):
            return self.refuse(ticket, RejectReason.KV_BUDGET if self.never_fits(ticket) else RejectReason.NO_BACKEND)
        wait_s = self._predicted_wait_s(waiting, is_new=True, now=now)
        if ticket.deadline <= now:
            return self.refuse(ticket, RejectReason.QUEUE_TIMEOUT, wait_s)
        max_requests = line.lane.max_requests
        if line.lane.requests >= max_requests + (max_requests // _FOR_RETURNING if ticket.returns else 0):
            return self.refuse(ticket, RejectReason.QUEUE_FULL, wait_s)
        if ticket.terms.queue_share < 1 and len(line) >= max(1, int(ticket.terms.queue_share * max_requests)):
            return self.refuse(ticket, RejectReason.TENANT_LIMIT, wait_s)
        if wait_s is not None and self._is_late(waiting, wait_s, now=now):
            return self.refuse(ticket, RejectReason.PREDICTED_WAIT, wait_s)
        return None

    def _is_late(self, waiting: Waiting, wait_s: float, *, now: float) -> bool:
        """Even if all goes well, the wait and the ticket's own prefill would reach beyond its deadline."""
        ticket = waiting.ticket
        prefill_s = min([self._guards.prefill_s(name, ticket.prompt_tokens) for name in ticket.needs])
        return now + self._least_wait_s(waiting, wait_s) + prefill_s > ticket.deadline

    def _least_wait_s(self, waiting: Waiting, wait_s: float) -> float:
        """What a wait that is predicted to last `wait_s` may shrink to: who is refused for it cannot show that it was wrong.

        The drain was measured over a while that is past. And a ticket smaller than most may pass those before it from where
        it is looked at on: only until then is its wait what stands before it.
        """
        lanes = self._queue.lanes(waiting.ticket.pool)
        requests = lanes.requests
        if requests and 2 * waiting.blocks * requests < sum(lane.blocks for lane in lanes.lanes.values()):
            wait_s *= max(0.0, 1.0 - self._limits.lookahead / requests)
        return wait_s * (1.0 - self._limits.wait_margin)

    def refuse(self, ticket: Ticket, reason: RejectReason, wait_s: float | None = None) -> Refused:
        """The refusal with its numbers. wait_s: the predicted wait, for a reason that waiting can cure."""
        need_blocks = min((need.worst_blocks for need in ticket.needs.values()), default=0)
        limit_blocks = 0
        for backend in self._known(ticket):
            if backend.budget is not None and backend.budget.blocks > limit_blocks:
                need_blocks, limit_blocks = ticket.needs[backend.name].worst_blocks, backend.budget.blocks
        cap_blocks = ticket.terms.cap_blocks
        if reason is RejectReason.KV_BUDGET and cap_blocks is not None and cap_blocks < limit_blocks:
            need_blocks, limit_blocks = min(need.worst_blocks for need in ticket.needs.values()), cap_blocks
        return Refused(ticket, reason, wait_s, wait_s, need_blocks, limit_blocks)

    def timed_out(self, waiting: Waiting, *, now: float) -> Refused:
        """The refusal of a ticket whose deadline passed. It has left its line: coming back, it would join at the end."""
        ticket = waiting.ticket
        if not self._can_be_served(ticket):
            return self.refuse(ticket, RejectReason.NO_BACKEND)
        return self.refuse(ticket, RejectReason.QUEUE_TIMEOUT, self._predicted_wait_s(waiting, is_new=False, now=now))

    def standing(self, waiting: Waiting, *, now: float) -> Standing:
        """Where a waiting ticket stands: how many are before it in its line, and how long it will wait by what is known."""
        return Standing(waiting.line.position(waiting), self._predicted_wait_s(waiting, is_new=True, now=now))

    def never_fits(self, ticket: Ticket) -> bool:
        """The ticket is larger than every budget that is known, of which there is at least one, or than its tenant may hold.
        A backend that has stopped serving counts: it may come back, and an outage is no reason to tell a caller that the
        request is too large."""
        is_known = False
        for backend in self._known(ticket):
            if backend.budget is not None:
                if _could_ever_run(ticket, backend):
                    return False
                is_known = True
        return is_known

    def _can_be_served(self, ticket: Ticket) -> bool:
        """Some backend serves now that could hold the ticket, once there is room."""
        for backend in self._known(ticket):  # noqa: SIM110 - asked of everybody who waits, so without a generator
            if backend.serving and _could_ever_run(ticket, backend):
                return True
        return False

    def _known(self, ticket: Ticket) -> list[BackendLedger]:
        """The backends that the ticket may run on, as far as the ledger has heard of them."""
        backends = self._ledger.backends
        return [backends[name] for name in ticket.needs if name in backends]

    def _predicted_wait_s(self, waiting: Waiting, *, is_new: bool, now: float) -> float | None:
        """Seconds until the ticket would be granted: (this demand + demands ahead - free) / drain.

        is_new: it takes its place now; else it comes back to the end of its line. None while the drain is unknown. Free
        counts below zero: in observe mode that is what the rules would have kept waiting. Where any backend has no limit of
        seats, seats are not what is waited for.
        """
        ticket = waiting.ticket
        drain = self._drains.get(ticket.pool)
        if drain is None:
            return None
        blocks, seats = self._queue.lanes(ticket.pool).ahead(waiting, is_new=is_new)
        has_endless_seats = False
        for backend in self._known(ticket):
            if backend.serving and backend.could_ever_hold(ticket):
                blocks -= backend.free_blocks
                free_seats = backend.free_seats
                has_endless_seats |= free_seats is None
                seats -= free_seats or 0
        return drain.wait_s(blocks=blocks, seats=0 if has_endless_seats else seats, now=now)


def _could_ever_run(ticket: Ticket, backend: BackendLedger) -> bool:
    """Whether the backend is large enough for the ticket, and its tenant may hold so much."""
    if not backend.could_ever_hold(ticket):
        return False
    cap_blocks = ticket.terms.cap_blocks
    return cap_blocks is None or ticket.needs[backend.name].worst_blocks <= cap_blocks
