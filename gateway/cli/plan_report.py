"""A plan as text for people and as JSON for programs; the figures are core/geometry's."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gateway.core.geometry.groups import Kind, bytes_per_token
from gateway.core.geometry.kv_memory import kv_budget_bytes, sessions_within
from gateway.core.geometry.plan import PROMISE, Plan
from gateway.core.geometry.pools import Pool, share_one_memory, usable_blocks
from gateway.core.geometry.report import groups_report, number
from gateway.core.reserve import Reserve, ReserveProblem, ReserveUnit
from gateway.units import show_bytes

NOT_COUNTED: Final = (
    "an engine computes on what lies on the card only. What it moves to the host must come back before the next token: that"
    " hides a shortage of blocks for a while and makes none"
)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a card's memory leaves, in bytes on one rank and in blocks of the first pool."""

    total_bytes: int
    weights_bytes: int
    is_estimate: bool
    runtime_bytes: int
    reserve_bytes: int
    available_bytes: int
    blocks: tuple[int, ...]
    sessions: dict[int, int]
    sessions_by_bytes: dict[int, int]
    beside_the_longest: dict[int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """A plan and what was asked of it. naive: bytes of one token by the naive formula, of the whole model."""

    plan: Plan
    lengths: tuple[int, ...]
    memory: Memory | None
    naive: Fraction | None
    said: tuple[str, ...]

    @property
    def assumptions(self) -> tuple[str, ...]:
        estimate = ("the weights are an estimate: their files' size divided evenly over the ranks",)
        return (
            *self.said,
            *self.plan.assumptions,
            *(estimate if self.memory is not None and self.memory.is_estimate else ()),
            *PROMISE,
        )

    def naive_bytes(self, tokens: int) -> int | None:
        """What the naive formula says for one rank, dividing over the ranks as its users do."""
        if self.naive is None:
            return None
        ranks = self.plan.settings.tp * len(self.plan.stages)
        return int(self.naive * tokens / ranks)


def plan_memory(
    plan: Plan,
    *,
    total_bytes: int,
    weights_bytes: int,
    is_estimate: bool,
    runtime_bytes: int,
    reserve: str,
    lengths: tuple[int, ...],
) -> Memory:
    """What is left for the cache and what fits it. Raises ValueError with a sentence where nothing is left."""
    parsed = Reserve.parse(reserve)
    before = kv_budget_bytes(total_bytes=total_bytes, weights_bytes=weights_bytes, runtime_bytes=runtime_bytes)
    if before == 0:
        raise ValueError(
            f"weights ({show_bytes(weights_bytes)}) and runtime ({show_bytes(runtime_bytes)}) leave nothing of"
            f" {show_bytes(total_bytes)}"
        )
    pools = plan.pools_at(lengths[-1])
    per_block = pools[0].bytes_per_block if pools else None
    if parsed.unit is ReserveUnit.BYTES:
        reserve_bytes = int(parsed.amount)
    else:
        whole = before // per_block if per_block else before
        resolved = parsed.resolve(max(whole, 1), per_block)
        if isinstance(resolved, ReserveProblem):
            raise ValueError(resolved.message)
        reserve_bytes = resolved * (per_block or 1)
    available = kv_budget_bytes(
        total_bytes=total_bytes, weights_bytes=weights_bytes, runtime_bytes=runtime_bytes, reserve_bytes=reserve_bytes
    )
    longest = next((tokens for tokens in reversed(lengths) if plan.sessions(tokens, available)), None)
    beside: dict[int, int] = {}
    if longest is not None and pools and not share_one_memory(pools):
        beside = {tokens: _beside(plan, longest, tokens, available) for tokens in lengths if tokens < longest}
    return Memory(
        total_bytes=total_bytes,
        weights_bytes=weights_bytes,
        is_estimate=is_estimate,
        runtime_bytes=runtime_bytes,
        reserve_bytes=reserve_bytes,
        available_bytes=available,
        blocks=usable_blocks(pools, available) if pools and not share_one_memory(pools) else (),
        sessions={tokens: plan.sessions(tokens, available) for tokens in lengths},
        sessions_by_bytes={tokens: sessions_within(available, max(plan.bytes_at(tokens), 1)) for tokens in lengths},
        beside_the_longest={longest: 1, **beside} if longest is not None and beside else {},
    )


def _beside(plan: Plan, longest: int, tokens: int, available: int) -> int:
    """Sequences of `tokens` that fit beside one of the longest."""
    pools = plan.pools_at(longest)
    blocks = usable_blocks(pools, available)
    return min(
        (have - pool.need(longest)) // pool.need(tokens)
        for pool, have in zip(pools, blocks, strict=True)
        if pool.memory_share and pool.need(tokens)
    )


def report_json(report: Report) -> dict[str, Any]:
    """Everything as plain data. bytes_per_token, groups, bytes_at, bytes_per_block and blocks_at are of one rank."""
    plan, lengths = report.plan, report.lengths
    groups, settings = plan.groups, plan.settings
    before = bytes_per_token(groups, windows_full=False)
    told: dict[str, Any] = {
        "model_type": plan.model.model_type,
        "engine": settings.engine,
        "kv_dtype": settings.dtype.name,
        "tp": settings.tp,
        "pp": len(plan.stages),
        "layers": len(plan.model.layers),
        "bytes_per_token": number(plan.rate),
        "bytes_per_token_before_windows_fill": number(before),
        "state_bytes_per_request": sum(group.layers * group.state_bytes for group in groups),
        "fixed_cross_bytes": sum(group.ideal_bytes(0) for group in groups if group.kind is Kind.CROSS),
        "bytes_at": {str(tokens): plan.bytes_at(tokens) for tokens in lengths},
        "groups": groups_report(groups),
        "bytes_per_token_per_rank": number(plan.rate),
        "bytes_per_token_all_tp_ranks": number(plan.rate * settings.tp),
        "bytes_at_per_rank": {str(tokens): plan.bytes_at(tokens) for tokens in lengths},
    }
    if len(plan.stages) > 1:
        rates = [bytes_per_token(stage, windows_full=True) for stage in plan.stages]
        told |= {
            "layer_partition": list(settings.partition),
            "bytes_per_token_per_stage": [number(rate) for rate in rates],
            "bytes_per_token_worst_stage": number(max(rates)),
            "naive_even_split": float(sum(rates) / len(rates)),
        }
    told |= _blocks_json(report)
    if report.naive is not None:
        naive = {tokens: report.naive_bytes(tokens) or 0 for tokens in lengths}
        told["naive"] = {
            "bytes_per_token": number(report.naive / settings.tp / len(plan.stages)),
            "bytes_at": {str(tokens): size for tokens, size in naive.items()},
            "times_exact_at": {str(tokens): round(size / max(plan.bytes_at(tokens), 1), 2) for tokens, size in naive.items()},
        }
    if report.memory is not None:
        told["memory"] = _memory_json(report.memory)
    return {**told, "assumptions": list(report.assumptions)}


def _blocks_json(report: Report) -> dict[str, Any]:
    plan, lengths = report.plan, report.lengths
    if plan.no_pool:
        return {"bytes_per_block": None, "block_tokens": None, "blocks_at": None}
    at = {tokens: plan.pools_at(tokens) for tokens in lengths}
    first = at[lengths[-1]][0]
    blocks = {str(tokens): pools[0].need(tokens) for tokens, pools in at.items()}
    told: dict[str, Any] = {
        "bytes_per_block": first.bytes_per_block,
        "block_tokens": first.block_tokens,
        "blocks_at": blocks,
    }
    if plan.settings.engine == "vllm":
        startup = {str(tokens): pools[0].startup_blocks for tokens, pools in at.items()}
        told["vllm"] = {
            "bytes_per_block": first.bytes_per_block,
            "groups": [[str(group.kind), group.layers, group.block_tokens] for group in first.groups],
            "blocks_at": blocks,
            "bytes_at": {tokens: count * first.bytes_per_block for tokens, count in blocks.items()},
            **({"startup_sizing_blocks_at": startup} if startup != blocks else {}),
        }
    else:
        told["pools"] = [_pool_json(place, pool, at) for place, pool in enumerate(at[lengths[-1]])]
    return told


def _pool_json(place: int, pool: Pool, at: dict[int, tuple[Pool, ...]]) -> dict[str, Any]:
    return {
        "name": pool.name,
        "unit": pool.unit,
        "block_tokens": pool.block_tokens,
        "bytes_per_block": pool.bytes_per_block,
        "blocks_at": {str(tokens): pools[place].need(tokens) for tokens, pools in at.items()},
    }


def _memory_json(memory: Memory) -> dict[str, Any]:
    return {
        "total_bytes": memory.total_bytes,
        "weights_bytes": memory.weights_bytes,
        "weights_are_an_estimate": memory.is_estimate,
        "runtime_bytes": memory.runtime_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "available_bytes": memory.available_bytes,
        "blocks": list(memory.blocks),
        "sessions_at": {str(tokens): count for tokens, count in memory.sessions.items()},
        "sessions_by_bytes_at": {str(tokens): count for tokens, count in memory.sessions_by_bytes.items()},
        "mix": {str(tokens): count for tokens, count in memory.beside_the_longest.items()},
    }


def report_text(report: Report) -> str:
    """The same for people."""
    plan, settings = report.plan, report.plan.settings
    ranks = f", on one of {settings.tp} ranks" if settings.tp > 1 else ""
    stages = f", the fullest of {len(plan.stages)} stages" if len(plan.stages) > 1 else ""
    where = f"{settings.engine}{ranks}{stages}"
    lines = [
        f"{plan.model.model_type}: {len(plan.model.layers)} layers, KV dtype {settings.dtype.name}, {where}",
        "",
        "what it keeps",
        *(f"  {group.words}" for group in plan.groups),
        f"  {number(plan.rate):,} bytes for one more token once all windows are full",
        "",
        *_table(report),
    ]
    if not plan.no_pool:
        lines += ["", *_pool_lines(report)]
    if report.memory is not None:
        lines += ["", *_memory_lines(report, report.memory)]
    lines += ["", "assumed", *(f"  {sentence}" for sentence in report.assumptions)]
    return "\n".join(lines)


def _table(report: Report) -> list[str]:
    plan = report.plan
    rows = [["tokens", "exact", "in blocks", "naive formula", "naive / exact"]]
    for tokens in report.lengths:
        exact, naive = plan.bytes_at(tokens), report.naive_bytes(tokens)
        blocks = sum(
            pool.need(tokens) * pool.bytes_per_block
            for pool in plan.pools_at(tokens)
            if pool.for_each_block is None  # the others' memory is part of the first one's block
        )
        rows.append(
            [
                f"{tokens:,}",
                _mib(exact),
                _mib(blocks) if blocks else "-",
                "-" if naive is None else _mib(naive),
                "-" if naive is None or not exact else f"{naive / exact:.2f}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def _pool_lines(report: Report) -> list[str]:
    pools = report.plan.pools_at(report.lengths[-1])
    lines = []
    for place, pool in enumerate(pools):
        blocks = ", ".join(f"{tokens:,}: {report.plan.blocks_at(tokens)[place]:,}" for tokens in report.lengths)
        tables = len(pool.groups)
        lines.append(
            f"{pool.name}: {pool.unit}s of {pool.block_tokens} tokens and {pool.bytes_per_block:,} bytes"
            + (f", {tables} tables drawing from them" if tables > 1 else "")
        )
        lines.append(f"  {pool.unit}s of one sequence: {blocks}")
    return lines


def _memory_lines(report: Report, memory: Memory) -> list[str]:
    estimate = " (estimate)" if memory.is_estimate else ""
    reserve = f" - reserve {_gib(memory.reserve_bytes)}" if memory.reserve_bytes else ""
    taken = f"weights {_gib(memory.weights_bytes)}{estimate} - runtime {_gib(memory.runtime_bytes)}{reserve}"
    lines = [f"memory of one card: {_gib(memory.total_bytes)} - {taken} = {_gib(memory.available_bytes)}"]
    for pool, blocks in zip(report.plan.pools_at(report.lengths[-1]), memory.blocks, strict=False):  # none where not known
        lines.append(f"  {blocks:,} {pool.unit}s ({pool.name})")
    for tokens, count in memory.sessions.items():
        by_bytes = memory.sessions_by_bytes[tokens]
        lines.append(
            f"  {count:,} sessions of {tokens:,} tokens"
            + (f" in whole blocks, {by_bytes:,} by bytes alone" if by_bytes != count else "")
        )
    if memory.beside_the_longest:
        (longest, _), *others = memory.beside_the_longest.items()
        lines += [f"  one of {longest:,} and {count:,} of {tokens:,}" for tokens, count in others]
    return lines


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.2f} GiB"
