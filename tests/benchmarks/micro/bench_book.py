"""A decision of the book: one request ends, another comes, with nobody in line and with thousands, while many run."""

from collections import deque

import pytest

from benchmarks.micro.measure import Measure
from gateway.books.memory import memory_book
from gateway.core.decisions import Granted, Mode
from gateway.core.guards import Guards
from gateway.core.ledger import Budget
from gateway.core.queue import QueueLimits
from support.tickets import A, ids, ticket, tid, waiting

RUNNING = 1_000
BLOCKS = 4


class Traffic:
    """A book as the gateway keeps it by default, in which so many run, which fills it, and so many wait."""

    def __init__(self, in_line: int) -> None:
        self.book = memory_book(
            mode=Mode.ENFORCE,
            commitment="auto",
            policy="fifo",
            limits=QueueLimits(max_requests=in_line + 1),
            guards=Guards(),
        )
        self.book.set_backend(A, budget=Budget(RUNNING * BLOCKS), serving=True, now=0.0)
        self.running: deque[int] = deque()
        self._next = 0
        for _ in range(RUNNING + in_line):
            self._join()

    def turn(self) -> None:
        """The oldest ends, which lets in the first of the line, and one more comes."""
        self.running.extend(ids(self.book.release(tid(self.running.popleft()), now=0.0)))
        self._join()

    def _join(self) -> None:
        number, self._next = self._next, self._next + 1
        if isinstance(self.book.join(ticket(number, BLOCKS), now=0.0), Granted):
            self.running.append(number)


@pytest.mark.parametrize("in_line", [0, 1_000, 10_000])
def test_a_release_and_a_join(benchmark: Measure, in_line: int) -> None:
    traffic = Traffic(in_line)
    benchmark(traffic.turn)
    assert len(traffic.running) == RUNNING
    assert waiting(traffic.book) == in_line
