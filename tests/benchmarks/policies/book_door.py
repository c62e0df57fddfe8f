"""The door that is measured: kvgate's own book, driven as `kvgate replay` drives it, with the objective for the first token
as the patience of each ticket."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.policies.workloads import Workload
from gateway.books import BookContract, memory_book
from gateway.core.decisions import Mode
from gateway.core.geometry import Weighing
from gateway.core.guards import Guards
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.queue import WAIT_MARGIN, QueueLimits
from gateway.core.ticket import Need, Ticket
from gateway.replay.drive import BookDrive, Call
from gateway.replay.engine import Engine, Sequence

_BACKEND = BackendName("engine")
_POOL = PoolName("pool")
# Of the objective for the first token: how long a ticket may wait in line, since its prompt has to be computed as well.
PATIENCE_SHARE = 0.9
_RESERVE_PERCENT = 5  # KVGATE_RESERVE's default


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
            mode=Mode.ENFORCE,
            commitment=self.commitment,
            policy="fifo",
            limits=QueueLimits(wait_margin=WAIT_MARGIN),
            guards=guards,
        )


class BookDoor:
    """A gate before one engine. refusals: how many were refused, by reason."""

    def __init__(self, engine: Engine, workload: Workload, gate: Gate) -> None:
        self._workload = workload
        self._gate = gate
        self._weighing = Weighing(workload.engine.block_tokens, workload.context, None, workload.engine.spare_blocks)
        self.refusals: Counter[RejectReason] = Counter()
        blocks = workload.engine.blocks - 1  # vLLM's null block
        reserve = -(-blocks * _RESERVE_PERCENT // 100)
        budget = Budget(blocks, reserve, workload.engine.max_running)
        self._drive = BookDrive(
            gate.book(workload), {_BACKEND: engine}, budget=budget, listener=self, step_tokens=1, handover_s=0.0
        )
        self.next_event = self._drive.next_event
        self.act = self._drive.act
        self.answered = self._drive.answered
        self.finished = self._drive.finished
        self.stepped = self._drive.stepped

    def arrive(self, sequence: Sequence, *, now: float) -> None:
        self._drive.join(Call(self._ticket(sequence, now=now), (sequence,)), now=now)

    def granted(self, call: Call, *, now: float) -> None:
        """Its sequence knows."""

    def ended(self, call: Call, *, now: float) -> None:
        """Likewise."""

    def refused(self, call: Call, reason: RejectReason, *, now: float) -> None:
        self.refusals[reason] += 1

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
