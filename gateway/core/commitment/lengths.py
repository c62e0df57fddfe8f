"""Lengths: how long the answers of one class became, and from that how long one that runs will become.

Answers that ended, answers that were cut off before their end (a client that left, a cap) and answers that still run all
count: the last two only say "at least so long", so they enter as censored, by the product-limit estimate of Kaplan and
Meier. Without them the short answers, which end first, would speak for all at every start and after every change.

It promises:
* fixed memory: bins a twelfth of an octave wide, each remembered by its mean, so that answers of one length are
  forecast exactly;
* the past fades with every answer (half of it after `HALF_LIFE` of them), so that a change is followed;
* the forecast changes only by `ended`, `seed` and `take`: between two of them it is the same for the same question;
* what is beyond all evidence is not guessed short: an answer that passes all that ended is taken to be half way.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import Enum
from itertools import compress
from typing import Final

HALF_LIFE: Final = 512
# Answers that nobody has seen yet: they stay at risk at every length, so that a thin tail is not taken for the end.
_UNSEEN: Final = 2.0
# From so much weight beyond a length on, "more than half went further than all that ended" is knowledge, not thin evidence.
_KNOWLEDGE: Final = 8.0
_DOUBT: Final = 8.0
_BINS_PER_OCTAVE: Final = 12
_BINS: Final = 26 * _BINS_PER_OCTAVE
_GONE: Final = 0.01  # a weight below which a bin is forgotten
_GROWTH: Final = 2.0 ** (1.0 / HALF_LIFE)
_LARGEST_UNIT: Final = 2.0**32  # long before sums of it lose what is small

_ALL_BINS: Final = range(_BINS)
_SHORTEST: Final = tuple(math.ceil(2.0 ** ((at - 1) / _BINS_PER_OCTAVE)) for at in _ALL_BINS)  # in each bin (tokens)
_HARDLY: Final = 0.0005  # by so much a mean of whole numbers may be off, as floats add them up

Row = tuple[int, float, float, float]
"""A bin as it is written down: number, weight that ended, sum of their tokens, weight that was cut off."""


class Ending(Enum):
    """How an answer ended, for what it tells about lengths."""

    FINISHED = "finished"  # by itself
    CAPPED = "capped"  # its output cap was reached
    LEFT = "left"  # cut off: the client left, or something broke


_FINISHED: Final = Ending.FINISHED


def _bin_of(tokens: int) -> int:
    return 0 if tokens < 1 else min(int(math.log2(tokens) * _BINS_PER_OCTAVE) + 1, _BINS - 1)


_SHORT_BINS: Final = tuple(map(_bin_of, range(4096)))


def bin_of(tokens: int) -> int:
    """The bin of a length; 0 for nothing yet."""
    return _SHORT_BINS[tokens] if 0 <= tokens < 4096 else _bin_of(tokens)


class Lengths:
    """Tokens of one sequence throughout. completions: answers seen since the beginning, those with a cap included.

    running: how many answers that run are in each bin, the first (nothing yet) left out; whoever follows them keeps it.
    """

    __slots__ = (
        "_atoms",
        "_beyond",
        "_bins",
        "_cut",
        "_drawn_from",
        "_ended",
        "_enough_news",
        "_falling",
        "_forgets_at",
        "_from_start",
        "_is_due",
        "_is_whole",
        "_knowledge",
        "_longest",
        "_news",
        "_tokens",
        "_unit",
        "completions",
        "running",
    )

    def __init__(self) -> None:
        self.completions = 0
        self._bins: set[int] = set()  # those that have ended or cut answers in them
        self._ended = [0.0] * _BINS
        self._tokens = [0.0] * _BINS
        self._cut = [0.0] * _BINS
        self.running = [0] * _BINS
        self._unit = 1.0  # the weight of an answer that ends now; grows instead of all others shrinking
        self._forgets_at = 1.0 / _GONE  # so large is the unit when the lightest bin has to be forgotten
        self._news = 0  # answers since it was last drawn up
        self._enough_news = 0.0  # so many of them are a thirtieth of what is remembered
        self._is_due = False  # to be drawn up, as soon as somebody asks
        # The estimate, as of the last time that it was drawn up: lengths at which answers ended, in order; the part that
        # went further than each, below zero so that it rises; the weight seen in all, and beyond each. Whole: to its end, else
        # as far as what a new answer becomes, which is all that most are asked for.
        self._atoms: list[int] = []
        self._falling: list[float] = []
        self._beyond = [0.0]
        self._knowledge = _KNOWLEDGE
        self._longest = 0
        self._is_whole = True
        self._from_start: int | None = None  # what a new answer is taken to become

    def ended(self, tokens: int, at: int, ending: Ending) -> bool:
        """An answer ended so, after so many tokens, at least 1; at: their bin. Returns whether the forecast is another now;
        said once, until somebody asks for it."""
        unit = self._unit
        self._unit = unit * _GROWTH
        if ending is _FINISHED:
            self.completions += 1
            before = self._ended[at]
            self._ended[at] = before + unit
            self._tokens[at] += unit * tokens
        else:
            self.completions += ending is Ending.CAPPED
            before = self._cut[at]
            self._cut[at] = before + unit
        if not before:
            self._bins.add(at)
        if self._is_due:
            if unit > _LARGEST_UNIT:  # nobody has asked for a long time
                self._draw_up()
            return False
        # Drawing up costs as much as tens of questions, so it waits until a thirtieth of what is remembered is new.
        news = self._news = self._news + 1
        self._is_due = is_due = news >= self._enough_news
        return is_due

    def doubt(self) -> None:
        """What was remembered has misled: what comes now counts for `_DOUBT` times as much beside it."""
        self._unit *= _DOUBT

    def seed(self, lengths: Iterable[tuple[int, float]], completions: int) -> None:
        """Begin with what somebody else has counted: (tokens, weight) of answers that ended."""
        for tokens, weight in lengths:
            at = bin_of(max(tokens, 1))
            self._bins.add(at)
            self._ended[at] += weight * self._unit
            self._tokens[at] += weight * self._unit * max(tokens, 1)
        self.completions += completions
        self._forgets_at = 0.0  # who knows how light they are
        self._draw_up()

    def expected(self, progress: int) -> int | None:
        """Tokens that an answer with `progress` of them will have in the end, by the median of those that came as far;
        more than `progress`. None where nothing is known but that it will be longer than what was seen."""
        if self._is_due:
            self._draw_up()
        if not progress:
            return self._from_start
        if not self._is_whole:
            self._draw(until=0.0)
        return self._look_up(progress)

    def _look_up(self, progress: int) -> int | None:
        """`expected` by the estimate as it was drawn up last."""
        atoms, falling, beyond = self._atoms, self._falling, self._beyond
        if not beyond[0]:
            return None
        at = bisect_right(atoms, progress)
        median = bisect_left(falling, (falling[at - 1] if at else -1.0) / 2, at)
        if median < len(atoms):
            return atoms[median]
        if progress < self._longest and beyond[at] >= self._knowledge:
            return None
        return max(2 * progress, self._longest, progress + 1)

    def rows(self) -> list[Row]:
        """What is remembered, bin by bin, for writing down."""
        self._measure_anew()
        self._draw_up()
        return [
            (at, round(self._ended[at], 4), round(self._tokens[at], 2), round(self._cut[at], 4)) for at in sorted(self._bins)
        ]

    def take(self, rows: Iterable[Row], completions: int) -> None:
        """Remember what was written down. Raises ValueError for what `rows` cannot have given; nothing is taken then."""
        taken = list(rows)
        for at, ended, tokens, cut in taken:
            if not (0 <= at < _BINS and 0 <= ended < 1e6 and 0 <= cut < 1e6 and 0 <= tokens < ended * 1e8 + 1):
                raise ValueError("no histogram of lengths")
        for at, ended, tokens, cut in taken:
            self._bins.add(at)
            self._ended[at] += ended * self._unit
            self._tokens[at] += tokens * self._unit
            self._cut[at] += cut * self._unit
        self.completions += completions
        self._forgets_at = 0.0  # who knows how light they are
        self._draw_up()

    def _measure_anew(self) -> None:
        """From here on an answer that ends now weighs 1 again. Bins that have become too light are forgotten."""
        ended, tokens, cut = self._ended, self._tokens, self._cut
        scale = 1.0 / self._unit
        lightest = 1.0
        for at in [*self._bins]:
            gone, lost = ended[at] * scale, cut[at] * scale
            if gone >= _GONE:
                ended[at] = gone
                tokens[at] *= scale
                lightest = min(lightest, gone)
            else:
                ended[at] = tokens[at] = gone = 0.0
            if lost >= _GONE:
                lightest = min(lightest, lost)
            else:
                lost = 0.0
            cut[at] = lost
            if not gone and not lost:
                self._bins.remove(at)
        self._unit, self._forgets_at = 1.0, lightest / _GONE

    def _draw_up(self) -> None:
        """Estimate by what is remembered now: what a new answer becomes, and the rest when somebody asks for it."""
        if self._unit > self._forgets_at:
            self._measure_anew()
        runs = sum(self.running)
        bins = sorted(self._bins.union(compress(_ALL_BINS, self.running)) if runs else self._bins)
        end = bins[-1] + 1 if bins else 0
        ended, cut, unit = self._ended[:end], self._cut[:end], self._unit
        known = sum(ended) + sum(cut)
        at_risk = known + (runs + _UNSEEN) * unit
        self._drawn_from = bins, ended, self._tokens[:end], cut, self.running[:end], known, at_risk, unit
        self._news, self._enough_news, self._is_due = 0, known / unit / 32, False
        self._draw(until=0.5)
        self._from_start = self._look_up(0)

    def _draw(self, until: float) -> None:
        """The product-limit estimate, up to where no more than the part `until` went further. In one bin, those that ended did
        so before the others."""
        bins, ended, tokens, cut, running, known, at_risk, unit = self._drawn_from
        part, longest = 1.0, 0
        atoms: list[int] = []
        falling: list[float] = []
        beyond = [known]
        self._is_whole = True
        for at in bins:
            gone, lost = ended[at], cut[at]
            if gone:
                part *= 1.0 - gone / at_risk
                known -= gone
                longest = math.ceil(tokens[at] / gone - _HARDLY)
                atoms.append(longest)
                falling.append(-part)
                beyond.append(known)
                if part <= until:
                    self._is_whole = False
                    break
            if lost:
                longest = max(longest, _SHORTEST[at])
                known -= lost
            at_risk -= gone + lost + running[at] * unit
        self._atoms, self._falling, self._beyond, self._longest = atoms, falling, beyond, longest
        self._knowledge = _KNOWLEDGE * unit

    def __repr__(self) -> str:
        median = self.expected(0)
        return f"{self.completions} answers, half of them within {'?' if median is None else median} tokens"
