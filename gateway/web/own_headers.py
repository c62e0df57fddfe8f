"""What kvgate says about a request in the headers of its answer, whoever wrote the answer."""

from collections.abc import Callable

from gateway.admission.controller import Controller
from gateway.web.error_answers import Headers
from gateway.web.journal import Journal
from gateway.web.reports import is_truncated, reported_tokens


def own_headers(journal: Journal, controller: Controller, now: Callable[[], float]) -> Headers:
    """What every answer carries, as far as it is known by now."""
    granted_at = journal.timeline.granted
    grant, pool, offer = journal.grant, journal.pool, journal.offer
    headers = [
        (b"x-kvgate-request-id", journal.request_id.encode()),
        (b"x-kvgate-queue-ms", b"%d" % journal.queue_ms(granted_at if granted_at is not None else now())),
    ]
    if grant is not None:
        headers.append((b"x-kvgate-blocks", b"%d" % grant.granted.worst_blocks))
        headers.append((b"x-kvgate-free-blocks", b"%d" % controller.free_blocks((grant.backend,))))
    elif pool is not None:
        blocks = journal.blocks
        if blocks is not None:
            headers.append((b"x-kvgate-blocks", b"%d" % blocks))
        headers.append((b"x-kvgate-free-blocks", b"%d" % controller.free_blocks([view.name for view in pool.backends])))
    if offer is not None and offer.cap_to_write is not None:
        headers.append((b"x-kvgate-output-cap", b"%d" % offer.cap_to_write))
    return headers


def truncation(journal: Journal) -> Headers:
    """What a plain answer that is whole, and not sent yet, says of its prompt."""
    reported = reported_tokens(journal)
    if reported is None or not is_truncated(journal, reported):
        return []
    return [(b"x-kvgate-truncated", b"%d" % reported)]
