"""Continuous batching with preemption by recomputation, as vLLM's scheduler does it. Pure: no clock, no I/O.

`plan()` decides what the next step computes, `advance(step)` is its end. In one step every running sequence gets its next
token, and prompts are computed in chunks, all within `step_tokens`. A sequence owns blocks for the tokens computed so far, so
one with `prompt + output` tokens ends with ceil((prompt + output - 1) / block): its last token is never written.

First come, first served: a waiting sequence starts when its whole prompt fits into free blocks, and nobody passes it. When a
running one needs a block and none is free, the sequence that arrived last among the running loses all of its blocks, goes to
the head of the waiting line, and what it had (prompt and output) is computed again from scratch when it returns.

Invariants: blocks owned by running sequences = blocks used; a waiting sequence owns none; a sequence is waiting, running or
finished, once each; tokens that were generated are never lost.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from gateway.simulator.block_pool import BlockPool

State = Literal["waiting", "running", "finished"]


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of one prompt. Tokens are counted, not stored.

    output_tokens: how many it will generate, at least 1. computed: tokens whose KV is in its blocks.
    """

    prompt_tokens: int
    output_tokens: int
    generated: int = 0
    computed: int = 0
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    state: State = "waiting"

    @property
    def known_tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes: tokens of each sequence. prefill_tokens: those of them that belong to (re)computed context."""

    work: tuple[tuple[Sequence, int], ...]
    prefill_tokens: int


class Scheduler:
    """Sequences over one block pool."""

    def __init__(self, pool: BlockPool, *, max_running: int = 256, step_tokens: int = 2048) -> None:
        """max_running: sequences in the batch (max_num_seqs). step_tokens: tokens in a step (max_num_batched_tokens)."""
        self.pool = pool
        self.max_running = max_running
        self.step_tokens = step_tokens
        self.running: list[Sequence] = []  # in order of arrival, except that a preempted one returns at the end
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0

    def __repr__(self) -> str:
        return f"{len(self.running)} running, {len(self.waiting)} waiting, {self.preemptions} preemptions, {self.pool!r}"

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line. Raises ValueError for one that could never fit: it would wait for ever."""
        most = sequence.prompt_tokens + sequence.output_tokens - 1
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 1 or self.pool.blocks_for(most) > self.pool.usable:
            raise ValueError(f"a sequence of {sequence.prompt_tokens} + {sequence.output_tokens} tokens cannot run here")
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence in whatever state; its blocks are free at once. One that is finished stays so."""
        if sequence.state == "running":
            self.running.remove(sequence)
        elif sequence.state == "waiting":
            self.waiting.remove(sequence)
        sequence.state = "finished"
        self.pool.give_back(sequence.blocks)

    def plan(self) -> Step:
        """Choose the work of the next step, preempting where blocks run out. Blocks for it are owned from now on."""
        budget = self.step_tokens
        work: list[tuple[Sequence, int]] = []
        prefill_tokens = 0
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            tokens = min(sequence.known_tokens - sequence.computed, budget)
            fits, has_preempted = self._make_room(sequence, tokens)
            preempted |= has_preempted
            if not fits:
                break  # it was the last of all and has itself been preempted
            work.append((sequence, tokens))
            budget -= tokens
            prefill_tokens += tokens if sequence.known_tokens - sequence.computed > 1 else 0
            position += 1
        # In a step that had to preempt nobody new starts: the room just made would be gone again at once.
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            if self.pool.blocks_for(sequence.known_tokens) > self.pool.free:
                break
            self.waiting.popleft()
            sequence.state = "running"
            self.running.append(sequence)
            tokens = min(sequence.known_tokens, budget)
            # The whole prompt's blocks are taken at once, though it may be computed in several chunks: else two long prompts
            # that were let in on the same free blocks would preempt each other before either has said a word.
            sequence.blocks.extend(self.pool.take(self.pool.blocks_for(sequence.known_tokens)))
            work.append((sequence, tokens))
            budget -= tokens
            prefill_tokens += tokens
        return Step(tuple(work), prefill_tokens)

    def advance(self, step: Step) -> list[Sequence]:
        """The end of a step: the sequences that got a token in it, in order. Finished ones have given their blocks back."""
        progressed: list[Sequence] = []
        has_finished = False
        for sequence, tokens in step.work:
            if sequence.state != "running":
                continue  # aborted while the step ran
            sequence.computed += tokens
            if sequence.computed < sequence.known_tokens:
                continue  # a chunk of a prompt: no token yet
            sequence.generated += 1
            progressed.append(sequence)
            if sequence.generated >= sequence.output_tokens:
                sequence.state = "finished"
                self.pool.give_back(sequence.blocks)
                has_finished = True
        if has_finished:
            self.running = [sequence for sequence in self.running if sequence.state == "running"]
        return progressed

    def _make_room(self, sequence: Sequence, tokens: int) -> tuple[bool, bool]:
        """Own blocks for `tokens` more of a running sequence: whether it could, and whether that preempted anybody."""
        preempted = False
        missing = self.pool.blocks_for(sequence.computed + tokens) - len(sequence.blocks)
        while missing > self.pool.free:
            victim = self.running.pop()
            preempted = True
            self._preempt(victim)
            if victim is sequence:
                return False, True
        if missing > 0:
            sequence.blocks.extend(self.pool.take(missing))
        return True, preempted

    def _preempt(self, victim: Sequence) -> None:
        self.pool.give_back(victim.blocks)
        victim.computed = 0
        victim.preemptions += 1
        victim.state = "waiting"
        self.waiting.appendleft(victim)
        self.preemptions += 1
