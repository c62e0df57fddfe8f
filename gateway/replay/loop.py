"""The clock that is only counted: arrivals, a door and engines, one event after the other in the order of simulated time."""

from collections.abc import Sequence as Many
from typing import Protocol

from gateway.replay.engine import Engine, Sequence

_NEVER = float("inf")


class Door(Protocol):
    """Who lets requests into engines. Called in the order of simulated time.

    next_event: when `act` wants to be called next, None if it need not be. stepped: an engine's step is over.
    """

    def act(self, *, now: float) -> None: ...

    def next_event(self) -> float | None: ...

    def answered(self, sequence: Sequence, *, now: float) -> None: ...

    def finished(self, sequence: Sequence, *, now: float) -> None: ...

    def stepped(self, engine: Engine, seconds: float, *, now: float) -> None: ...


class Arrivals(Protocol):
    """Who comes. next_at: when the next one does, None if nobody will. come: the next one is here."""

    def next_at(self) -> float | None: ...

    def come(self, *, now: float) -> None: ...


class Watch(Protocol):
    """Looks at an engine at the end of each of its steps, before anything is given back."""

    def __call__(self, engine: Engine, seconds: float, *, end: float) -> None: ...


def run(arrivals: Arrivals, door: Door, engines: Many[Engine], *, watch: Watch) -> float:
    """Run until nobody comes, waits or runs any more. Returns the time of the last event.

    What comes from outside at the very end of a step comes before it.
    """
    now = 0.0
    ends = [_NEVER] * len(engines)
    lengths = [0.0] * len(engines)
    while True:
        for index, engine in enumerate(engines):
            if ends[index] == _NEVER and engine.has_work:
                seconds = engine.plan(now=now)
                if seconds is not None:
                    ends[index], lengths[index] = now + seconds, seconds
        end = min(ends)
        arrival_at = arrivals.next_at()
        door_at = door.next_event()
        outside = _NEVER if arrival_at is None else arrival_at
        if door_at is not None and door_at < outside:
            outside = door_at
        if outside == _NEVER and end == _NEVER:
            return now
        if outside <= end:
            now = max(now, outside)
            if arrival_at is not None and arrival_at <= now:
                arrivals.come(now=now)
            else:
                door.act(now=now)
            continue
        index = ends.index(end)
        engine, seconds = engines[index], lengths[index]
        now = end
        watch(engine, seconds, end=end)
        ends[index] = _NEVER
        first, done = engine.finish_step(seconds, now=now)
        for sequence in first:
            door.answered(sequence, now=now)
        for sequence in done:
            door.finished(sequence, now=now)
        door.stepped(engine, seconds, now=now)
