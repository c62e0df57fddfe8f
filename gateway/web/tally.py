"""The tally: every request is in exactly one place, and ends exactly once.

received = outcomes + queued + in flight + reading, at every instant and by construction: a request is moved from one
count to another, never added to one without being taken from the other.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.outcomes import Outcome


class Place(StrEnum):
    """Where a request is while it has not ended. READING covers the upload, the parse and the count."""

    READING = "reading"
    QUEUED = "queued"
    IN_FLIGHT = "in_flight"


_READING: Final = Place.READING


@dataclass(frozen=True, slots=True)
class Counts:
    received: int
    reading: int
    queued: int
    in_flight: int
    outcomes: Mapping[Outcome, int]


class Tally:
    """Counts of one gateway since its start."""

    def __init__(self) -> None:
        self._places = dict.fromkeys(Place, 0)
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._became_idle = asyncio.Event()
        self._is_awaited = False  # else whoever ends need not look who is still there

    def arrive(self) -> "Entry":
        """A request whose head was parsed."""
        self._places[_READING] += 1
        return Entry(self)

    def counts(self) -> Counts:
        places = self._places
        return Counts(
            received=self.unfinished + sum(self._outcomes.values()),
            reading=places[Place.READING],
            queued=places[Place.QUEUED],
            in_flight=places[Place.IN_FLIGHT],
            outcomes=self._outcomes.copy(),
        )

    @property
    def unfinished(self) -> int:
        return sum(self._places.values())

    async def wait_until_idle(self) -> None:
        """Return once no request is anywhere on its way."""
        while self.unfinished:
            self._became_idle.clear()
            self._is_awaited = True
            await self._became_idle.wait()

    def _one_less(self) -> None:
        if not self.unfinished:
            self._is_awaited = False
            self._became_idle.set()


class Entry:
    """One request's line in the tally."""

    __slots__ = ("_place", "_tally", "outcome")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._place = _READING
        self.outcome: Outcome | None = None

    @property
    def place(self) -> Place:
        return self._place

    def move(self, place: Place) -> None:
        if place is not self._place:
            places = self._tally._places
            places[self._place] -= 1
            places[place] += 1
            self._place = place

    def end(self, outcome: Outcome) -> None:
        """The request ended. A second end would be a bug, and is one."""
        if self.outcome is not None:
            raise RuntimeError(f"request ended as {self.outcome} already, now as {outcome}")
        self.outcome = outcome
        tally = self._tally
        tally._places[self._place] -= 1
        tally._outcomes[outcome] += 1
        if tally._is_awaited:
            tally._one_less()
