"""The answers that are being relayed now: what a drain waits for, and in the end cuts."""

from gateway.core.errors import UpstreamStage
from gateway.relay.stream import Answer


class Running:
    """A set of answers. After `cut_all`, an answer that is still added is cut as well."""

    def __init__(self) -> None:
        self._answers: set[Answer] = set()
        self._is_cut = False

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: Answer) -> None:
        self._answers.add(answer)
        if self._is_cut:
            answer.cut(UpstreamStage.DRAIN)

    def discard(self, answer: Answer) -> None:
        self._answers.discard(answer)

    def cut_all(self) -> None:
        """End every answer now: streams with an error event, the others visibly broken."""
        self._is_cut = True
        for answer in list(self._answers):
            answer.cut(UpstreamStage.DRAIN)
