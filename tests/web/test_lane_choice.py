"""Which lane a request goes to: seen at a glance where its size cannot matter, and never another than its size decides."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.capacity import Capacity, Formula
from gateway.backends.view import BackendView, Pool
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import Weighing
from gateway.core.lane_table import DEFAULT_LANES
from gateway.core.ledger import Budget
from gateway.core.names import BackendName, PoolName
from gateway.core.offer import CountKind, Offer, PromptCount
from gateway.core.request import CapState, InferenceRequest, Prompt
from gateway.core.tenant import ANONYMOUS_TERMS
from gateway.web.lane_choice import lane_of, size_of
from gateway.web.weigh import Weighed
from support.backend_views import backend_view

PROMPT_TOKENS = 100


def view(name: str, blocks: int, context: int | None) -> BackendView:
    capacity = Capacity(Budget(blocks, 0), Weighing(16, context), EngineRules(), "engine", {}, Formula.AGREES)
    return backend_view(name, capacity=capacity, rules=capacity.rules)


@given(
    backends=st.lists(st.tuples(st.integers(1, 4000), st.none() | st.integers(1, 4096)), min_size=1, max_size=3),
    samples=st.integers(1, 4),
    cap=st.integers(1, 3000),
    unfit=st.sets(st.integers(0, 2)),
)
def test_a_lane_seen_at_a_glance_is_the_one_that_the_size_decides(
    backends: list[tuple[int, int | None]], samples: int, cap: int, unfit: set[int]
) -> None:
    pool = Pool(PoolName("pool"), tuple(view(str(number), *figures) for number, figures in enumerate(backends)))
    request = InferenceRequest("tiny", (Prompt(1, messages=1),), CapState.SET, cap, is_chat=True, n=samples)
    offers: dict[BackendName, Offer] = {}
    for number, each in enumerate(pool.planned):
        assert each.capacity is not None
        weighing = each.capacity.weighing
        blocks = samples * weighing.sequence_blocks(PROMPT_TOKENS + cap)
        if number not in unfit:
            offers[each.name] = Offer(blocks, samples, PROMPT_TOKENS, cap, weighing)
    weighed = Weighed(pool, PromptCount((PROMPT_TOKENS,), CountKind.BOUND), offers, cap)
    chosen = lane_of(DEFAULT_LANES, pool, request, weighed, {}, ANONYMOUS_TERMS)
    assert chosen == DEFAULT_LANES.choose(size_of(pool, request, weighed), asked=None, allowed=())
