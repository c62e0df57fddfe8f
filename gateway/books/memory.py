"""The book kept in this process: core's own, put together from the names that settings use."""

from gateway.core.book import Book
from gateway.core.commitment import COMMITMENTS, Evidence
from gateway.core.decisions import Mode
from gateway.core.guards import Guards
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.policies import POLICIES
from gateway.core.queue import QueueLimits


def memory_book(
    *,
    mode: Mode,
    commitment: str,
    policy: str,
    limits: QueueLimits,
    lanes: LaneTable = STANDARD_ONLY,
    evidence: Evidence | None = None,
    guards: Guards | None = None,
) -> Book:
    """A book with nothing in it. evidence: what its commitment learns into, and begins with. guards None: off.

    Raises KeyError for a commitment or a policy that is in no table.
    """
    return Book(
        mode=mode,
        commitment=COMMITMENTS[commitment](evidence or Evidence()),
        policy=POLICIES[policy],
        limits=limits,
        lanes=lanes,
        guards=guards,
    )
