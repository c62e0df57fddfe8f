"""A client that asks before it sends its body (`Expect: 100-continue`) is told no before, where that is certain."""

from gateway.core.decisions import Mode
from gateway.core.errors import Rejected
from gateway.core.outcomes import RejectReason
from gateway.web.rooms import Rooms
from gateway.web.running import shutting_down


def refuse_unread(rooms: Rooms) -> None:
    """Raises Rejected while the gateway drains, or while the only line there is is full.

    With a full line a small request might still have fitted beside those that wait. That is not worth an upload: whoever
    thinks so can send without asking.
    """
    if rooms.choices.mode is Mode.OBSERVE:
        return
    book = rooms.controller.snapshot()
    if book.draining:
        raise shutting_down()
    pool = rooms.roster.pool_for(None)
    lines = book.pools.get(pool.name, {}) if pool is not None else {}
    if lines and all(line.requests >= rooms.choices.queue_requests for line in lines.values()):
        raise Rejected("the queue is full", reason=RejectReason.QUEUE_FULL, retry_after_s=None)
