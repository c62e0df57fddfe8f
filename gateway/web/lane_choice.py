"""Which lane a request goes to: what the table of lanes needs to know of it, put together."""

from typing import Final

from gateway.backends.view import Pool
from gateway.core.lane_table import LaneTable, LaneTerms, RequestSize
from gateway.core.request import InferenceRequest
from gateway.core.tenant import TenantTerms
from gateway.relay.headers import header_value
from gateway.web.error_answers import Headers
from gateway.web.weigh import Weighed

LANE_HEADER: Final = b"x-kvgate-lane"


def lane_of(
    lanes: LaneTable, pool: Pool, request: InferenceRequest, weighed: Weighed, headers: Headers, terms: TenantTerms
) -> LaneTerms:
    """The lane of a request, by its caller's wish where that counts, by its tenant, else by its size."""
    if len(lanes.lanes) == 1:
        return lanes.lanes[0]
    asked = header_value(headers, LANE_HEADER)
    size = size_of(pool, request, weighed)
    return lanes.choose(size, asked=None if asked is None else asked.decode("latin-1").strip(), allowed=terms.lanes)


def size_of(pool: Pool, request: InferenceRequest, weighed: Weighed) -> RequestSize:
    """A request beside the largest backend that it may run on. An output that nobody limited counts as nothing: whoever sends
    no cap is not taken for one who wants a whole context."""
    sent_tokens = request.cap_tokens or 0
    capacities = {
        view.name: view.capacity for view in pool.backends if view.capacity is not None and view.name in weighed.offers
    }
    largest = max(capacities, key=lambda name: capacities[name].budget.blocks, default=None)
    if largest is None:
        return RequestSize(weighed.count.total + sent_tokens, 1, None, None)
    offer, capacity = weighed.offers[largest], capacities[largest]
    weighing = capacity.weighing
    sequences = [(group.samples, group.prompt_tokens + sent_tokens) for group in offer.demand.groups]
    return RequestSize(
        tokens=sum(samples * tokens for samples, tokens in sequences),
        blocks=sum(samples * weighing.sequence_blocks(tokens) for samples, tokens in sequences),
        budget_blocks=capacity.budget.blocks,
        context_blocks=None if weighing.max_context is None else weighing.sequence_blocks(weighing.max_context),
    )
