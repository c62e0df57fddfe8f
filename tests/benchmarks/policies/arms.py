"""Arms: the policies that are compared, by name.

none                      no gate: the engine's own endless line
cancel                    no gate, but clients without a first token at their objective hang up
watermark                 as cancel, on an engine that keeps 10 % of its pool free when a sequence starts
seats=N                   at most N requests at once
COMMITMENT[+guards]/CAPS  kvgate's book; caps as clients send them: absent, fixed, 1.5x (of the truth), truth
"""

from dataclasses import dataclass, replace

from benchmarks.policies.book_door import BookDoor, Caps
from benchmarks.policies.doors import FixedDoor, OpenDoor
from benchmarks.policies.engine import Engine
from benchmarks.policies.profiles import EngineProfile
from benchmarks.policies.simulation import Door, DoorFactory
from benchmarks.policies.workloads import Workload

REFERENCE = "strict/truth"

# The share of the objective for the first token that may be spent waiting at a gate: the prompt has to be computed as well.
PATIENCE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy on the engine that it wants."""

    name: str
    engine: EngineProfile
    make_door: DoorFactory


def make_arm(name: str, workload: Workload) -> Arm:
    """The policy of that name. Raises ValueError for a name that says nothing."""
    engine = workload.engine
    patience_s = PATIENCE_SHARE * workload.ttft_s
    if name == "none":
        return Arm(name, engine, lambda engine: OpenDoor(engine, patience_s=None))
    if name in ("cancel", "watermark"):
        if name == "watermark":
            engine = replace(engine, watermark=0.10)
        return Arm(name, engine, lambda engine: OpenDoor(engine, patience_s=workload.ttft_s))
    if name.startswith("seats="):
        seats = int(name.removeprefix("seats="))
        return Arm(name, engine, lambda engine: FixedDoor(engine, seats=seats, patience_s=patience_s))
    commitment, _, caps = name.partition("/")

    def book_door(engine: Engine) -> Door:
        return BookDoor(engine, workload, commitment=commitment, caps=Caps(caps), patience_s=patience_s)

    return Arm(name, engine, book_door)
