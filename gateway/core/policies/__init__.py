"""Policies: the order of tickets within a line. One file each, which says whom it can starve."""

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.core.policies.deadline import DeadlinePolicy
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.policies.priority import PriorityPolicy
from gateway.core.policies.size import SizePolicy
from gateway.core.ticket import Ticket

Rank = tuple[float, ...]
"""Lower goes first. Among equal ranks the one that joined first."""


class Policy(Protocol):
    """One object per line, so it may keep count of what its line was given."""

    def rank(self, ticket: Ticket) -> Rank:
        """Where the ticket stands for as long as it waits; asked once, when it joins."""
        ...

    def granted(self, ticket: Ticket) -> None:
        """The ticket was granted, after waiting or at once."""
        ...

    def left(self, ticket: Ticket) -> None:
        """The ticket left the line without a grant."""
        ...


PolicyFactory = Callable[[], Policy]

POLICIES: Mapping[str, PolicyFactory] = {
    "fifo": FifoPolicy,
    "priority": PriorityPolicy,
    "deadline": DeadlinePolicy,
    "size": SizePolicy,
}
