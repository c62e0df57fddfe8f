"""Balancer: the signs that several engines answer behind one address.

A restart gives a new start time once, and a counter that begins anew. Two start times in turn, or a counter that runs
backwards again and again, are no restart: questions reach now this engine and now that one, and so will requests.
"""

from collections.abc import Hashable
from typing import Final

_MOST_KNOWN: Final = 16
_BACKWARD_STEPS: Final = 2


class BalancerSigns:
    """What the answers of one address have shown so far."""

    def __init__(self) -> None:
        self._seen: list[Hashable] = []
        self._last: Hashable = None
        self._highest = 0
        self._backward_steps = 0

    def read(self, identity: Hashable, preemptions: int | None) -> bool:
        """Whether the answers so far, this one among them, can only have come from several engines."""
        returned = identity != self._last and identity in self._seen
        if identity not in self._seen:
            self._seen = [*self._seen[-_MOST_KNOWN + 1 :], identity]
            self._highest = 0  # it begins anew
        if preemptions is not None:
            # The same start time and less than before: one step may be a restart that tells no start time, two are not.
            if preemptions < self._highest and identity == self._last:
                self._backward_steps += 1
                self._highest = preemptions
            self._highest = max(self._highest, preemptions)
        self._last = identity
        return returned or self._backward_steps >= _BACKWARD_STEPS
