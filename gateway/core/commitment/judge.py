"""The judge: how much freedom the forecast has on one backend, by what the engine did with it.

A preemption says that the forecast was too bold. It promises:
* each reading that shows new preemptions takes freedom at once: more headroom, and past the most headroom, or with many
  preemptions at a time, strict;
* freedom comes back slowly: a step of headroom per quiet minute, strict after a quiet pause that doubles each time that
  it was needed again (one minute to sixteen), and then with the most headroom first;
* the headroom stays between `BASE` and `MOST`;
* where the engine shows no such counter, nothing is forecast, unless the operator pins it; then there is no judging.
"""

from enum import StrEnum
from typing import Final

BASE: Final = 0.10
MOST: Final = 0.30
_STEP_UP: Final = 0.10
_STEP_DOWN: Final = 0.05
_MANY: Final = 4  # preemptions within one reading after which no step of headroom is waited for
_QUIET_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 960.0
_FORGIVEN_S: Final = 900.0


class Freedom(StrEnum):
    """What is in force on a backend."""

    STRICT = "strict"
    FORECAST = "forecast"


class Judge:
    """One backend. now: monotonic seconds.

    is_strict: nothing is forecast. headroom: part of the budget that forecasts leave free. why: one sentence for the
    operator. last_preemption: when one was last seen, None: never. may_start_cold: nothing has been preempted yet, so that a
    guess without evidence is allowed.
    """

    def __init__(self, *, pinned: bool) -> None:
        self.is_strict = True
        self.headroom = BASE
        self.why = "nothing was heard of the engine yet"
        self.last_preemption: float | None = None
        self._pinned = pinned
        self._seen: int | None = None
        self._is_visible = False
        self._changed_at = float("-inf")
        self._pause_s = _QUIET_S
        self._is_paused = False

    @property
    def freedom(self) -> Freedom:
        return Freedom.STRICT if self.is_strict else Freedom.FORECAST

    @property
    def may_start_cold(self) -> bool:
        return not self.is_strict and self._is_visible and self.last_preemption is None

    def read(self, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> bool:
        """One reading of the engine: its counter (None: it shows none), and whether an overrun there fails everybody.

        Returns whether anything about the freedom changed.
        """
        before = (self.freedom, self.headroom, self.may_start_cold)
        if overrun_fails_all:
            self._be(Freedom.STRICT, "an overrun of its cache would fail every request that runs there")
        elif preemptions is None:
            # A reading that is missing once, as after an outage, does not make an engine one that shows nothing.
            if self._seen is None and self._pinned:
                self._be(Freedom.FORECAST, "pinned by the operator, although the engine shows no preemptions")
            elif self._seen is None:
                self._be(Freedom.STRICT, "the engine does not show whether it preempts")
        else:
            self._judge(preemptions, now=now)
        return before != (self.freedom, self.headroom, self.may_start_cold)

    def _judge(self, preemptions: int, *, now: float) -> None:
        first = self._seen is None
        new = 0 if self._seen is None else preemptions - self._seen
        self._seen = preemptions
        self._is_visible = True
        if first:
            self._be(Freedom.FORECAST, "the engine shows whether it preempts")
            self._changed_at = now
        elif new > 0:  # a counter that ran backwards is another engine's
            self._preempted(new, now=now)
        elif self._is_paused:
            if now >= self._changed_at + self._pause_s:
                self._is_paused = False
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                self._changed_at = now
                self._be(Freedom.FORECAST, "tried again after a quiet pause, with the most headroom")
        elif self.headroom > BASE and now >= self._changed_at + _QUIET_S:
            self.headroom = max(BASE, round(self.headroom - _STEP_DOWN, 2))
            self._changed_at = now
            self.why = "a quiet minute gave a step of headroom back"
        elif now >= self._changed_at + _FORGIVEN_S:
            self._pause_s = _QUIET_S

    def _preempted(self, new: int, *, now: float) -> None:
        self.last_preemption = self._changed_at = now
        said = "a preemption" if new == 1 else f"{new} preemptions"
        if self._is_paused:
            self.why = f"{said} of what was let in before: strict until the engine was quiet for {self._pause_s:.0f} s"
        elif (new >= _MANY or self.headroom >= MOST) and not self._pinned:
            self._is_paused = True
            self.headroom = MOST
            why = f"{said} at a time" if new >= _MANY else f"{said} although the headroom was the most"
            self._be(Freedom.STRICT, f"{why}: strict until the engine was quiet for {self._pause_s:.0f} s")
        else:
            self.headroom = min(MOST, round(self.headroom + _STEP_UP, 2))
            self.why = f"{said}: more headroom"

    def _be(self, freedom: Freedom, why: str) -> None:
        if self.freedom is not freedom or self._seen is None:
            self.why = why
        self.is_strict = freedom is Freedom.STRICT

    def __repr__(self) -> str:
        return f"{self.freedom}, {self.headroom:.0%} headroom: {self.why}"
