"""A client that asks before it sends its body (`Expect: 100-continue`) is told no before, where that is certain."""

from gateway.core.decisions import Mode
from gateway.core.errors import Rejected
from gateway.core.outcomes import RejectReason
from gateway.web.rooms import Rooms
from gateway.web.running import shutting_down


def refuse_unread(rooms: Rooms) -> None:
    """Raises Rejected while the gateway drains, or while every lane that there is is full.

    With full lanes a small request might still have fitted beside those that wait. That is not worth an upload: whoever
    thinks so can send without asking.
    """
    if rooms.choices.mode is Mode.OBSERVE:
        return
    book = rooms.controller.snapshot()
    if book.draining:
        raise shutting_down()
    pool = rooms.roster.pool_for(None)
    lines = book.pools.get(pool.name, {}) if pool is not None else {}
    # A lane for what is large on large backends may not exist here; every other may be the one of this request.
    ordinary = {lane.name for lane in rooms.choices.lanes.lanes if not lane.least_contexts}
    if lines.keys() >= ordinary and all(line.requests >= line.max_requests for line in lines.values()):
        raise Rejected("the queue is full", reason=RejectReason.QUEUE_FULL, retry_after_s=None)
