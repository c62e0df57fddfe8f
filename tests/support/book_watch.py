"""Snapshots of the books as `/kvgate/state` shows them, and a watcher that holds every one of them against the rules.

At every instant, so in every snapshot:
- received = outcomes + queued + in flight + reading;
- nothing is negative;
- what is charged on a backend is within budget - reserve, or is one request alone within the budget;
- no counter ever falls.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from support.http_client import Broken, Connection

PAUSE_S = 0.02
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """One answer of `/kvgate/state`."""

    raw: Mapping[str, Any]

    @property
    def received(self) -> int:
        return int(self.raw["received"])

    @property
    def outcomes(self) -> dict[str, int]:
        """Outcomes that occurred, with their counts."""
        return {name: count for name, count in self.raw["outcomes"].items() if count}

    @property
    def queued(self) -> int:
        return int(self.raw["queue"]["requests"])

    @property
    def in_flight(self) -> int:
        return int(self.raw["in_flight"])

    @property
    def reading(self) -> int:
        return int(self.raw["reading"])

    @property
    def backends(self) -> list[dict[str, Any]]:
        backends = self.raw["backends"]
        assert isinstance(backends, list)
        return backends

    @property
    def backend(self) -> dict[str, Any]:
        """The only backend."""
        (backend,) = self.backends
        return backend

    @property
    def held_blocks(self) -> int:
        return sum(int(backend["held_blocks"]) for backend in self.backends)

    @property
    def is_idle(self) -> bool:
        return (self.held_blocks, self.in_flight, self.queued, self.reading) == (0, 0, 0, 0)

    def faults(self, larger: Mapping[str, int] = _NONE) -> list[str]:
        """What breaks the rules in this one snapshot. larger: for some backends, what might be held there until its budget
        shrank, and may be held until it has gone."""
        found = []
        accounted = sum(self.outcomes.values()) + self.queued + self.in_flight + self.reading
        if self.received != accounted:
            found.append(
                f"received {self.received} != outcomes {sum(self.outcomes.values())} + queued {self.queued} "
                f"+ in flight {self.in_flight} + reading {self.reading}"
            )
        counts = {"queued": self.queued, "queue blocks": int(self.raw["queue"]["blocks"]), "in flight": self.in_flight}
        counts |= {"reading": self.reading, "received": self.received, **self.outcomes}
        found += [f"{name} is {count}" for name, count in counts.items() if count < 0]
        for backend in self.backends:
            found += self._backend_faults(backend, larger.get(backend["name"], 0))
        return found

    def _backend_faults(self, backend: Mapping[str, Any], larger: int) -> list[str]:
        name, held, in_flight = backend["name"], int(backend["held_blocks"]), int(backend["in_flight"])
        found = []
        if held < 0 or in_flight < 0:
            found.append(f"{name}: held {held}, in flight {in_flight}")
        if (held == 0) != (in_flight == 0):
            found.append(f"{name}: {held} blocks held by {in_flight} requests")
        if backend["budget_blocks"] is not None and self.raw["mode"] == "enforce":
            budget, reserve = int(backend["budget_blocks"]), int(backend["reserve_blocks"])
            if held > max(most_held(backend), larger):
                found.append(f"{name}: {held} blocks held by {in_flight} requests, of {budget} less {reserve}")
        return found


def most_held(backend: Mapping[str, Any]) -> int:
    """What its requests may hold by its budget: one alone may take the reserve as well."""
    budget, reserve = int(backend["budget_blocks"]), int(backend["reserve_blocks"])
    return budget if int(backend["in_flight"]) == 1 else budget - reserve


@dataclass(slots=True)
class BookWatch:
    """Reads the state over and over until stopped, and remembers the worst it saw.

    An engine that came back smaller is known as such when it is next asked: what was granted until then stays held, and nothing
    is granted beside it. So from one budget to a smaller one, what could be held by the larger may still be.
    """

    admin_url: str
    snapshots: int = 0
    deepest_queue: int = 0
    most_in_flight: int = 0
    faults: list[str] = field(default_factory=list)
    _known: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _larger: dict[str, int] = field(default_factory=dict)
    _previous: State | None = None
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="book-watch")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if not isinstance(ended, asyncio.CancelledError):
            self.faults.append(f"the watcher itself failed: {ended!r}")

    def check(self) -> None:
        """Fail if any snapshot broke a rule."""
        assert not self.faults, f"{len(self.faults)} faults in {self.snapshots} snapshots, first: {self.faults[:3]}"

    def forget_depth(self) -> None:
        """Measure the deepest queue and the most in flight from here on."""
        self.deepest_queue = self.most_in_flight = 0

    async def _run(self) -> None:
        while True:
            try:
                async with await Connection.open(self.admin_url) as connection:
                    while True:
                        answer = await connection.ask("GET", "/kvgate/state")
                        self._take(State(answer.json()))
                        await asyncio.sleep(PAUSE_S)
            except (Broken, ConnectionError):
                await asyncio.sleep(PAUSE_S)  # it is being stopped, or it closed an idle connection

    def _take(self, state: State) -> None:
        self.snapshots += 1
        self.deepest_queue = max(self.deepest_queue, state.queued)
        self.most_in_flight = max(self.most_in_flight, state.in_flight)
        self._note_shrinking(state)
        self.faults += state.faults(self._larger)
        if self._previous is not None:
            before = {"received": self._previous.received, **self._previous.outcomes}
            now = {"received": state.received, **state.outcomes}
            self.faults += [
                f"{name} fell from {count} to {now.get(name, 0)}" for name, count in before.items() if now.get(name, 0) < count
            ]
        self._previous = state

    def _note_shrinking(self, state: State) -> None:
        for backend in state.backends:
            name = backend["name"]
            if backend["budget_blocks"] is None:
                continue
            before = self._known.get(name, backend)
            self._known[name] = backend
            if int(backend["held_blocks"]) <= most_held(backend):
                self._larger.pop(name, None)
            elif int(backend["budget_blocks"]) < int(before["budget_blocks"]):
                self._larger[name] = max(self._larger.get(name, 0), most_held(before))
