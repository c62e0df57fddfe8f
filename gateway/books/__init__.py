"""Where the book is kept. One contract, one line in the table for each place that keeps it."""

from collections.abc import Mapping
from typing import Protocol

from gateway.books.contract import BookContract
from gateway.books.memory import memory_book
from gateway.core.commitment import Evidence
from gateway.core.decisions import Mode
from gateway.core.guards import Guards
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.queue import QueueLimits

__all__ = ["BOOKS", "BookContract", "BookFactory", "memory_book"]


class BookFactory(Protocol):
    """Makes an empty book from the names in the tables of core/commitment and core/policies."""

    def __call__(
        self,
        *,
        mode: Mode,
        commitment: str,
        policy: str,
        limits: QueueLimits,
        lanes: LaneTable = STANDARD_ONLY,
        evidence: Evidence | None = None,
        guards: Guards | None = None,
    ) -> BookContract: ...


BOOKS: Mapping[str, BookFactory] = {"memory": memory_book}
