"""What is on its way now, requests and the answers that take their place: what a drain waits for, and in the end cuts."""

from typing import Protocol

from gateway.core.errors import UpstreamStage


class Cuttable(Protocol):
    def cut(self, stage: UpstreamStage) -> None:
        """End now. Must not wait."""
        ...


class Running:
    """A request is in here until its answer takes its place. After `cut_all`, whatever is still added is cut as well."""

    def __init__(self) -> None:
        self._work: set[Cuttable] = set()
        self._is_cut = False

    def __len__(self) -> int:
        return len(self._work)

    def add(self, work: Cuttable) -> None:
        self._work.add(work)
        if self._is_cut:
            work.cut(UpstreamStage.DRAIN)

    def discard(self, work: Cuttable) -> None:
        self._work.discard(work)

    def cut_all(self) -> None:
        """End everything now: streams with an error event, other answers visibly broken, requests without one refused."""
        self._is_cut = True
        for work in list(self._work):
            work.cut(UpstreamStage.DRAIN)
