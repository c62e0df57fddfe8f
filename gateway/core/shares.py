"""Shares: whose turn it is among parties of different weight, by start-time fair queueing over charged block-seconds.

A party that waits has a tag, in block-seconds per weight: what it has had since the contention began, and, for what it holds
now, what that is expected to take (charged blocks x the mean time of a hold). The least tag goes first. A grant so raises the
tag at once, by an estimate; as the hold runs the estimate is paid off by what it really took, and at its end nothing but that
is left. A hold that runs longer than was expected goes on counting.

What it promises:
* work is never left undone for fairness' sake: the tags only order who waits;
* two parties that both wait all the time differ, in what they have had per weight, by no more than one poolful: what is held
  there at once, for as long as one hold lasts and the estimate said;
* who did not wait has no claim to what it did not ask for: it enters where those are who were served last, and what it had
  beyond that stays on its account until nobody waits any more. Then everybody is even.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar


class Share:
    """One party: a lane of a pool, or a tenant of a lane.

    held_blocks: charged for what it holds now. outlook: block-seconds that are expected of that, 0 where it holds nothing.
    While nobody waits these two are no more than sums, for no turn depends on them; else `Turns.charge` alone changes them.
    """

    __slots__ = ("_as_of", "_period", "_used", "held_blocks", "key", "number", "outlook", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.held_blocks = 0
        self.outlook = 0.0
        self.key: float | None = None  # the tag by which it stands in order; never above its tag now. None: it does not wait
        self.number = 0  # among equal tags the one that began to wait first
        self._used = 0.0  # block-seconds: had in this period, up to _as_of
        self._as_of = 0.0
        self._period = 0


ShareT = TypeVar("ShareT", bound=Share)


class Turns(Generic[ShareT]):
    """The parties to one division. `now`: monotonic seconds.

    Tags of who holds something rise by themselves, so the order kept is by tags as they were last looked at, and the first is
    looked at again before it is believed.
    """

    def __init__(self) -> None:
        self._order: list[tuple[float, int, ShareT]] = []
        self._period = 1
        self._began = 0.0
        self._level = 0.0  # what those had, per weight, who were served last: where newcomers enter
        self._number = 0

    def __len__(self) -> int:
        """Parties that wait."""
        return len(self._order)

    def __iter__(self) -> Iterator[ShareT]:
        """Those who wait: the first as `first` says, the others nearly in order."""
        return (share for _, _, share in self._order)

    def sole(self) -> ShareT | None:
        """Who waits, where it is one alone."""
        return self._order[0][2] if len(self._order) == 1 else None

    def first(self, now: float) -> ShareT | None:
        """Whose turn it is; None if nobody waits."""
        order = self._order
        while order:
            key, _, share = order[0]
            if len(order) == 1 or self.tag(share, now) <= key:
                return share
            self.moved(share, now)
        return None

    def sorted(self, now: float) -> list[ShareT]:
        """Those who wait, exactly in order; for few."""
        if len(self._order) > 1:
            for share in [*self]:
                self.moved(share, now)
        return [*self]

    def tag(self, share: ShareT, now: float) -> float:
        """Its tag: as it stands, or where it would enter."""
        used = self.used(share, now)
        if share.key is None:
            used = max(used, self._level * share.weight) if self._order else 0.0
        return (used + share.outlook) / share.weight

    def used(self, share: ShareT, now: float) -> float:
        """Block-seconds that it has had since the contention began, or since it entered."""
        if share._period != self._period:
            return share.held_blocks * (now - self._began)
        return share._used + share.held_blocks * (now - share._as_of)

    def is_ahead(self, one: ShareT, other: ShareT, now: float) -> bool:
        """Whether it would be the turn of `one` before that of `other`. Who does not wait yet enters after its equals."""
        tag, other_tag = self.tag(one, now), self.tag(other, now)
        if tag != other_tag:
            return tag < other_tag
        return one.key is not None and (other.key is None or one.number < other.number)

    def enter(self, share: ShareT, now: float) -> None:
        """It waits from now on."""
        if not self._order:
            self._period += 1
            self._began = now
            self._level = 0.0
        self.level(share, now)
        self._number += 1
        share.number = self._number
        self._insert(share, now)

    def leave(self, share: ShareT) -> None:
        """It waits no longer."""
        assert share.key is not None, "who leaves has waited"
        place = bisect_left(self._order, (share.key, share.number), key=_place)
        del self._order[place]
        share.key = None

    def moved(self, share: ShareT, now: float) -> None:
        """Its tag may be another now."""
        if share.key is None:
            return
        if len(self._order) == 1:
            share.key = (self.used(share, now) + share.outlook) / share.weight
            self._order[0] = (share.key, share.number, share)
        else:
            self.leave(share)
            self._insert(share, now)

    def level(self, share: ShareT, now: float) -> None:
        """It has no claim from before: what it has had counts as no less than what those had who were served last."""
        self._settle(share, now)
        share._used = max(share._used, self._level * share.weight)

    def served(self, share: ShareT, now: float) -> None:
        """It is granted something now, and has not been charged for it yet."""
        if self._order:
            self._level = max(self._level, self.used(share, now) / share.weight)

    def charge(self, share: ShareT, blocks: int, seconds: float, now: float) -> None:
        """It holds so many blocks more, expected for so long; less where blocks is negative, with the seconds as before."""
        if self._order:  # else what it has had counts for nothing: the next who waits begins a new period
            self._settle(share, now)
        share.held_blocks += blocks
        share.outlook = share.outlook + blocks * seconds if share.held_blocks else 0.0
        if blocks < 0 and share.key is not None:
            self.moved(share, now)

    def _settle(self, share: ShareT, now: float) -> None:
        if share._period == self._period:
            share._used += share.held_blocks * (now - share._as_of)
        else:
            share._used = share.held_blocks * (now - self._began)
            share._period = self._period
        share._as_of = now

    def _insert(self, share: ShareT, now: float) -> None:
        # Not `tag`: it stands in order from here on, so nothing is levelled any more.
        share.key = (self.used(share, now) + share.outlook) / share.weight
        insort(self._order, (share.key, share.number, share), key=_place)


def _place(entry: tuple[float, int, ShareT]) -> tuple[float, int]:
    return entry[0], entry[1]
