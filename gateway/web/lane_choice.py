"""Which lane a request goes to: what the table of lanes needs to know of it, put together."""

from gateway.backends.view import Pool
from gateway.core.lane_table import LaneTable, LaneTerms, RequestSize
from gateway.core.request import InferenceRequest
from gateway.core.tenant import TenantTerms
from gateway.web.asked import LANE, Asked
from gateway.web.weigh import Weighed


def lane_of(
    lanes: LaneTable, pool: Pool, request: InferenceRequest, weighed: Weighed, asked: Asked, terms: TenantTerms
) -> LaneTerms:
    """The lane of a request, by its caller's wish where that counts, by its tenant, else by its size."""
    if len(lanes.lanes) == 1:
        return lanes.lanes[0]
    wish = asked.get(LANE)
    largest = pool.largest
    if wish is None and largest is not None and not terms.lanes:
        # How many sequences there are may tell by itself that their lengths do not matter.
        capacity, offer = largest.capacity, weighed.offers.get(largest.name)
        if (
            capacity is not None
            and offer is not None
            and capacity.context_blocks is not None
            and lanes.are_never_large(offer.seats, capacity.budget.blocks, capacity.context_blocks)
        ):
            return lanes.ordinary
    size = size_of(pool, request, weighed)
    return lanes.choose(size, asked=None if wish is None else wish.decode("latin-1").strip(), allowed=terms.lanes)


def size_of(pool: Pool, request: InferenceRequest, weighed: Weighed) -> RequestSize:
    """A request beside the largest backend that it may run on. An output that nobody limited counts as nothing: whoever sends
    no cap is not taken for one who wants a whole context."""
    sent_tokens = request.cap_tokens or 0
    offers = weighed.offers
    largest, capacity = None, None
    for view in pool.planned:
        found = view.capacity
        if found is not None and view.name in offers and (capacity is None or found.budget.blocks > capacity.budget.blocks):
            largest, capacity = view.name, found
    if largest is None or capacity is None:
        return RequestSize(weighed.count.total + sent_tokens, 1, None, None)
    offer, weighing = offers[largest], capacity.weighing
    if offer.demand is None:
        tokens = offer.prompt_tokens + sent_tokens
        blocks = weighing.sequence_blocks(tokens)
        return RequestSize(offer.seats * tokens, offer.seats * blocks, capacity.budget.blocks, capacity.context_blocks)
    tokens = blocks = 0
    for each in offer.demand.groups:
        tokens += each.samples * (each.prompt_tokens + sent_tokens)
        blocks += each.samples * weighing.sequence_blocks(each.prompt_tokens + sent_tokens)
    return RequestSize(tokens, blocks, capacity.budget.blocks, capacity.context_blocks)
