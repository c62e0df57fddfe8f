"""The book kept in this process: core's own, put together from the names that settings use."""

from gateway.core.book import Book
from gateway.core.commitment import COMMITMENTS
from gateway.core.decisions import Mode
from gateway.core.policies import POLICIES
from gateway.core.queue import QueueLimits


def memory_book(*, mode: Mode, commitment: str, policy: str, limits: QueueLimits) -> Book:
    """A book with nothing in it. Raises KeyError for a commitment or a policy that is in no table."""
    return Book(mode=mode, commitment=COMMITMENTS[commitment](), policy=POLICIES[policy], limits=limits)
