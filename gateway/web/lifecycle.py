"""Lifecycle: from the start to the end of a drain, as `/ready` and the answers show it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Lifecycle:
    """started: monotonic seconds. is_stopping: a signal came; `/ready` says so at once, whatever else waits for the delay."""

    started: float
    is_stopping: bool = False
