"""Capacity: how many blocks a backend may be planned with, where that figure is from, and how a demand is weighed there.

It promises:
* what the operator gave comes before what the engine says; both are shown side by side, and a contradiction is a warning;
* nothing is guessed: without a figure there is no capacity but a sentence that names the settings that supply it;
* the plain formula is trusted only where the engine's own figure agrees with it to the token. Where they disagree every
  sequence is weighed as one whole context, until a model's config bears the figure out; where there is no figure, formula
  and config are an assumption in print;
* budgets given, discovered and computed from memory are worked out each by itself and shown side by side. Memory of the
  host is no budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import Final

from gateway.backends.contradictions import contradictions
from gateway.backends.engines.engine import EngineReport
from gateway.backends.fitted_geometry import FittedGeometry, GivenGeometry, GivenMemory, Misfit, fit
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import PoolNeed, Weighing, ceil_div
from gateway.core.ledger import Budget
from gateway.core.reserve import Reserve, ReserveProblem

FROM_OPERATOR: Final = "KVGATE_KV_BLOCKS"
FROM_ENGINE: Final = "engine"
FROM_MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class GivenCapacity:
    """What the operator said of one backend. None: nothing. share: the part of the budget that this process may hold.

    geometry: the model's config and how it is stored; memory: of one card, from which a budget is computed.
    """

    kv_blocks: int | None = None
    block_tokens: int | None = None
    max_context: int | None = None
    seats: int | None = None
    share: float = 1.0
    geometry: GivenGeometry | None = None
    memory: GivenMemory | None = None
    reserve: Reserve = field(default_factory=lambda: Reserve.parse("5%"))


class Formula(Enum):
    """How far the plain formula, ceil(tokens / block_tokens), is known to hold."""

    AGREES = "agrees"  # with the engine's own figure, to the token
    ASSUMED = "assumed"  # the engine has no figure to compare it with
    REFUTED = "refuted"  # by the engine's figure, or by what the engine did


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a backend may be planned with.

    source: where the budget is from. budgets: every budget known, source -> blocks. rules: the engine's, as far as they
    depend on the capacity. bytes_per_block: on the card that holds most, None where the config is not known.
    assumptions, warnings: sentences for start, state and check.
    """

    budget: Budget
    weighing: Weighing
    rules: EngineRules
    source: str
    budgets: Mapping[str, int]
    formula: Formula
    bytes_per_block: int | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    context_blocks: int | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """context_blocks: of one sequence as long as the context, None where that is not known."""
        context = self.weighing.max_context
        object.__setattr__(self, "context_blocks", None if context is None else self.weighing.sequence_blocks(context))


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """Why nothing can be granted, in one sentence. conflict: two settings cannot both be true; nothing will cure it."""

    message: str
    conflict: bool = False


def work_out(report: EngineReport, given: GivenCapacity, *, distrust: str | None = None) -> Capacity | NoCapacity:
    """What a backend may be planned with, from what it says and what the operator gave.

    distrust: what the engine did that the plain formula does not explain; it counts where the formula is an assumption.
    """
    max_context = given.max_context or report.max_context
    block_tokens = given.block_tokens or report.block_tokens
    fitted: FittedGeometry | Misfit | None = None
    if given.geometry is not None:
        fitted = fit(report, given.geometry, block_tokens=block_tokens, max_context=max_context)
    geometry = fitted if isinstance(fitted, FittedGeometry) else None
    if block_tokens is None and geometry is not None:
        block_tokens = geometry.block_tokens
    told_blocks = _told_blocks(report, block_tokens)
    budgets = {
        FROM_OPERATOR: given.kv_blocks,
        FROM_ENGINE: told_blocks,
        FROM_MEMORY: _memory_blocks(given, geometry, block_tokens),
    }
    known = {source: figure for source, figure in budgets.items() if figure is not None}
    if not known or block_tokens is None:
        return NoCapacity(_missing(next(iter(known.values()), None), block_tokens))
    source, whole_budget = next(iter(known.items()))
    blocks = int(whole_budget * Fraction(str(given.share)))
    if blocks < 1:
        return NoCapacity(f"KVGATE_SHARE={given.share:g} of {whole_budget} blocks is less than one block", conflict=True)
    bytes_per_block = max(geometry.bytes_per_block) if geometry is not None else None
    reserve_blocks = given.reserve.resolve(blocks, bytes_per_block)
    if isinstance(reserve_blocks, ReserveProblem):
        return NoCapacity(reserve_blocks.message, conflict=reserve_blocks.too_large)
    check = _check_formula(report, block_tokens, max_context, distrust, geometry)
    seats = given.seats or report.seats
    budget = Budget(blocks, reserve_blocks, seats)
    weighing = Weighing(block_tokens, max_context, check.whole_context_blocks, report.rules.spare_blocks, check.pools)
    no_context = () if max_context is not None else ("its context is not told: KVGATE_MAX_CONTEXT sets it",)
    from_fit = fitted.assumptions if fitted is not None else ()
    return Capacity(
        budget=budget,
        weighing=weighing,
        rules=_settle_rules(report, weighing, budget),
        source=source,
        budgets=known,
        formula=check.formula,
        bytes_per_block=bytes_per_block,
        assumptions=(
            *(report.budget_assumptions if source == FROM_ENGINE else ()),
            *report.assumptions,
            *from_fit,
            *check.said,
            *no_context,
        ),
        warnings=(
            *report.warnings,
            *(fitted.warnings if fitted is not None else ()),
            *_more_than_told(report, given, told_blocks),
            *contradictions(known, given.memory, geometry),
        ),
    )


def conflict_in(given: GivenCapacity) -> str | None:
    """The sentence for settings that cannot both be true whatever the engine says, None if they can."""
    if given.kv_blocks is None:
        return None
    outcome = work_out(EngineReport("static", block_tokens=given.block_tokens or 1), given)
    return outcome.message if isinstance(outcome, NoCapacity) and outcome.conflict else None


def _told_blocks(report: EngineReport, block_tokens: int | None) -> int | None:
    """The engine's blocks, in blocks of `block_tokens` where its own unit is the token; None for none."""
    if report.usable_blocks is None or block_tokens is None:
        return None
    return (report.usable_blocks // block_tokens if report.cells else report.usable_blocks) or None


def _missing(blocks: int | None, block_tokens: int | None) -> str:
    if block_tokens is not None:
        return "it answers, but does not tell its KV capacity: set KVGATE_KV_BLOCKS"
    if blocks is not None:
        return "it answers, but does not tell the size of its KV blocks: set KVGATE_BLOCK_TOKENS"
    return "it answers, but tells no KV capacity: set KVGATE_KV_BLOCKS and KVGATE_BLOCK_TOKENS"


def _memory_blocks(given: GivenCapacity, geometry: FittedGeometry | None, block_tokens: int | None) -> int | None:
    """Blocks that the card's memory leaves room for; None where memory or geometry are not known."""
    if given.memory is None or geometry is None or block_tokens is None:
        return None
    blocks = geometry.blocks_within(given.memory.available_bytes)
    if geometry.block_tokens != block_tokens and not geometry.pools:
        blocks = blocks * geometry.block_tokens // block_tokens
    return blocks or None


@dataclass(frozen=True, slots=True)
class _Checked:
    """How sequences are weighed, how far that is known to be true, and what is said about it."""

    formula: Formula
    whole_context_blocks: int | None = None
    said: tuple[str, ...] = ()
    pools: tuple[PoolNeed, ...] = ()


def _check_formula(
    report: EngineReport, block_tokens: int, max_context: int | None, distrust: str | None, geometry: FittedGeometry | None
) -> _Checked:
    """Whether the config, or the plain formula, holds."""
    if geometry is not None and geometry.is_proved:
        return _Checked(Formula.AGREES, pools=geometry.pools)
    if report.cells:
        return _Checked(Formula.AGREES, pools=geometry.pools if geometry is not None else ())
    told_context, total_blocks = report.max_context, report.total_blocks
    if report.cache_tokens is not None and total_blocks is not None and report.block_tokens and told_context is not None:
        if report.cache_tokens in _plain_figures(total_blocks, report.block_tokens, told_context):
            return _Checked(Formula.AGREES)
        whole_context_blocks = ceil_div(total_blocks * told_context, report.cache_tokens)
        plain_blocks = ceil_div(told_context, report.block_tokens)
        said = (
            f"its layers do not all take blocks alike (a request of {told_context} tokens takes {whole_context_blocks}"
            f" blocks, not {plain_blocks}): every sequence is weighed as a whole context until KVGATE_MODEL_CONFIG fits"
        )
        return _Checked(Formula.REFUTED, whole_context_blocks, (said,))
    if distrust is None:
        if geometry is not None:
            return _Checked(Formula.ASSUMED, pools=geometry.pools)
        return _Checked(Formula.ASSUMED, said=(f"tokens / {block_tokens}, rounded up, is taken to be a request's blocks",))
    if max_context is None:
        return _Checked(Formula.ASSUMED, said=(f"{distrust}, and its context is not told: set KVGATE_MAX_CONTEXT",))
    plain = ceil_div(max_context, block_tokens)
    by_config = (geometry.full_length_blocks or 0) if geometry is not None else 0
    return _Checked(Formula.REFUTED, max(plain, by_config), (f"{distrust}: every sequence is weighed as a whole context",))


def _plain_figures(total_blocks: int, block_tokens: int, context: int) -> frozenset[int]:
    """What an engine with a single kind of layer says that its cache holds: present vLLM, as it computes it and exactly,
    and vLLM of 0.9 to 0.20, which did not yet round a request up to whole blocks."""
    context_blocks = ceil_div(context, block_tokens)
    return frozenset(
        (int(total_blocks / context_blocks * context), total_blocks * context // context_blocks, total_blocks * block_tokens)
    )


def _settle_rules(report: EngineReport, weighing: Weighing, budget: Budget) -> EngineRules:
    """The engine's rules, with the fair share of an uncapped request where its seats share one cache: so many as there are
    seats fit at once beside the reserve."""
    if not report.slots_share or budget.seats is None:
        return report.rules
    seat_tokens = budget.blocks * weighing.block_tokens // budget.seats
    if weighing.max_context is not None and seat_tokens >= weighing.max_context:
        return report.rules  # each seat has a cache of its own
    share_blocks = (budget.blocks - budget.reserve_blocks) // budget.seats
    return replace(report.rules, fair_share_tokens=share_blocks * weighing.block_tokens)


def _more_than_told(report: EngineReport, given: GivenCapacity, told_blocks: int | None) -> tuple[str, ...]:
    """What the operator gave that is more than the engine says it has. Less is a choice, not a contradiction."""
    pairs = (
        ("KVGATE_KV_BLOCKS", given.kv_blocks, told_blocks),
        ("KVGATE_MAX_CONTEXT", given.max_context, report.max_context),
        ("KVGATE_SEATS", given.seats, report.seats),
    )
    said = [f"{name}={ours}, but the engine says {its}" for name, ours, its in pairs if ours and its and ours > its]
    if given.block_tokens and report.block_tokens and not report.cells and given.block_tokens != report.block_tokens:
        said.append(f"KVGATE_BLOCK_TOKENS={given.block_tokens}, but the engine says {report.block_tokens}")
    return tuple(said)
