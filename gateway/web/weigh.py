"""Count and weigh: from a parsed request to what it needs on each backend of its pool.

The bound decides wherever it can; the exact count is asked for only where the bound would refuse, or where a cap of ours
depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.backends.capacity import Capacity
from gateway.backends.view import BackendView, Pool
from gateway.batched import in_task
from gateway.core.decisions import Mode
from gateway.core.errors import InvalidRequest, Rejected
from gateway.core.names import BackendName
from gateway.core.offer import CountFirst, CountKind, Offer, PromptCount, Unfit, effective_cap, make_offer, offer_at_once
from gateway.core.outcomes import RejectReason
from gateway.core.prompt_offer import make_prompt_offer
from gateway.core.request import InferenceRequest
from gateway.tokens.bound import is_exact, prompt_bound, prompt_least
from gateway.tokens.media import NO_COSTS, MediaCosts
from gateway.web.choices import Choices
from gateway.web.counting import Counting
from gateway.web.rooms import Rooms

_BOUND: Final = CountKind.BOUND  # to look up a member of an enum costs as much as a call


@dataclass(slots=True)
class Weighed:
    """A request with what it would hold on each backend that can serve it. would_refuse: only in observe mode.

    cap_tokens: the output cap of one sequence that was asked for, by the caller or by the operator; None: none.
    """

    pool: Pool
    count: PromptCount
    offers: Mapping[BackendName, Offer]
    cap_tokens: int | None
    would_refuse: RejectReason | None = None


def weigh_at_once(rooms: Rooms, pool: Pool, request: InferenceRequest) -> Weighed | None:
    """What `weigh` says wherever the bound decides, which takes no waiting; None where it does not."""
    choices, prompts = rooms.choices, request.prompts
    media = _media_of(rooms, pool) if rooms.media else ()
    prompt_tokens = None
    if len(prompts) == 1 and prompts[0].token_ids is None and not request.is_prompt_only:
        prompt_tokens = prompt_bound(prompts[0], media)
        count = PromptCount((prompt_tokens,), _BOUND)
    else:
        count = bound_of(request, media)
    offers: dict[BackendName, Offer] = {}
    for view in pool.planned:
        capacity = view.capacity
        assert capacity is not None
        offer: Offer | CountFirst | Unfit | None = None
        if prompt_tokens is not None:
            offer = offer_at_once(
                request, prompt_tokens, capacity.rules, capacity.weighing, capacity.budget, choices.default_output
            )
        if offer is None:
            offer = _offer_of(capacity, request, count, choices)
        if not isinstance(offer, Offer):
            return None
        offers[view.name] = offer
    return Weighed(pool, count, offers, request.cap_tokens or _cap_of(pool, request, choices)) if offers else None


async def weigh(rooms: Rooms, pool: Pool, request: InferenceRequest) -> Weighed:
    """What the request needs, on every backend of its pool that could ever serve it.

    Raises InvalidRequest where none ever can, with the numbers of the one that comes nearest; Rejected where no backend
    has told its capacity yet.
    """
    await in_task()
    known = pool.planned
    if not known and rooms.choices.mode is Mode.ENFORCE:
        healthy = sum(view.healthy for view in pool.backends)
        raise Rejected(
            f"no backend can be planned with at the moment: of {len(pool.backends)} for this model {healthy} answer, and"
            " none has a known KV budget",
            reason=RejectReason.NO_BACKEND,
            retry_after_s=None,
        )
    cap_tokens = _cap_of(pool, request, rooms.choices)
    count = bound_of(request, _media_of(rooms, pool) if rooms.media else ())
    offers, unfit, count_first = _offers(known, request, count, rooms.choices)
    if count_first:
        if rooms.choices.mode is Mode.ENFORCE:
            _refuse_overlong(known, request)
        counted = await _count_exactly(rooms.counter, count_first, request)
        if counted is not None:
            count = counted
        else:
            # What is never below the truth, or is so in a stated share of cases: neither refuses, and neither is exact.
            estimate = rooms.ratios.estimate(pool.family(request.model), request)
            count = PromptCount(count.tokens if estimate is None else estimate, CountKind.BOUND_ONLY)
        offers, unfit, _ = _offers(known, request, count, rooms.choices)
    if offers:
        return Weighed(pool, count, offers, cap_tokens)
    nearest = max(unfit, key=lambda found: found.limit) if unfit else None
    if rooms.choices.mode is Mode.OBSERVE:
        blind = {view.name: _blind_offer(view, nearest, request) for view in pool.backends}
        return Weighed(pool, count, blind, cap_tokens, nearest.reason if nearest else RejectReason.NO_BACKEND)
    assert nearest is not None, "a known backend answers with an offer or with why not"
    raise InvalidRequest(nearest.message, reason=nearest.reason, param=nearest.param, facts=nearest.facts)


def _refuse_overlong(views: Sequence[BackendView], request: InferenceRequest) -> None:
    """Raises InvalidRequest for a prompt that passes every context by its bytes alone: too large to be counted, or to wait."""
    contexts = [view.capacity.weighing.max_context for view in views if view.capacity is not None]
    least = max(map(prompt_least, request.prompts), default=0)
    known = [context for context in contexts if context is not None]
    # Where something is written as well, one token of the context is its.
    most = max(known, default=0) - (0 if request.is_prompt_only else 1)
    if len(known) == len(contexts) and known and least > most:
        raise InvalidRequest(
            f"the prompt is at least {least} tokens by its size, but the context is {max(known)}",
            reason=RejectReason.CONTEXT_LENGTH,
            param=request.prompt_param,
            facts={"context_tokens": max(known)},
        )


async def find_pool(rooms: Rooms, model: str | None) -> Pool:
    """The backends that serve `model`. Raises InvalidRequest for a model that nobody lists, after a fresh look."""
    pool = rooms.roster.pool_for(model)
    if pool is None:
        await in_task()
        await rooms.roster.refresh_models()
        pool = rooms.roster.pool_for(model)
    if pool is None:
        raise InvalidRequest(
            "no backend serves this model: GET /v1/models lists those that are served",
            reason=RejectReason.UNKNOWN_MODEL,
            param="model",
        )
    return pool


def bound_of(request: InferenceRequest, media: Sequence[MediaCosts] = ()) -> PromptCount:
    """The cheap count: exact for prompts that came as token ids, else never below the truth.

    media: what the backends that may run it make of images and the like; the dearest counts.
    """
    bounds = tuple([prompt_bound(prompt, media) for prompt in request.prompts])
    return PromptCount(bounds, CountKind.EXACT if is_exact(request) else _BOUND)


def _media_of(rooms: Rooms, pool: Pool) -> Sequence[MediaCosts]:
    return [rooms.media.get(view.name, NO_COSTS) for view in pool.backends]


def _cap_of(pool: Pool, request: InferenceRequest, choices: Choices) -> int | None:
    return effective_cap(request, pool.backends[0].rules) or choices.default_output.tokens


async def _count_exactly(counter: Counting, asked: list[BackendView], request: InferenceRequest) -> PromptCount | None:
    """The first count to be had, those that answer asked first: they serve the same model, so one count holds for all."""
    for view in sorted(asked, key=lambda view: not view.healthy):
        counted = await counter.count(view.name, request)
        if counted is not None:
            return counted
    return None


def reweigh(weighed: Weighed, request: InferenceRequest, count: PromptCount, choices: Choices) -> Weighed:
    """The request by an exact count that came later. Where it now turns out unfit, what was weighed before holds."""
    offers, _, _ = _offers(weighed.pool.planned, request, count, choices)
    return replace(weighed, count=count, offers={name: offers.get(name, offer) for name, offer in weighed.offers.items()})


def weigh_anew(rooms: Rooms, weighed: Weighed, request: InferenceRequest) -> Weighed:
    """A request in line, counted as it was, by what is known of its backends now.

    Where its bound does not suffice any more, it is weighed by the bound all the same: the exact count comes while it waits.
    What no budget holds any more is weighed with what it would need, so that the book refuses it with the numbers; a prompt
    that no context holds any more keeps what it had, and the engine refuses it.
    """
    pool = replace(weighed.pool, backends=tuple(rooms.roster.view(view.name) for view in weighed.pool.backends))
    known = pool.planned
    offers, unfit, count_first = _offers(known, request, weighed.count, rooms.choices)
    if count_first:
        by_bound, too_large, _ = _offers(
            count_first, request, PromptCount(weighed.count.tokens, CountKind.BOUND_ONLY), rooms.choices
        )
        offers |= by_bound
        unfit += too_large
    if not offers and unfit:
        nearest = max(unfit, key=lambda found: found.limit)
        if nearest.reason is not RejectReason.KV_BUDGET:
            return weighed
        offers = {view.name: _blind_offer(view, nearest, request) for view in known}
    # A backend that is away for a while is not another one.
    away = {view.name for view in pool.backends if view.capacity is None}
    return replace(weighed, pool=pool, offers={name: weighed.offers[name] for name in away & set(weighed.offers)} | offers)


def _offers(
    views: Sequence[BackendView], request: InferenceRequest, count: PromptCount, choices: Choices
) -> tuple[dict[BackendName, Offer], list[Unfit], list[BackendView]]:
    """What fits, what never will, and the backends on which that depends on the exact count."""
    offers: dict[BackendName, Offer] = {}
    unfit: list[Unfit] = []
    count_first: list[BackendView] = []
    for view in views:
        assert view.capacity is not None
        match _offer_of(view.capacity, request, count, choices):
            case Offer() as offer:
                offers[view.name] = offer
            case Unfit() as found:
                unfit.append(found)
            case CountFirst():
                count_first.append(view)
    return offers, unfit, count_first


def _offer_of(
    capacity: Capacity, request: InferenceRequest, count: PromptCount, choices: Choices
) -> Offer | CountFirst | Unfit:
    if request.is_prompt_only:
        return make_prompt_offer(request, count, rules=capacity.rules, weighing=capacity.weighing, budget=capacity.budget)
    return make_offer(
        request,
        count,
        rules=capacity.rules,
        weighing=capacity.weighing,
        budget=capacity.budget,
        default_output=choices.default_output,
        overlong=choices.overlong,
    )


def _blind_offer(view: BackendView, nearest: Unfit | None, request: InferenceRequest) -> Offer:
    """What no budget holds: in observe mode the engine gets it all the same, charged with what it asks for."""
    blocks = nearest.facts.get("need_blocks", 1) if nearest else 1
    sequences = request.n * max(len(request.prompts), 1)
    return Offer(max(blocks, 1), sequences, output_tokens=request.cap_tokens or 0)
