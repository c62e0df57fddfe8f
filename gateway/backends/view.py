"""BackendView: what the rest of kvgate sees of a backend. Pool: the backends that serve one model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.backends.capacity import Capacity
from gateway.core.engine_rules import EngineRules
from gateway.core.names import BackendName, PoolName


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend at one instant.

    url: without user info and without a trailing /v1. engine: its kind, "unknown" until it has answered.
    healthy: it answers. serving: new grants may go there. capacity: None while unknown, and once it has been away for
    longer than anybody waits. used_blocks, running, waiting, preemptions: the engine's own words, None if it has none.
    foreign_blocks: used there by others than us. state_text: one line for operators. answer_lengths: see EngineReport.
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
    answer_lengths: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @property
    def version_text(self) -> str:
        """The engine and its version in one word, as what was learned of its answers is filed under."""
        return f"{self.engine} {self.engine_version or '?'}"

    def __str__(self) -> str:
        return f"{self.name}: {self.state_text}"


@dataclass(frozen=True, slots=True)
class Pool:
    """The backends that serve one model, in the order in which they were given. The name is made of theirs."""

    name: PoolName
    backends: tuple[BackendView, ...]
    # Worked out once: a pool serves many requests.
    planned: tuple[BackendView, ...] = field(init=False, compare=False, repr=False)
    largest: BackendView | None = field(init=False, compare=False, repr=False)
    models: frozenset[str] = field(init=False, compare=False, repr=False)
    _families: Mapping[str | None, str] = field(init=False, compare=False, repr=False)
    _other_family: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """planned: those of the backends whose capacity is known. largest: of them, by its budget. models: all that one of
        the backends or another lists."""
        views = self.backends
        budgets = [(view, view.capacity.budget.blocks) for view in views if view.capacity is not None]
        object.__setattr__(self, "planned", tuple(view for view, _ in budgets))
        object.__setattr__(self, "largest", max(budgets, key=lambda known: known[1])[0] if budgets else None)
        object.__setattr__(self, "models", frozenset(model for view in views for model in view.models))
        versions = " or ".join(sorted({view.version_text for view in views}))
        families: dict[str | None, str] = {model: f"{model} on {versions}" for view in views for model in view.models}
        object.__setattr__(self, "_other_family", f"other on {versions}")
        families[None] = families[views[0].models[0]] if views[0].models else self._other_family
        object.__setattr__(self, "_families", families)

    def family(self, model: str | None) -> str:
        """Whose past answers tell how long an answer of that model here becomes. Callers cannot grow the set of families."""
        return self._families.get(model, self._other_family)
