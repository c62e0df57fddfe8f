"""The pretend engine: steps that take time, and generations that callers follow.

One task runs the steps while there is work. Callers hand in a `Generation` (the sequences of one request) and wait for its
`changed` event; how far each sequence has come is in the sequence itself.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gateway.simulator.block_pool import BlockPool
from gateway.simulator.pace import Pace
from gateway.simulator.scheduler import Scheduler, Sequence

CATCH_UP_S: Final = 0.25


class EngineBusy(Exception):
    """More sequences wait than the engine takes."""


class EngineStopped(Exception):
    """The engine has ended; its generations will not go on."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What the engine is made of.

    num_blocks: KV blocks with the null block. max_waiting: sequences that may wait, a bound on memory. max_context: tokens
    (max_model_len). Raises ValueError, as vLLM does at start, if one whole context does not fit into the pool.
    """

    num_blocks: int = 1025
    block_tokens: int = 16
    max_context: int = 8192
    max_running: int = 256
    step_tokens: int = 2048
    max_waiting: int = 4096
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if (self.num_blocks - 1) * self.block_tokens < self.max_context:
            raise ValueError(
                f"a context of {self.max_context} tokens needs {-(-self.max_context // self.block_tokens)} blocks; "
                f"there are {self.num_blocks - 1}, as one of {self.num_blocks} never holds tokens"
            )

    @property
    def cache_tokens(self) -> int:
        """What vLLM calls kv_cache_size_tokens: contexts that fit, times the context. The null block is counted in."""
        context_blocks = -(-self.max_context // self.block_tokens)
        return int(self.num_blocks / context_blocks * self.max_context)


@dataclass(eq=False, slots=True)
class Generation:
    """The sequences of one request. `changed` is set when there is news: a new token, or one of the two that follow.

    stopped: the engine ended first. client_gone: nobody wants it any more (set by the server).
    """

    sequences: tuple[Sequence, ...]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False
    client_gone: bool = False

    @property
    def is_finished(self) -> bool:
        return all(sequence.state == "finished" for sequence in self.sequences)


@dataclass(slots=True)
class Gauges:
    """What the engine shows of itself. Set at the end of a step, after what finished was freed: so it lags, as vLLM's does."""

    running: int = 0
    waiting: int = 0
    used_fraction: float = 0.0


class Engine:
    """Runs generations. `start()` and `stop()` own its one task."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self.scheduler = Scheduler(
            BlockPool(shape.num_blocks, shape.block_tokens), max_running=shape.max_running, step_tokens=shape.step_tokens
        )
        self.gauges = Gauges()
        self.prompt_tokens = 0  # counted when a sequence has its first token, as vLLM does
        self.generation_tokens = 0
        self.steps = 0
        self.finished: Counter[str] = Counter()  # sequences by finish reason, counted by the server
        self._owners: dict[Sequence, Generation] = {}
        self._work_came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"pretend engine: {self.scheduler!r}"

    def start(self) -> None:
        """Begin to run steps. Needs a running event loop."""
        self._task = asyncio.create_task(self._run(), name="simulator-engine")

    async def stop(self) -> None:
        """End at once: every generation in progress is woken with `stopped` set, as when vLLM's core process dies."""
        self.halt()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def halt(self) -> None:
        """The part of `stop()` that needs no waiting: no further step counts, everybody is told."""
        self._is_stopped = True
        for generation in set(self._owners.values()):
            generation.stopped = True
            self.abort(generation)
            generation.changed.set()

    def submit(self, sequences: tuple[Sequence, ...]) -> Generation:
        """Let sequences run. Raises EngineBusy or EngineStopped. Who loses interest in a generation ends it by `abort`."""
        if self._is_stopped:
            raise EngineStopped
        if len(self.scheduler.waiting) + len(sequences) > self.shape.max_waiting:
            raise EngineBusy
        generation = Generation(sequences)
        for sequence in sequences:
            self.scheduler.add(sequence)
            self._owners[sequence] = generation
        self._work_came.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """End what is left of a generation and free its blocks; nothing happens to one that has finished."""
        for sequence in generation.sequences:
            if self._owners.pop(sequence, None) is not None:
                self.scheduler.abort(sequence)
        if not self.scheduler.has_work:
            self._show()  # no further step will do it

    def _show(self) -> None:
        scheduler = self.scheduler
        self.gauges.running = len(scheduler.running)
        self.gauges.waiting = len(scheduler.waiting)
        self.gauges.used_fraction = scheduler.pool.used / scheduler.pool.usable

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pace = self.shape.pace
        due = loop.time()
        while True:
            if not self.scheduler.has_work:
                self._work_came.clear()
                await self._work_came.wait()
                due = loop.time()
            step = self.scheduler.plan()
            length_s = pace.duration_s(sequences=len(step.work), prefill_tokens=step.prefill_tokens)
            # From when the last step was due, not from now, so that a busy machine does not slow the pace; but no more than
            # CATCH_UP_S is caught up, or one that stood still would be followed by a burst.
            due = max(due, loop.time() - CATCH_UP_S) + length_s
            await asyncio.sleep(due - loop.time())
            self.steps += 1
            for sequence in self.scheduler.advance(step):
                self._follow(sequence)
            self._show()

    def _follow(self, sequence: Sequence) -> None:
        self.generation_tokens += 1
        if sequence.generated == 1:
            self.prompt_tokens += sequence.prompt_tokens
        generation = self._owners[sequence]
        if sequence.state == "finished":
            del self._owners[sequence]
        generation.changed.set()
