"""The door that is measured: kvgate's own book, driven as the controller and the relay drive it.

A ticket joins when its request arrives, with the objective for the first token as its patience; grants go to the engine in
the same instant; first tokens are told as they come, progress and gaps at every tick, the engine's preemption counter at
every probe; the end of a request releases it in the same instant, and its length is learned from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.policies.engine import Engine, Sequence
from benchmarks.policies.workloads import Workload
from gateway.books import BookContract, memory_book
from gateway.core.commitment import Ending
from gateway.core.decisions import Changes, Granted, Mode, Refused
from gateway.core.geometry import Weighing
from gateway.core.guards import Guards
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket

_BACKEND = BackendName("engine")
_POOL = PoolName("pool")
# Of the objective for the first token: how long a ticket may wait in line, since its prompt has to be computed as well.
PATIENCE_SHARE = 0.9
_TICK_S = 0.5  # the relay does it four times a second; half as often costs half the time and changes nothing
_PROBE_S = 2.0
_RESERVE_PERCENT = 5  # KVGATE_RESERVE's default
_SPARE_BLOCKS = 1  # what kvgate holds beside the formula for a GPU build of vLLM


class Caps(StrEnum):
    """The output cap that clients send."""

    ABSENT = "absent"
    FIXED = "fixed"
    LOOSE = "1.5x"
    TRUE = "truth"


@dataclass(frozen=True, slots=True)
class Gate:
    """A configuration of kvgate. targets_known: the operator has set the token gap that users expect."""

    commitment: str
    caps: Caps
    has_guards: bool = False
    targets_known: bool = True

    def book(self, workload: Workload) -> BookContract:
        guards = Guards(gap_target_s=workload.itl_s if self.targets_known else None) if self.has_guards else None
        return memory_book(
            mode=Mode.ENFORCE, commitment=self.commitment, policy="fifo", limits=QueueLimits(wait_margin=0.1), guards=guards
        )


class BookDoor:
    """refusals: how many were refused, by reason."""

    def __init__(self, engine: Engine, workload: Workload, gate: Gate) -> None:
        self._engine = engine
        self._workload = workload
        self._gate = gate
        self._weighing = Weighing(workload.engine.block_tokens, workload.context, None, _SPARE_BLOCKS)
        self.book = gate.book(workload)
        self._waiting: dict[TicketId, Sequence] = {}
        self._running: dict[TicketId, tuple[Ticket, Sequence]] = {}
        self._next_tick = _TICK_S
        self._next_probe = _PROBE_S
        self._gap_seconds = 0.0
        self._gap_tokens = 0
        self.refusals: dict[str, int] = {}
        blocks = workload.engine.blocks - 1  # vLLM's null block
        reserve = -(-blocks * _RESERVE_PERCENT // 100)
        budget = Budget(blocks, reserve, workload.engine.max_running)
        self._deliver(self.book.set_backend(_BACKEND, budget=budget, serving=True, now=0.0), now=0.0)
        self._probe(now=0.0)

    def arrive(self, sequence: Sequence, *, now: float) -> None:
        ticket = self._ticket(sequence, now=now)
        match self.book.join(ticket, now=now):
            case Granted():
                self._start(ticket, sequence, now=now)
            case Refused() as refused:
                self._refuse(refused)
            case _:
                self._waiting[ticket.id] = sequence

    def _ticket(self, sequence: Sequence, *, now: float) -> Ticket:
        prompt = sequence.arrival.prompt_tokens
        context = self._workload.context
        cap = self._cap(sequence)
        # An absent cap is weighed as a whole context, whatever the prompt.
        worst = self._weighing.sequence_blocks(context if cap is None else prompt + cap)
        output = context - prompt if cap is None else min(cap, context - prompt)
        need = Need(worst, 1, prompt_tokens=prompt, output_tokens=output, weighing=self._weighing)
        return Ticket(
            TicketId(sequence.id),
            _POOL,
            {_BACKEND: need},
            arrived=now,
            deadline=now + PATIENCE_SHARE * self._workload.ttft_s,
            prompt_tokens=prompt,
            cap_tokens=cap,
            family="model",
        )

    def _cap(self, sequence: Sequence) -> int | None:
        output = sequence.arrival.output_tokens
        caps: Mapping[Caps, int | None] = {
            Caps.ABSENT: None,
            Caps.FIXED: max(self._workload.fixed_cap, output),
            Caps.LOOSE: -(-3 * output // 2),
            Caps.TRUE: output,
        }
        return caps[self._gate.caps]

    def next_event(self) -> float | None:
        deadline = self.book.next_deadline()
        tick = self._next_tick if self._running else None
        return min((at for at in (deadline, tick) if at is not None), default=None)

    def act(self, *, now: float) -> None:
        if self._running and now >= self._next_tick:
            self._next_tick = now + _TICK_S
            if now >= self._next_probe:
                self._next_probe = now + _PROBE_S
                self._probe(now=now)
            self._tell(now=now)
        self._deliver(self.book.expire(now=now), now=now)

    def answered(self, sequence: Sequence, *, now: float) -> None:
        self._deliver(self.book.first_token(TicketId(sequence.id), now=now), now=now)

    def finished(self, sequence: Sequence, *, now: float) -> None:
        ticket, _ = self._running.pop(TicketId(sequence.id))
        output = sequence.arrival.output_tokens
        ending = Ending.CAPPED if output == ticket.cap_tokens else Ending.FINISHED
        self._deliver(self.book.release(ticket.id, now=now), now=now)
        self._deliver(self.book.learn(ticket, output, ending, now=now), now=now)

    def stepped(self, seconds: float, *, now: float) -> None:
        self._gap_seconds += seconds * self._engine.decoding
        self._gap_tokens += self._engine.decoding

    def _tell(self, *, now: float) -> None:
        """What the relay has seen since the last tick."""
        if self._gap_tokens:
            seen = self.book.saw_gaps(_BACKEND, self._gap_seconds, self._gap_tokens, now=now)
            self._gap_seconds, self._gap_tokens = 0.0, 0
            self._deliver(seen, now=now)
        for ticket_id, (_, sequence) in list(self._running.items()):
            produced = self._engine.produced(sequence)
            if produced:
                self._deliver(self.book.progress(ticket_id, produced, now=now), now=now)

    def _probe(self, *, now: float) -> None:
        seen = self.book.read_engine(_BACKEND, self._engine.preemptions, overrun_fails_all=False, now=now)
        self._deliver(seen, now=now)

    def _deliver(self, changes: Changes, *, now: float) -> None:
        for granted in changes.granted:
            self._start(granted.ticket, self._waiting.pop(granted.ticket.id), now=now)
        for refused in changes.refused:
            del self._waiting[refused.ticket.id]
            self._refuse(refused)

    def _start(self, ticket: Ticket, sequence: Sequence, *, now: float) -> None:
        sequence.granted_at = now
        self._running[ticket.id] = (ticket, sequence)
        self._engine.add(sequence)

    def _refuse(self, refused: Refused) -> None:
        self.refusals[refused.reason] = self.refusals.get(refused.reason, 0) + 1
