"""BackendView: what the rest of kvgate sees of a backend. Pool: the backends that serve one model."""

from dataclasses import dataclass

from gateway.backends.capacity import Capacity
from gateway.core.engine_rules import EngineRules
from gateway.core.names import BackendName, PoolName


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend at one instant.

    url: without user info and without a trailing /v1. engine: its kind, "unknown" until it has answered.
    healthy: it answers. serving: new grants may go there. capacity: None while unknown, and once it has been away for
    longer than anybody waits. used_blocks, running, waiting, preemptions: the engine's own words, None if it has none.
    foreign_blocks: used there by others than us. state_text: one line for operators.
    """

    name: BackendName
    url: str
    engine: str
    engine_version: str | None
    models: tuple[str, ...]
    healthy: bool
    serving: bool
    capacity: Capacity | None
    rules: EngineRules
    used_blocks: int | None
    foreign_blocks: int
    preemptions: int | None
    running: int | None
    waiting: int | None
    state_text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.state_text}"


@dataclass(frozen=True, slots=True)
class Pool:
    """The backends that serve one model, in the order in which they were given. The name is made of theirs."""

    name: PoolName
    backends: tuple[BackendView, ...]
