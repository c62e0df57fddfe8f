"""One run: a trace, a door and an engine on a simulated clock. Deterministic: nothing is drawn, nothing is timed."""

from dataclasses import dataclass, field
from typing import Protocol

from gateway.replay import loop
from gateway.replay.engine import Arrival, Engine, Sequence
from gateway.replay.profiles import EngineProfile


class Door(loop.Door, Protocol):
    """Who lets requests into the engine."""

    def arrive(self, sequence: Sequence, *, now: float) -> None: ...


@dataclass(slots=True)
class Run:
    """What a run leaves behind. used_share, running: means over the time between the two ends of `counted` arrivals."""

    sequences: list[Sequence]
    counted: list[Sequence]
    span_s: float
    preemptions: int = 0
    recomputed_share: float = 0.0
    used_share: float = 0.0
    peak_share: float = 0.0
    running: float = 0.0
    end_s: float = 0.0
    refusals: dict[str, int] = field(default_factory=dict)


class DoorFactory(Protocol):
    def __call__(self, engine: Engine) -> Door: ...


class _Arrivals:
    """All sequences of a run, in the order of their arrival."""

    def __init__(self, sequences: list[Sequence], door: Door) -> None:
        self._sequences = sequences
        self._door = door
        self._next = 0

    def next_at(self) -> float | None:
        return self._sequences[self._next].arrival.at if self._next < len(self._sequences) else None

    def come(self, *, now: float) -> None:
        self._next += 1
        self._door.arrive(self._sequences[self._next - 1], now=now)


def simulate(arrivals: list[Arrival], profile: EngineProfile, make_door: DoorFactory, *, warm_share: float) -> Run:
    """Run the trace to its end: everybody finished or refused. The first `warm_share` of requests is not counted."""
    engine = Engine(profile)
    door = make_door(engine)
    sequences = [Sequence(index, arrival) for index, arrival in enumerate(arrivals)]
    counted = sequences[int(warm_share * len(sequences)) :]
    start, last = counted[0].arrival.at, counted[-1].arrival.at
    run = Run(sequences, counted, last - start)
    block_seconds = sequence_seconds = 0.0

    def watch(engine: Engine, seconds: float, *, end: float) -> None:
        nonlocal block_seconds, sequence_seconds
        if start <= end <= last:
            block_seconds += engine.used_blocks * seconds
            sequence_seconds += engine.running * seconds
        run.peak_share = max(run.peak_share, engine.used_blocks / profile.blocks)

    run.end_s = loop.run(_Arrivals(sequences, door), door, [engine], watch=watch)
    run.preemptions = engine.preemptions
    run.recomputed_share = engine.recomputed_tokens / max(engine.computed_tokens, 1)
    run.used_share = block_seconds / (run.span_s * profile.blocks)
    run.running = sequence_seconds / run.span_s
    return run
