"""The engine model: vLLM-v1-like continuous batching on a simulated clock, step by step but with O(1) work per step.

First come, first served. In one step every running sequence gets its next token; what is left of the step's token budget goes
to prompts, in chunks. A sequence starts when its whole prompt (or, after a preemption, all it had) fits into free blocks. When
running sequences need more blocks than are free, the one that started last loses all of its blocks, goes to the head of the
waiting line and is computed again from scratch. What a prefix cache has of a prompt is not computed; what it has, others say.

All sequences that decode advance by one token in every step, so nothing is done per sequence and step: a counter says how
many decoding steps there were, a heap at which count each ends, and sixteen numbers how many cross into a new block when.
"""

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Final

from gateway.replay.profiles import EngineProfile

FREEZE_S: Final = 1.0
_LEAST_STARTED: Final = 1024


@dataclass(frozen=True, slots=True)
class Arrival:
    """What an engine is asked. at: seconds from the start of the trace. Both token counts are at least 1."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(eq=False, slots=True)
class Sequence:
    """One request in the engine, with what happened to it. Times in simulated seconds.

    granted_at: when a gate let it in; None where there is no gate. cached_tokens: of its prompt, those that a prefix cache
    has when it starts first; after a preemption they are gone like all others.
    generated: tokens produced when it last started to decode; produced() tells them now.
    frozen: some gap between two of its tokens was longer than FREEZE_S.
    """

    id: int
    arrival: Arrival
    granted_at: float | None = None
    cached_tokens: int = 0
    first_token_at: float | None = None
    done_at: float | None = None
    preemptions: int = 0
    frozen: bool = False
    # The engine's own.
    state: str = "new"  # new, waiting, prefill, decode, finished
    generated: int = 0
    computed: int = 0  # prompt progress while in prefill
    decode_from: int = 0  # the engine's count of decoding steps when it began to decode
    last_token_at: float = 0.0

    @property
    def known_tokens(self) -> int:
        """Tokens to compute when it starts: prompt and what it had produced."""
        return self.arrival.prompt_tokens + self.generated


class Engine:
    """`plan` decides on the next step and says how long it takes; `finish_step` is its end."""

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.computed_tokens = 0
        self.used_blocks = 0
        self.decoding = 0  # sequences that get a token in every step
        self.unanswered_tokens = 0  # prompt tokens of sequences without a first token, waiting or being computed
        self._started: list[Sequence] = []  # decoding or prefilling, in order of their start; ended ones stay for a while
        self._most_started = _LEAST_STARTED
        self._steps = 0
        self._ends: list[tuple[int, int, Sequence]] = []
        self._phases = [0] * profile.block_tokens  # decoding sequences by (computed tokens - steps) mod block
        self._cache_tokens = 0
        self._partial: Sequence | None = None
        self._chunks: list[tuple[Sequence, int]] = []
        self._last_freeze = -1  # count of steps at the last step longer than FREEZE_S
        self._last_step_at = 0.0
        self._keep_free = int(profile.watermark * profile.blocks)

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return self.decoding + max(len(self._chunks), int(self._partial is not None))

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.waiting or self.decoding or self._partial is not None)

    def produced(self, sequence: Sequence) -> int:
        """Output tokens of a sequence so far."""
        if sequence.state == "decode":
            return sequence.generated + self._steps - sequence.decode_from
        return sequence.generated

    def add(self, sequence: Sequence) -> None:
        """A request arrives at the engine's own line, which has no end."""
        sequence.state = "waiting"
        self.waiting.append(sequence)
        self.unanswered_tokens += sequence.arrival.prompt_tokens

    def abort(self, sequence: Sequence) -> None:
        """A client leaves before its first token. Its blocks are free at once."""
        if sequence.state == "waiting":
            self.waiting.remove(sequence)
        elif sequence.state == "prefill":
            self.used_blocks -= self._blocks(sequence.known_tokens)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not sequence]
            if self._partial is sequence:
                self._partial = None
        else:
            raise ValueError(f"request {sequence.id} cannot be left in state {sequence.state}")
        self.unanswered_tokens -= sequence.arrival.prompt_tokens
        sequence.state = "finished"

    def plan(self, *, now: float) -> float | None:
        """Choose what the next step computes, preempting where blocks run out. Seconds that it takes; None: nothing to do."""
        profile = self.profile
        preempted = self._make_room()
        self.used_blocks += self._phases[-self._steps % profile.block_tokens]
        budget = profile.step_tokens - self.decoding
        self._chunks = []
        attention = 0.0
        if self._partial is not None and budget > 0:
            budget -= self._take_chunk(self._partial, budget)
        while not preempted and budget > 0 and self.waiting and self.running < profile.max_running:
            sequence = self.waiting[0]
            blocks = self._blocks(sequence.known_tokens)
            spare = self._keep_free if self.running or self._chunks else 0
            if blocks + spare > profile.blocks - self.used_blocks:
                break
            self.waiting.popleft()
            self.used_blocks += blocks
            sequence.state = "prefill"
            # The last token of a prompt is computed always: from it comes the first of the answer.
            sequence.computed = min(sequence.cached_tokens, sequence.known_tokens - 1)
            self._note_started(sequence)
            budget -= self._take_chunk(sequence, budget)
        prompt_tokens = 0
        for sequence, tokens in self._chunks:
            prompt_tokens += tokens
            attention += tokens * (sequence.computed + tokens / 2)
        tokens = self.decoding + prompt_tokens
        if tokens == 0:
            return None
        self.computed_tokens += prompt_tokens
        return (
            profile.fixed_s
            + profile.sequence_s * (self.decoding + len(self._chunks))
            + profile.prompt_token_s * prompt_tokens
            + max(profile.weights_s, profile.token_s * tokens)
            + profile.cache_token_s * self._cache_tokens
            + profile.attention_s * attention
        )

    def finish_step(self, seconds: float, *, now: float) -> tuple[list[Sequence], list[Sequence]]:
        """The step is over at `now`: sequences that got their first token in it, and those that are done."""
        first: list[Sequence] = []
        done: list[Sequence] = []
        block_tokens = self.profile.block_tokens
        self._cache_tokens += self.decoding  # each of them wrote one more token
        self._steps += 1
        if seconds > FREEZE_S and self.decoding:
            self._last_freeze = self._steps
        while self._ends and self._ends[0][0] <= self._steps:
            end, _, sequence = heapq.heappop(self._ends)
            if sequence.state != "decode" or sequence.decode_from + sequence.arrival.output_tokens - sequence.generated != end:
                continue  # an entry from before a preemption
            sequence.frozen |= self._last_freeze > sequence.decode_from
            self._leave_decoding(sequence)
            self._end(sequence, done, now=now)
        for sequence, tokens in self._chunks:
            sequence.computed += tokens
            if sequence.computed < sequence.known_tokens:
                self._partial = sequence
                continue
            if sequence is self._partial:
                self._partial = None
            if sequence.first_token_at is None:
                sequence.first_token_at = now
                self.unanswered_tokens -= sequence.arrival.prompt_tokens
                first.append(sequence)
            elif now - sequence.last_token_at > FREEZE_S:
                sequence.frozen = True
            self._cache_tokens += sequence.computed
            self.decoding += 1
            self._phases[(sequence.computed - self._steps) % block_tokens] += 1
            sequence.state = "decode"
            sequence.generated += 1
            sequence.decode_from = self._steps
            end = self._steps + sequence.arrival.output_tokens - sequence.generated
            if end == self._steps:
                self._leave_decoding(sequence)
                self._end(sequence, done, now=now)
            else:
                heapq.heappush(self._ends, (end, sequence.id, sequence))
        self._chunks = []
        self._last_step_at = now
        return first, done

    def _end(self, sequence: Sequence, done: list[Sequence], *, now: float) -> None:
        sequence.state = "finished"
        sequence.generated = sequence.arrival.output_tokens
        sequence.done_at = now
        done.append(sequence)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)

    def _note_started(self, sequence: Sequence) -> None:
        self._started.append(sequence)
        if len(self._started) > self._most_started:
            self._started = [started for started in self._started if started.state in ("prefill", "decode")]
            self._most_started = 2 * len(self._started) + _LEAST_STARTED

    def _take_chunk(self, sequence: Sequence, budget: int) -> int:
        tokens = min(budget, sequence.known_tokens - sequence.computed)
        self._chunks.append((sequence, tokens))
        if sequence.generated:
            self.recomputed_tokens += tokens
        return tokens

    def _make_room(self) -> bool:
        """Preempt until the next token of every decoding sequence has a block. Whether anybody was preempted."""
        if not self.decoding:
            return False
        phase = -self._steps % self.profile.block_tokens
        preempted = False
        while self._phases[phase] > self.profile.blocks - self.used_blocks:
            victim = self._started.pop()
            if victim.state == "prefill":
                self.used_blocks -= self._blocks(victim.known_tokens)
                if self._partial is victim:
                    self._partial = None
            elif victim.state == "decode":
                produced = self.produced(victim)
                victim.frozen |= self._last_freeze > victim.decode_from
                victim.last_token_at = self._last_step_at
                self._leave_decoding(victim)
                victim.generated = produced
            else:
                continue  # it had ended long ago
            victim.state = "waiting"
            victim.computed = 0
            victim.cached_tokens = 0
            victim.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            preempted = True
        return preempted

    def _leave_decoding(self, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that decodes."""
        computed = sequence.arrival.prompt_tokens + self.produced(sequence) - 1
        self.used_blocks -= self._blocks(computed)
        self._cache_tokens -= computed
        self.decoding -= 1
        self._phases[(computed - self._steps) % self.profile.block_tokens] -= 1
        sequence.state = "left"
