"""The door that is measured: kvgate's own book, driven as the controller and the relay drive it.

A ticket joins when its request arrives, with the objective for the first token as its patience; grants go to the engine in
the same instant; progress is told at every tick; the end of a request releases it in the same instant.
"""

from collections.abc import Mapping
from enum import StrEnum

from benchmarks.policies.engine import Engine, Sequence
from benchmarks.policies.workloads import Workload
from gateway.books import memory_book
from gateway.core.decisions import Changes, Granted, Mode, Refused
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket

_BACKEND = BackendName("engine")
_POOL = PoolName("pool")
_TICK_S = 0.5
_RESERVE_PERCENT = 5  # KVGATE_RESERVE's default
_SPARE_BLOCKS = 1  # what kvgate holds beside the formula for a GPU build of vLLM


class Caps(StrEnum):
    """The output cap that clients send."""

    ABSENT = "absent"
    FIXED = "fixed"
    LOOSE = "1.5x"
    TRUE = "truth"


class BookDoor:
    """refusals: how many were refused, by reason. patience_s: how long a ticket may wait in line."""

    def __init__(self, engine: Engine, workload: Workload, *, commitment: str, caps: Caps, patience_s: float) -> None:
        self._engine = engine
        self._workload = workload
        self._caps = caps
        self._patience_s = patience_s
        self._weighing = Weighing(workload.engine.block_tokens, workload.context, None, _SPARE_BLOCKS)
        self._book = memory_book(mode=Mode.ENFORCE, commitment=commitment, policy="fifo", limits=QueueLimits())
        blocks = workload.engine.blocks - 1  # vLLM's null block
        reserve = -(-blocks * _RESERVE_PERCENT // 100)
        budget = Budget(blocks, reserve, workload.engine.max_running)
        self._deliver(self._book.set_backend(_BACKEND, budget=budget, serving=True, now=0.0), now=0.0)
        self._waiting: dict[TicketId, Sequence] = {}
        self._running: dict[TicketId, Sequence] = {}
        self._next_tick = _TICK_S
        self.refusals: dict[str, int] = {}

    def arrive(self, sequence: Sequence, *, now: float) -> None:
        ticket = self._ticket(sequence, now=now)
        match self._book.join(ticket, now=now):
            case Granted():
                self._start(ticket.id, sequence, now=now)
            case Refused() as refused:
                self._refuse(refused)
            case _:
                self._waiting[ticket.id] = sequence

    def _ticket(self, sequence: Sequence, *, now: float) -> Ticket:
        arrival = sequence.arrival
        room = self._workload.context - arrival.prompt_tokens
        caps: Mapping[Caps, int] = {
            Caps.ABSENT: self._workload.context,
            Caps.FIXED: max(self._workload.fixed_cap, arrival.output_tokens),
            Caps.LOOSE: -(-3 * arrival.output_tokens // 2),
            Caps.TRUE: arrival.output_tokens,
        }
        cap = caps[self._caps]
        # An absent cap is weighed as a whole context, whatever the prompt.
        tokens = self._workload.context if self._caps is Caps.ABSENT else arrival.prompt_tokens + min(cap, room)
        need = Need(self._weighing.sequence_blocks(tokens))
        return Ticket(
            TicketId(sequence.id),
            _POOL,
            {_BACKEND: need},
            arrived=now,
            deadline=now + self._patience_s,
            prompt_tokens=arrival.prompt_tokens,
            cap_tokens=cap,
        )

    def next_event(self) -> float | None:
        deadline = self._book.next_deadline()
        tick = self._next_tick if self._running else None
        return min((at for at in (deadline, tick) if at is not None), default=None)

    def act(self, *, now: float) -> None:
        if now >= self._next_tick:
            for ticket_id, sequence in list(self._running.items()):
                produced = self._engine.produced(sequence)
                if produced:
                    self._deliver(self._book.progress(ticket_id, produced, now=now), now=now)
            self._next_tick = now + _TICK_S
        self._deliver(self._book.expire(now=now), now=now)

    def answered(self, sequence: Sequence, *, now: float) -> None:
        pass

    def finished(self, sequence: Sequence, *, now: float) -> None:
        ticket_id = TicketId(sequence.id)
        del self._running[ticket_id]
        self._deliver(self._book.progress(ticket_id, sequence.arrival.output_tokens, now=now), now=now)
        self._deliver(self._book.release(ticket_id, now=now), now=now)

    def stepped(self, seconds: float, *, now: float) -> None:
        pass

    def _deliver(self, changes: Changes, *, now: float) -> None:
        for granted in changes.granted:
            self._start(granted.ticket.id, self._waiting.pop(granted.ticket.id), now=now)
        for refused in changes.refused:
            del self._waiting[refused.ticket.id]
            self._refuse(refused)

    def _start(self, ticket_id: TicketId, sequence: Sequence, *, now: float) -> None:
        sequence.granted_at = now
        self._running[ticket_id] = sequence
        self._engine.add(sequence)

    def _refuse(self, refused: Refused) -> None:
        self.refusals[refused.reason] = self.refusals.get(refused.reason, 0) + 1
