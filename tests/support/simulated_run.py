"""The book before the simulator's own scheduler, on a clock that is only counted: hours of an engine in seconds, and the same
each time.

    run = SimulatedRun(EngineShape(...), commitment="auto")
    run.clients(100, lambda number, draw: Ask(prompt_tokens=50, output_tokens=draw.randrange(1, 400)))
    run.until(60.0)

What the relay and the roster do on a real socket is done here as they do it: answers are looked at four times a second,
the engine every two seconds, an end is a release and then a lesson.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.admission.running_answer import Reports, RunningAnswer
from gateway.books import memory_book
from gateway.core.commitment import Ending, Evidence
from gateway.core.decisions import Changes, Granted, Mode, Queued, Refused
from gateway.core.geometry import Weighing
from gateway.core.guards import Guards
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TicketId
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket
from gateway.simulator.block_pool import BlockPool
from gateway.simulator.engine import EngineShape
from gateway.simulator.scheduler import Scheduler, Sequence
from support.tickets import A

LOOK_S = 0.25
READ_S = 2.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks next. output_tokens: what the answer becomes. cap_tokens: what it sends as a cap, None: nothing."""

    prompt_tokens: int
    output_tokens: int
    cap_tokens: int | None = None


MakeAsk = Callable[[int, random.Random], Ask]


@dataclass(eq=False, slots=True)
class _Call:
    client: int
    ask: Ask
    sequence: Sequence
    ticket: Ticket
    running: RunningAnswer | None = None
    last_token: float | None = None


@dataclass(slots=True)
class Seen:
    """What was observed since the last `forget`. gaps: between two tokens of a stream, in seconds."""

    ended: int = 0
    refused: int = 0
    most_in_flight: int = 0
    gaps: list[float] = field(default_factory=list)

    def gap(self, part: float) -> float:
        return sorted(self.gaps)[int(part * (len(self.gaps) - 1))]


class SimulatedRun:
    """One engine, one backend, closed-loop clients that ask anew `think_s` after each answer."""

    def __init__(
        self,
        shape: EngineShape,
        *,
        commitment: str = "auto",
        guards: Guards | None = None,
        evidence: Evidence | None = None,
        mode: Mode = Mode.ENFORCE,
        reserve_percent: int = 5,
        seed: int = 1,
        wait_margin: float = 0.1,
    ) -> None:
        self.shape = shape
        self.scheduler = Scheduler(
            BlockPool(shape.num_blocks, shape.block_tokens), max_running=shape.max_running, step_tokens=shape.step_tokens
        )
        self.evidence = evidence if evidence is not None else Evidence()
        self.book = memory_book(
            mode=mode,
            commitment=commitment,
            policy="fifo",
            limits=QueueLimits(max_requests=100_000, wait_margin=wait_margin),
            evidence=self.evidence,
            guards=guards,
        )
        self.now = 0.0
        self.seen = Seen()
        self.patience_s = 1e9
        self.judged: list[tuple[float, bool, float, str]] = []  # when, whether it is forecast, headroom, why
        self._draw = random.Random(seed)
        self._weighing = Weighing(shape.block_tokens, shape.max_context)
        self._make_ask: MakeAsk | None = None
        self._clients = 0
        self._calls: dict[TicketId, _Call] = {}
        self._by_sequence: dict[Sequence, _Call] = {}
        self._next_id = 0
        self._look_at = self._read_at = 0.0
        # Methods, not lambdas: a run can be copied as it stands, and its copy then reports to itself.
        self._reports = Reports(self._progressed, self._answered, self._saw_gaps, self._learned, self._prefill_patience_s)
        blocks = shape.num_blocks - 1
        self.budget = Budget(blocks, -(-blocks * reserve_percent // 100), shape.max_running)
        self.book.set_backend(A, budget=self.budget, serving=True, now=0.0)
        self._read_engine()

    @property
    def preemptions(self) -> int:
        return self.scheduler.preemptions

    @property
    def is_forecast(self) -> bool:
        return self.judged[-1][1]

    @property
    def in_flight(self) -> int:
        return self.book.snapshot(now=self.now).backends[A].in_flight

    def clients(self, number: int, make_ask: MakeAsk) -> None:
        """From now on so many clients ask so; those that already ask go on, with what this gives."""
        self._make_ask = make_ask
        for client in range(self._clients, number):
            self._join(client)
        self._clients = number

    def until(self, instant: float) -> Seen:
        """Run to that instant. Returns what was seen since the last `forget`."""
        pace = self.shape.pace
        while self.now < instant:
            step = self.scheduler.plan()
            if step.work:
                self.now += pace.duration_s(sequences=len(step.work), prefill_tokens=step.prefill_tokens)
            else:
                self.now += LOOK_S / 5
            for sequence in self.scheduler.advance(step):
                self._token(self._by_sequence[sequence])
            if self.now >= self._look_at:
                self._look()
            if self.now >= self._read_at:
                self._read_engine()
            self._happen()
            self._deliver(self.book.expire(now=self.now))
        return self.seen

    def _happen(self) -> None:
        """What comes from outside while a step runs, at its end."""

    def forget(self) -> None:
        self.seen = Seen()

    def _join(self, client: int) -> None:
        assert self._make_ask is not None
        call = self._call(client, self._make_ask(client, self._draw))
        match self.book.join(call.ticket, now=self.now):
            case Granted() as granted:
                self._start(granted)
            case Queued():
                pass
            case Refused():
                self._refused(call.ticket.id)

    def _call(self, client: int, ask: Ask) -> _Call:
        """One request, before it joins."""
        self._next_id += 1
        context = self.shape.max_context
        worst = self._weighing.sequence_blocks(context if ask.cap_tokens is None else ask.prompt_tokens + ask.cap_tokens)
        cap_tokens = context if ask.cap_tokens is None else ask.cap_tokens
        need = Need(worst, 1, ask.prompt_tokens, cap_tokens, self._weighing)
        ticket = Ticket(
            TicketId(self._next_id),
            PoolName("p"),
            {A: need},
            self.now,
            self.now + self.patience_s,
            prompt_tokens=ask.prompt_tokens,
            cap_tokens=ask.cap_tokens,
            family="simulated",
        )
        output_tokens = min(ask.output_tokens, cap_tokens, context - ask.prompt_tokens)
        call = _Call(client, ask, Sequence(ask.prompt_tokens, output_tokens), ticket)
        self._calls[ticket.id] = call
        return call

    def _start(self, granted: Granted) -> None:
        call = self._calls[granted.ticket.id]
        call.running = RunningAnswer(call.ticket, A, self.book.pace(A), self._reports, is_stream=True, now=self.now)
        self._by_sequence[call.sequence] = call
        self.scheduler.add(call.sequence)
        self.seen.most_in_flight = max(self.seen.most_in_flight, self.in_flight)

    def _prefill_patience_s(self, ticket: Ticket, is_stream: bool) -> float:
        return self.book.prefill_patience_s(ticket.id, is_stream=is_stream)

    def _refused(self, ticket_id: TicketId) -> None:
        """A client that was refused does not come back: a closed loop would only try again in the same instant."""
        del self._calls[ticket_id]
        self.seen.refused += 1

    def _deliver(self, changes: Changes) -> None:
        for granted in changes.granted:
            self._start(granted)
        for refused in changes.refused:
            self._refused(refused.ticket.id)

    def _token(self, call: _Call) -> None:
        assert call.running is not None
        if call.last_token is None:
            call.running.first_token(self.now)
        else:
            self.seen.gaps.append(self.now - call.last_token)
        call.last_token = self.now
        if call.sequence.state == "finished":
            del self._by_sequence[call.sequence]
            del self._calls[call.ticket.id]
            self._deliver(self.book.release(call.ticket.id, now=self.now))
            tokens = call.sequence.generated
            ending = Ending.CAPPED if tokens == call.ask.cap_tokens else Ending.FINISHED
            self._deliver(self.book.learn(call.ticket, tokens, ending, now=self.now))
            self.seen.ended += 1
            if call.client < self._clients:
                self._join(call.client)

    def _progressed(self, ticket: Ticket, tokens: int) -> None:
        self._deliver(self.book.progress(ticket.id, tokens, now=self.now))

    def _answered(self, ticket: Ticket, was_seen: bool) -> None:
        self._deliver(self.book.first_token(ticket.id, was_seen=was_seen, now=self.now))

    def _saw_gaps(self, name: BackendName, seconds: float, tokens: int) -> None:
        self._deliver(self.book.saw_gaps(name, seconds, tokens, now=self.now))

    def _learned(self, ticket: Ticket, tokens: int, ending: Ending) -> None:
        self._deliver(self.book.learn(ticket, tokens, ending, now=self.now))

    def _look(self) -> None:
        self._look_at = self.now + LOOK_S
        for call in list(self._by_sequence.values()):
            assert call.running is not None
            call.running.look(
                events=call.sequence.generated,
                text_bytes=0,
                last_read_at=call.last_token if call.last_token is not None else self.now,
                is_blocked=False,
                now=self.now,
            )

    def _read_engine(self) -> None:
        self._read_at = self.now + READ_S
        self._deliver(self.book.read_engine(A, self.scheduler.preemptions, overrun_fails_all=False, now=self.now))
        commitment = self.book.snapshot(now=self.now).backends[A].commitment
        judged = (commitment.is_forecast, commitment.headroom, commitment.why)
        if not self.judged or self.judged[-1][1:] != judged:
            self.judged.append((self.now, *judged))
