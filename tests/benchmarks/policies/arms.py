"""Arms: the policies that are compared, by name.

none                      no gate: the engine's own endless line
cancel                    no gate, but clients without a first token at their objective hang up
watermark                 as cancel, on an engine that keeps 10 % of its pool free when a sequence starts
seats=N                   at most N requests at once
COMMITMENT[+guards]/CAPS  kvgate's book; caps as clients send them: absent, fixed, 1.5x (of the truth), truth
"""

from dataclasses import dataclass, replace

from benchmarks.policies.book_door import PATIENCE_SHARE, BookDoor, Caps, Gate
from benchmarks.policies.doors import FixedDoor, OpenDoor
from benchmarks.policies.oracle import OracleDoor
from benchmarks.policies.simulation import Door, DoorFactory
from benchmarks.policies.workloads import Workload
from gateway.replay.engine import Engine
from gateway.replay.profiles import EngineProfile


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy on the engine that it wants."""

    name: str
    engine: EngineProfile
    make_door: DoorFactory


def make_arm(name: str, workload: Workload) -> Arm:
    """The policy of that name. Raises ValueError for a name that says nothing."""
    engine = workload.engine
    if name == "none":
        return Arm(name, engine, lambda engine: OpenDoor(engine, patience_s=None))
    if name in ("cancel", "watermark"):
        if name == "watermark":
            engine = replace(engine, watermark=0.10)
        return Arm(name, engine, lambda engine: OpenDoor(engine, patience_s=workload.ttft_s))
    if name == "oracle":
        return Arm(name, engine, lambda engine: OracleDoor(engine, workload, patience_s=PATIENCE_SHARE * workload.ttft_s))
    if name.startswith("seats="):
        seats = int(name.removeprefix("seats="))
        return Arm(name, engine, lambda engine: FixedDoor(engine, seats=seats, patience_s=PATIENCE_SHARE * workload.ttft_s))
    rules, _, caps = name.partition("/")
    commitment, _, guards = rules.partition("+")
    if guards not in ("", "guards", "untold"):
        raise ValueError(f"{name} is no policy")
    gate = Gate(commitment, Caps(caps), has_guards=bool(guards), targets_known=guards != "untold")

    def book_door(engine: Engine) -> Door:
        return BookDoor(engine, workload, gate)

    return Arm(name, engine, book_door)
