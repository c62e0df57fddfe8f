"""What the benchmarks of this folder need of pytest-benchmark, which is not typed."""

from collections.abc import Callable
from typing import Protocol


class Measure(Protocol):
    """The fixture `benchmark`: calls a function until its time is known well enough, and reports it."""

    def __call__(self, function: Callable[..., object], *arguments: object) -> object: ...
