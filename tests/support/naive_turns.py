"""Whose turn it is, as naive as can be: every hold is kept, and summed anew at every question.

Written from the promise of core/shares.py, without a look at how it keeps it.
"""

from dataclasses import dataclass, field


@dataclass
class Hold:
    """began, ended: when. changes: (time, blocks from then on). expected_s: of the whole hold, as guessed when it began."""

    expected_s: float
    changes: list[tuple[float, int]]
    ended: float | None = None

    @property
    def blocks(self) -> int:
        return 0 if self.ended is not None else self.changes[-1][1]

    def block_seconds(self, since: float, until: float) -> float:
        total = 0.0
        stop = until if self.ended is None else min(until, self.ended)
        for index, (start, blocks) in enumerate(self.changes):
            end = self.changes[index + 1][0] if index + 1 < len(self.changes) else stop
            total += blocks * max(0.0, min(end, stop) - max(start, since))
        return total


@dataclass
class Party:
    weight: float
    holds: list[Hold] = field(default_factory=list)
    number: int | None = None  # since when it waits; None: it does not
    since: float = 0.0
    credit: float = 0.0  # what counts as had before `since`

    @property
    def held(self) -> int:
        return sum(hold.blocks for hold in self.holds)


@dataclass
class Division:
    """The parties that share one thing by weight."""

    parties: dict[str, Party] = field(default_factory=dict)
    period: int = 0
    began: float = 0.0
    level: float = 0.0
    number: int = 0
    _periods: dict[str, int] = field(default_factory=dict)

    def had(self, name: str, now: float) -> float:
        party = self.parties[name]
        if self._periods.get(name) != self.period:
            return sum(hold.block_seconds(self.began, now) for hold in party.holds)
        return party.credit + sum(hold.block_seconds(party.since, now) for hold in party.holds)

    def tag(self, name: str, now: float) -> float:
        party = self.parties[name]
        expected = sum(hold.blocks * hold.expected_s for hold in party.holds)
        return (self.had(name, now) + expected) / party.weight

    def entry_tag(self, name: str, now: float) -> float:
        """Its tag if it began to wait now."""
        party = self.parties[name]
        had = max(self.had(name, now), self.level * party.weight) if self.waiting() else 0.0
        return (had + sum(hold.blocks * hold.expected_s for hold in party.holds)) / party.weight

    def waiting(self) -> list[str]:
        return [name for name, party in self.parties.items() if party.number is not None]

    def enter(self, name: str, now: float) -> None:
        if not self.waiting():
            self.period += 1
            self.began = now
            self.level = 0.0
        self.even(name, now)
        self.number += 1
        self.parties[name].number = self.number

    def even(self, name: str, now: float) -> None:
        """It has no claim from before."""
        party = self.parties[name]
        party.credit = max(self.had(name, now), self.level * party.weight)
        party.since = now
        self._periods[name] = self.period

    def served(self, name: str, now: float) -> None:
        if self.waiting():
            self.level = max(self.level, self.had(name, now) / self.parties[name].weight)

    def in_turn(self, now: float) -> list[str]:
        return sorted(self.waiting(), key=lambda name: (self.tag(name, now), self.parties[name].number))

    def is_close(self, one: str, other: str, now: float) -> bool:
        """Whether rounding decides between them."""
        tags = self.tag(one, now), self.tag(other, now)
        return abs(tags[0] - tags[1]) < 1e-6 and tags != (0.0, 0.0)
