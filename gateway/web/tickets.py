"""The ticket of a request: in which lane it stands, how long it waits at most, and what goes before what."""

from gateway.core.ticket import Ticket
from gateway.web.asked import Asked
from gateway.web.callers import asked_priority
from gateway.web.choices import Choices
from gateway.web.journal import Journal
from gateway.web.lane_choice import lane_of


def ticket_of(journal: Journal, choices: Choices, asked: Asked, *, first_arrived: float, patience_s: float | None) -> Ticket:
    """What a weighed request asks admission for.

    first_arrived: when its first try came, if this is another; else when it came itself. Monotonic seconds.
    patience_s: within which of its arrival its caller can still be told that it waits in vain; None: there is no end.
    """
    request, weighed, terms, arrived = journal.request, journal.weighed, journal.terms, journal.timeline.arrived
    assert request is not None
    assert weighed is not None
    pool = weighed.pool
    lane = lane_of(choices.lanes, pool, request, weighed, asked, terms)
    waits_s = choices.queue_timeout_s if lane.deadline_s is None else lane.deadline_s
    if choices.ttft_target_s is not None and choices.ttft_target_s < waits_s:
        waits_s = choices.ttft_target_s
    if patience_s is not None and patience_s < waits_s:
        waits_s = patience_s
    priority = asked_priority(asked, request.priority) if asked else request.priority
    return Ticket(  # by their places: to name them all would take twice as long as all the rest here
        journal.ticket_id,
        pool.name,
        weighed.offers,
        first_arrived,
        arrived + waits_s,
        lane.name,
        terms,
        terms.priority if priority is None else terms.priority_of(priority),
        request.affinity if len(pool.backends) > 1 else b"",  # nothing is to be chosen
        weighed.count.total,
        weighed.cap_tokens,
        pool.family(request.model),
        first_arrived < arrived,
    )
