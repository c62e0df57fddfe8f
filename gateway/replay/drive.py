"""The real book before model engines, driven as the controller, the relay and the roster drive it.

A ticket joins when its request arrives; a grant goes to the engine, which takes a moment; first tokens are told as they come,
progress and gaps at every tick, an engine's preemption counter at every reading; the end of a request releases what it holds
in the same instant, and its length is learned from. Prompts that are weighed by a bound are counted exactly while somebody
waits, as the gateway does in the background; here that takes no time.

It promises: every call that joins is granted and then ends, or is refused, and its listener hears of each once.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.admission.running_answer import STEP_TOKENS
from gateway.books import BookContract
from gateway.core.commitment import Ending
from gateway.core.decisions import Changes, Granted, Queued, Refused
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.ticket import Need, Ticket
from gateway.replay.engine import Engine, Sequence

# The relay looks four times a second; half as often costs half the time and changes nothing.
TICK_S: Final = 0.5
READING_S: Final = 2.0
# From a grant to the engine's own line: an answer's end is relayed, the next request is sent, and read. Little, and yet more
# than an engine waits between two steps, so that who takes the room of one that has ended misses the step after it.
HANDOVER_S: Final = 0.002


@dataclass(eq=False, slots=True)
class Call:
    """One request on its way. Times in simulated seconds, None until it happened.

    sequences: what it becomes in an engine. is_stream: its tokens can be seen as they come. exact_needs: what it needs by an
    exact count, where it was weighed by a bound. charged_at_start, charged_at_end: blocks held at its grant and its end.
    answered_by: when its prompt counts as computed whatever was seen.
    """

    ticket: Ticket
    sequences: tuple[Sequence, ...]
    is_stream: bool = True
    exact_needs: Mapping[BackendName, Need] | None = None
    backend: BackendName | None = None
    granted_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    charged_at_start: int = 0
    charged_at_end: int = 0
    answered_by: float = 0.0
    told_tokens: int = 0
    running: int = 0  # sequences that have not ended

    @property
    def prompt_tokens(self) -> int:
        """As the engine counts it, of one sequence."""
        return self.sequences[0].arrival.prompt_tokens

    @property
    def output_tokens(self) -> int:
        """Of all its sequences."""
        return sum(sequence.arrival.output_tokens for sequence in self.sequences)


class Listener(Protocol):
    """Who wants to know what became of calls."""

    def granted(self, call: Call, *, now: float) -> None: ...

    def refused(self, call: Call, reason: RejectReason, *, now: float) -> None: ...

    def ended(self, call: Call, *, now: float) -> None: ...


class _Page:
    """One backend: its engine, and what was seen since it was last told."""

    __slots__ = ("engine", "gap_seconds", "gap_tokens", "name", "plain")

    def __init__(self, name: BackendName, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.gap_seconds = 0.0
        self.gap_tokens = 0
        self.plain = 0  # running sequences whose tokens cannot be seen


class BookDrive:
    """`loop.run` calls it in the order of simulated time. step_tokens: tokens after which progress is told; None: never, for
    a commitment that counts nothing by it. handover_s: from a grant to the engine's own line."""

    def __init__(
        self,
        book: BookContract,
        engines: Mapping[BackendName, Engine],
        *,
        budget: Budget,
        listener: Listener,
        step_tokens: int | None = STEP_TOKENS,
        handover_s: float = HANDOVER_S,
    ) -> None:
        self.book = book
        self._listener = listener
        self._step_tokens = step_tokens
        self._handover_s = handover_s
        self._on_the_way: deque[tuple[float, Engine, Sequence]] = deque()
        self._pages = {name: _Page(name, engine) for name, engine in engines.items()}
        self._page_of = {page.engine: page for page in self._pages.values()}
        self._waiting: dict[TicketId, Call] = {}
        self._running: dict[TicketId, Call] = {}
        self._unanswered: dict[TicketId, Call] = {}
        self._bounded: dict[TicketId, Call] = {}
        self._calls: dict[Sequence, Call] = {}
        self._next_tick = TICK_S
        self._next_reading = READING_S
        for name in engines:
            self._deliver(book.set_backend(name, budget=budget, serving=True, now=0.0), now=0.0)
        self._read_engines(now=0.0)

    @property
    def waiting(self) -> int:
        """Calls in line."""
        return len(self._waiting)

    def join(self, call: Call, *, now: float) -> None:
        """A request asks to run."""
        ticket = call.ticket
        if call.exact_needs is not None:
            self._bounded[ticket.id] = call
        self._waiting[ticket.id] = call
        match self.book.join(ticket, now=now):
            case Granted() as granted:
                self._start(granted, now=now)
            case Refused() as refused:
                self._refuse(refused, now=now)
            case Queued():
                pass
        if self._bounded and self._waiting:
            self._recount(now=now)

    # What the loop asks and tells

    def next_event(self) -> float | None:
        """When `act` wants to be called next, None if it need not be."""
        deadline = self.book.next_deadline()
        if not self._running:
            return deadline
        soonest = min(self._next_tick, self._on_the_way[0][0]) if self._on_the_way else self._next_tick
        return soonest if deadline is None else min(deadline, soonest)

    def act(self, *, now: float) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, engine, sequence = self._on_the_way.popleft()
            engine.add(sequence)
        if self._running and now >= self._next_tick:
            self._next_tick = now + TICK_S
            if now >= self._next_reading:
                self._next_reading = now + READING_S
                self._read_engines(now=now)
            self._tell(now=now)
        self._deliver(self.book.expire(now=now), now=now)

    def answered(self, sequence: Sequence, *, now: float) -> None:
        call = self._calls[sequence]
        if call.first_token_at is None:
            call.first_token_at = now
            if call.is_stream and self._unanswered.pop(call.ticket.id, None) is not None:
                self._deliver(self.book.first_token(call.ticket.id, now=now), now=now)

    def finished(self, sequence: Sequence, *, now: float) -> None:
        call = self._calls.pop(sequence)
        call.running -= 1
        if call.running == 0:
            self._end(call, now=now)

    def stepped(self, engine: Engine, seconds: float, *, now: float) -> None:
        page = self._page_of[engine]
        seen = engine.decoding if not page.plain else max(engine.decoding - page.plain, 0)
        page.gap_seconds += seconds * seen
        page.gap_tokens += seen

    # The way of a call

    def _start(self, granted: Granted, *, now: float) -> None:
        call = self._waiting.pop(granted.ticket.id)
        ticket_id = call.ticket.id
        call.backend = granted.backend
        call.granted_at = now
        call.charged_at_start = granted.charged_blocks
        call.answered_by = now + self.book.prefill_patience_s(ticket_id, is_stream=call.is_stream)
        call.running = len(call.sequences)
        self._running[ticket_id] = self._unanswered[ticket_id] = call
        page = self._pages[granted.backend]
        page.plain += 0 if call.is_stream else call.running
        self._listener.granted(call, now=now)
        for sequence in call.sequences:
            sequence.granted_at = now
            self._calls[sequence] = call
            if self._handover_s:
                self._on_the_way.append((now + self._handover_s, page.engine, sequence))
            else:
                page.engine.add(sequence)

    def _end(self, call: Call, *, now: float) -> None:
        ticket, backend = call.ticket, call.backend
        assert backend is not None, "it was granted"
        call.ended_at = now
        del self._running[ticket.id]
        self._unanswered.pop(ticket.id, None)
        self._bounded.pop(ticket.id, None)
        self._pages[backend].plain -= 0 if call.is_stream else len(call.sequences)
        changes = self.book.release(ticket.id, now=now)
        call.charged_at_end = changes.released_blocks or 0
        self._listener.ended(call, now=now)
        self._deliver(changes, now=now)
        pace, output_tokens = self.book.pace(backend), call.output_tokens
        assert call.granted_at is not None, "it was granted"
        seconds = None if call.is_stream else now - call.granted_at
        pace.saw_answer(output_tokens=output_tokens, text_bytes=0, seconds=seconds)
        pace.saw_prompt(ticket.prompt_tokens, call.prompt_tokens, call.sequences[0].cached_tokens)
        ending = Ending.CAPPED if output_tokens == ticket.cap_tokens else Ending.FINISHED
        self._deliver(self.book.learn(ticket, output_tokens, ending, now=now), now=now)

    def _refuse(self, refused: Refused, *, now: float) -> None:
        call = self._waiting.pop(refused.ticket.id)
        self._bounded.pop(refused.ticket.id, None)
        call.ended_at = now
        self._listener.refused(call, refused.reason, now=now)

    def _deliver(self, changes: Changes, *, now: float) -> None:
        for granted in changes.granted:
            self._start(granted, now=now)
        for refused in changes.refused:
            self._refuse(refused, now=now)

    def _recount(self, *, now: float) -> None:
        """Somebody waits: those that were weighed by a bound are counted exactly, the oldest first."""
        while self._bounded and self._waiting:
            ticket_id = next(iter(self._bounded))
            call = self._bounded.pop(ticket_id)
            needs = call.exact_needs
            if needs is not None and (call.backend is None or call.backend in needs):
                self._deliver(self.book.reweigh(ticket_id, needs, now=now), now=now)

    # What is seen from outside

    def _tell(self, *, now: float) -> None:
        """What the relay has seen since the last tick."""
        for page in self._pages.values():
            if page.gap_tokens:
                seen = self.book.saw_gaps(page.name, page.gap_seconds, page.gap_tokens, now=now)
                page.gap_seconds, page.gap_tokens = 0.0, 0
                self._deliver(seen, now=now)
        for call in [call for call in self._unanswered.values() if now > call.answered_by]:
            if self._unanswered.pop(call.ticket.id, None) is not None:
                self._deliver(self.book.first_token(call.ticket.id, was_seen=False, now=now), now=now)
        if self._step_tokens is not None:
            for call in list(self._running.values()):
                tokens = self._seen_tokens(call, now=now)
                if tokens >= call.told_tokens + self._step_tokens * len(call.sequences):
                    call.told_tokens = tokens
                    self._deliver(self.book.progress(call.ticket.id, tokens, now=now), now=now)

    def _seen_tokens(self, call: Call, *, now: float) -> int:
        """Tokens of an answer as far as can be told from outside."""
        assert call.backend is not None, "it runs"
        if call.is_stream:
            produced = self._pages[call.backend].engine.produced
            return sum(produced(sequence) for sequence in call.sequences)
        assert call.granted_at is not None, "it runs"
        pace = self.book.pace(call.backend)
        return pace.progress(events=0, text_bytes=0, elapsed_s=now - call.granted_at) * len(call.sequences)

    def _read_engines(self, *, now: float) -> None:
        for page in self._pages.values():
            seen = self.book.read_engine(page.name, page.engine.preemptions, overrun_fails_all=False, now=now)
            self._deliver(seen, now=now)
