"""From a row of a trace to a call: what the gateway would hold for it, on which lane, and what an engine makes of it.

The arithmetic is the gateway's own (core/offer.py); what is decided here is only what stands in for a real request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing
from gateway.core.lane_table import LaneTerms, RequestSize
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName, TenantName, TicketId
from gateway.core.offer import CountFirst, CountKind, Offer, PromptCount, Unfit, make_offer
from gateway.core.outcomes import RejectReason
from gateway.core.request import CapState, InferenceRequest, Prompt
from gateway.core.tenant import ANONYMOUS_TERMS, TenantTerms
from gateway.core.ticket import Need, Ticket
from gateway.replay.drive import Call
from gateway.replay.engine import Arrival, Sequence
from gateway.replay.setting import Setting, Site
from gateway.replay.trace import Request

_POOL = PoolName("pool")
_PROMPT = (Prompt(0),)
_KEPT: Final = 1 << 16  # requests of a trace resemble each other


@dataclass(frozen=True, slots=True)
class Misfit:
    """No grant could ever serve it."""

    reason: RejectReason


class TicketMaker:
    """All backends are alike, so one offer is true of each."""

    def __init__(self, site: Site, setting: Setting, budget: Budget, backends: Iterable[BackendName]) -> None:
        self._site = site
        self._caps = setting.caps
        self._budget = budget
        self._backends = tuple(backends)
        self._rules = EngineRules()
        self.weighing = Weighing(site.engine.block_tokens, site.max_context, None, site.engine.spare_blocks)
        self._context_blocks = self.weighing.sequence_blocks(site.max_context)
        pool_tokens = site.engine.blocks * site.engine.block_tokens
        self._most_tokens = max(min(site.max_context, pool_tokens + 1), 2)  # the last one is never written
        self._terms: dict[str, TenantTerms] = {"": ANONYMOUS_TERMS}
        self._offer = lru_cache(maxsize=_KEPT)(self._make_offer)
        self._lane = lru_cache(maxsize=_KEPT)(self._choose_lane)
        self._last_sequence = 0
        self.cut = 0  # answers that a cap ends before they would have ended

    def call(self, number: int, request: Request, *, now: float) -> Call | Misfit:
        """What a request is in this replay, arriving now."""
        site = self._site
        cap = self._caps.cap_of(request)
        counted = request.counted_tokens or request.prompt_tokens
        kind = CountKind.BOUND if request.is_bound else CountKind.EXACT
        made = self._offer(counted, kind, cap, request.sequences)
        if isinstance(made, CountFirst):
            counted, kind = request.prompt_tokens, CountKind.EXACT
            made = self._offer(counted, kind, cap, request.sequences)
        if not isinstance(made, Offer):
            assert isinstance(made, Unfit), "an exact count is all that can be asked for"
            return Misfit(made.reason)
        exact = self._offer(request.prompt_tokens, CountKind.EXACT, cap, request.sequences) if kind is CountKind.BOUND else None
        lane = self._lane(counted + (cap or 0), request.sequences)
        limits_s = (site.patience_s if lane.deadline_s is None else lane.deadline_s, site.ttft_target_s)
        ticket = Ticket(
            TicketId(number),
            _POOL,
            self._needs(made),
            arrived=now,
            deadline=now + min(limit_s for limit_s in limits_s if limit_s is not None),
            lane=lane.name,
            terms=self._terms_of(request.tenant),
            affinity=request.session.encode() or b"%d" % number,  # a prompt that begins like no other
            prompt_tokens=counted,
            cap_tokens=cap if cap is not None else site.default_output.tokens,
            family=request.model,
        )
        return Call(
            ticket,
            self._sequences(request, cap if made.cap_to_write is None else made.cap_to_write, now=now),
            is_stream=request.is_stream,
            exact_needs=self._needs(exact) if isinstance(exact, Offer) else None,
        )

    def _make_offer(self, counted: int, kind: CountKind, cap: int | None, sequences: int) -> Offer | CountFirst | Unfit:
        state = CapState.ABSENT if cap is None else CapState.SET
        return make_offer(
            InferenceRequest(None, _PROMPT, state, cap, is_chat=True, n=sequences),
            PromptCount((counted,), kind),
            rules=self._rules,
            weighing=self.weighing,
            budget=self._budget,
            default_output=self._site.default_output,
            overlong=self._site.overlong,
        )

    def _needs(self, offer: Offer) -> Mapping[BackendName, Need]:
        return dict.fromkeys(self._backends, offer)

    def _sequences(self, request: Request, cap: int | None, *, now: float) -> tuple[Sequence, ...]:
        """What the engine runs: as long as the answer would become, or until a cap or the context ends it. A prompt that was
        counted too low, so that no pool has it, is cut: it would be for ever in line there."""
        assert request.output_tokens is not None, "a finished trace knows all lengths"
        prompt = min(request.prompt_tokens, self._most_tokens - 1)
        wanted = -(-request.output_tokens // request.sequences)
        room = self._most_tokens - prompt
        output = min(wanted, room if cap is None else min(cap, room))
        self.cut += output < wanted
        first = self._last_sequence + 1
        self._last_sequence += request.sequences
        arrival = Arrival(now, prompt, output)
        numbers = range(first, first + request.sequences)
        return tuple(Sequence(number, arrival, cached_tokens=request.cached_tokens) for number in numbers)

    def _choose_lane(self, tokens: int, sequences: int) -> LaneTerms:
        lanes = self._site.lanes
        if len(lanes.lanes) == 1:
            return lanes.lanes[0]
        blocks = sequences * self.weighing.sequence_blocks(tokens)
        size = RequestSize(sequences * tokens, blocks, self._budget.blocks, self._context_blocks)
        return lanes.choose(size, asked=None, allowed=())

    def _terms_of(self, tenant: str) -> TenantTerms:
        terms = self._terms.get(tenant)
        if terms is None:
            terms = self._terms[tenant] = TenantTerms(TenantName(tenant))
        return terms
