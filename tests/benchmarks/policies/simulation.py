"""One run: a trace, a door and an engine on a simulated clock. Deterministic: nothing is drawn, nothing is timed."""

from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.policies.engine import Engine, Sequence
from benchmarks.policies.profiles import EngineProfile
from benchmarks.policies.traces import Arrival


class Door(Protocol):
    """Who lets requests into the engine. Called in the order of simulated time.

    next_event: when `act` wants to be called next, None if it need not be.
    """

    def arrive(self, sequence: Sequence, *, now: float) -> None: ...

    def act(self, *, now: float) -> None: ...

    def next_event(self) -> float | None: ...

    def answered(self, sequence: Sequence, *, now: float) -> None: ...

    def finished(self, sequence: Sequence, *, now: float) -> None: ...

    def stepped(self, seconds: float, *, now: float) -> None: ...


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


def simulate(arrivals: list[Arrival], profile: EngineProfile, make_door: DoorFactory, *, warm_share: float) -> Run:
    """Run the trace to its end: everybody finished or refused. The first `warm_share` of requests is not counted."""
    engine = Engine(profile)
    door = make_door(engine)
    sequences = [Sequence(index, arrival) for index, arrival in enumerate(arrivals)]
    counted = sequences[int(warm_share * len(sequences)) :]
    start, end = counted[0].arrival.at, counted[-1].arrival.at
    run = Run(sequences, counted, end - start)
    block_seconds = sequence_seconds = 0.0
    now = 0.0
    index = 0
    while True:
        step_s = engine.plan(now=now)
        step_end = None if step_s is None else now + step_s
        # Everything from outside that happens while the step runs, in the order of time.
        while True:
            arrival_at = sequences[index].arrival.at if index < len(sequences) else None
            door_at = door.next_event()
            outside = min((at for at in (arrival_at, door_at) if at is not None), default=None)
            if outside is None or (step_end is not None and outside > step_end):
                break
            now = max(now, outside)
            if arrival_at is not None and arrival_at <= now:
                door.arrive(sequences[index], now=now)
                index += 1
            else:
                door.act(now=now)
            if step_end is None and engine.waiting:
                break
        if step_end is None or step_s is None:
            if engine.waiting:
                continue
            break
        if start <= step_end <= end:
            block_seconds += engine.used_blocks * step_s
            sequence_seconds += engine.running * step_s
        run.peak_share = max(run.peak_share, engine.used_blocks / profile.blocks)
        now = step_end
        first, done = engine.finish_step(step_s, now=now)
        for sequence in first:
            door.answered(sequence, now=now)
        for sequence in done:
            door.finished(sequence, now=now)
        door.stepped(step_s, now=now)
    run.end_s = now
    run.preemptions = engine.preemptions
    run.recomputed_share = engine.recomputed_tokens / max(engine.computed_tokens, 1)
    run.used_share = block_seconds / (run.span_s * profile.blocks)
    run.running = sequence_seconds / run.span_s
    return run
