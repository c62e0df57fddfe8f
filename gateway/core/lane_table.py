"""The table of lanes: what each may have, and which of them a request goes to.

It promises: every request goes to exactly one lane of the table; a caller's wish counts only where the lane and the caller's
terms allow it; what nobody decided is decided by size.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from gateway.core.names import STANDARD_LANE, LaneName


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """One lane. None: no such limit, or that of the whole gateway.

    weight: its share among the lanes in which somebody waits, relative to theirs; above 0. cap_blocks, cap_share: charged
    blocks that it may hold in a pool, and the part of the pool's budgets likewise; both given, the smaller. What is larger
    than its lane's cap runs when the lane holds nothing. max_requests: may wait in it, per pool. deadline_s: longest wait.

    above_tokens, above_share: for requests whose prompt and sent cap are more than so many tokens, than that part of the
    largest backend. least_contexts: such a lane is there only where the largest backend holds so many whole contexts.
    by_header: callers may ask for it. is_open: for everybody; else only for tenants whose terms name it.
    """

    name: LaneName
    weight: float = 1.0
    cap_blocks: int | None = None
    cap_share: Fraction | None = None
    max_requests: int | None = None
    deadline_s: float | None = None
    above_tokens: int | None = None
    above_share: Fraction | None = None
    least_contexts: int = 0
    by_header: bool = False
    is_open: bool = True
    # above_share in whole numbers, worked out once: arithmetic of fractions costs as much as all else that is done here.
    share: tuple[int, int] | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", None if self.above_share is None else self.above_share.as_integer_ratio())

    def cap_of(self, budget_blocks: int) -> int | None:
        """Blocks that it may hold in a pool of that budget, at least 1; None: no cap."""
        caps = [] if self.cap_blocks is None else [self.cap_blocks]
        if self.cap_share is not None:
            caps.append(max(1, int(self.cap_share * budget_blocks)))
        return min(caps, default=None)


@dataclass(slots=True)
class RequestSize:
    """A request beside the largest backend that it may run on.

    tokens, blocks: its prompt and the cap that the client sent, in all sequences; without one only the prompt.
    budget_blocks, context_blocks: of that backend; None where they are not known.
    """

    tokens: int
    blocks: int
    budget_blocks: int | None
    context_blocks: int | None


@dataclass(frozen=True, slots=True)
class LaneTable:
    """Lanes in the order in which they were written. At least one, and one at least has no size of its own.

    ordinary: where a request goes that wishes nothing, whose tenant may use every open lane, and that is large for none.
    """

    lanes: tuple[LaneTerms, ...]
    ordinary: LaneTerms = field(init=False, compare=False, repr=False)
    _by_size: tuple[LaneTerms, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [lane.name for lane in self.lanes]
        if len(set(names)) < len(names):
            raise ValueError("two lanes have one name")
        ordinary = next((lane for lane in self.lanes if lane.is_open and not _has_size(lane)), None)
        if ordinary is None:
            raise ValueError("no lane takes ordinary requests: one must be open and have no size")
        object.__setattr__(self, "ordinary", ordinary)
        object.__setattr__(self, "_by_size", tuple(lane for lane in self.lanes if lane.is_open and _has_size(lane)))

    def terms(self, name: LaneName) -> LaneTerms:
        """What a lane may have; ordinary terms for one that is not in the table."""
        return next((lane for lane in self.lanes if lane.name == name), LaneTerms(name))

    def are_never_large(self, sequences: int, budget_blocks: int, context_blocks: int) -> bool:
        """Whether so many sequences, none longer than a context, are large for no open lane: then nothing need be weighed."""
        for lane in self._by_size:
            if lane.least_contexts and budget_blocks < lane.least_contexts * context_blocks:
                continue
            if lane.share is None:
                return False
            part, whole = lane.share
            if sequences * context_blocks * whole > part * budget_blocks:
                return False
        return True

    def choose(self, size: RequestSize, *, asked: str | None, allowed: tuple[LaneName, ...]) -> LaneTerms:
        """The lane of a request. asked: what its caller wishes, None if nothing. allowed: by the tenant's terms, in their
        order; empty: every open lane. Names of lanes that are not here count as not named."""
        usable = [lane for lane in self.lanes if lane.is_open]
        if allowed:
            usable = [lane for name in allowed for lane in self.lanes if lane.name == name] or usable
        if asked is not None:
            for lane in usable:
                if lane.name == asked and lane.by_header:
                    return lane
        fitting = [lane for lane in usable if _has_size(lane) and _is_above(lane, size)]
        if fitting:
            return max(fitting, key=lambda lane: _least_blocks(lane, size))
        for lane in usable:
            if not _has_size(lane):
                return lane
        return usable[0]


def _has_size(lane: LaneTerms) -> bool:
    return lane.above_tokens is not None or lane.above_share is not None


def _is_above(lane: LaneTerms, size: RequestSize) -> bool:
    if lane.least_contexts:
        if size.budget_blocks is None or size.context_blocks is None:
            return False
        if size.budget_blocks < lane.least_contexts * size.context_blocks:
            return False
    if lane.above_tokens is not None and size.tokens <= lane.above_tokens:
        return False
    if lane.share is None:
        return True
    part, whole = lane.share
    return size.budget_blocks is not None and size.blocks * whole > part * size.budget_blocks


def _least_blocks(lane: LaneTerms, size: RequestSize) -> Fraction:
    """How large a request must be for that lane, in blocks, to compare lanes with."""
    share = Fraction(0) if lane.above_share is None else lane.above_share * (size.budget_blocks or 0)
    tokens = Fraction((lane.above_tokens or 0) * size.blocks, max(size.tokens, 1))
    return max(share, tokens)


STANDARD_ONLY = LaneTable((LaneTerms(STANDARD_LANE),))
DEFAULT_LANES = LaneTable(
    (
        # A large request takes a quarter of a backend or more: the lane gets a quarter where both wait.
        LaneTerms(STANDARD_LANE, weight=3.0),
        LaneTerms(LaneName("long"), weight=1.0, above_share=Fraction(1, 4), least_contexts=8),
    )
)
