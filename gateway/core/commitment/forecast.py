"""Forecast: charged = what a request has, plus the median of what such requests still produced from there on.

Never above its cap, and a sum over requests. It promises:
* without evidence, and wherever its judge says strict, a request whose client sent a cap is charged its worst: exactly
  what strict does;
* an absent cap without evidence is charged prompt + 1,024 and grows with progress, as long as the engine's preemption
  counter can be seen and has not moved, and such charges fill at most half of the budget; beyond that it is strict too;
* of the budget `headroom` stays free of forecasts, and never less than the reserve.

Requests of several sequences are charged as so many equal ones; their answers teach nothing, for only their sum is known.
"""

from typing import Final

from gateway.core.commitment.evidence import Evidence, Following
from gateway.core.commitment.judge import Judge
from gateway.core.commitment.lengths import Ending
from gateway.core.names import BackendName, TicketId
from gateway.core.snapshots import CommitmentSnapshot
from gateway.core.ticket import Need, Ticket

COLD_TOKENS: Final = 1024


class _Page:
    """What is known of one backend."""

    __slots__ = ("budget_blocks", "cold_blocks", "judge")

    def __init__(self, *, pinned: bool) -> None:
        self.budget_blocks = 0
        self.cold_blocks = 0
        self.judge = Judge(pinned=pinned)


class ForecastCommitment:
    """pinned: the operator insists, so that it also serves engines that do not show what they preempt."""

    def __init__(self, evidence: Evidence, *, pinned: bool = False) -> None:
        self._evidence = evidence
        self._pinned = pinned
        self._pages: dict[BackendName, _Page] = {}
        self._following: dict[TicketId, Following] = {}
        self._cold: dict[TicketId, tuple[_Page, int]] = {}  # blocks of who is charged by a guess without evidence

    def charge(self, ticket: Ticket, backend: BackendName, need: Need, output_tokens: int) -> int:
        page = self._pages.get(backend)
        if page is None or need.weighing is None or page.judge.is_strict:
            return need.worst_blocks
        each = -(-output_tokens // need.seats)
        lengths = self._evidence.lengths_for(ticket)
        if lengths is not None:
            expected = lengths.expected(each)
            return need.worst_blocks if expected is None else _blocks(need, expected)
        if ticket.cap_tokens is not None or not page.judge.may_start_cold:
            return need.worst_blocks
        blocks = _blocks(need, each + max(COLD_TOKENS, each))
        if ticket.id in self._cold:
            return blocks
        return blocks if 2 * (page.cold_blocks + blocks) <= page.budget_blocks else need.worst_blocks

    def limit_blocks(self, backend: BackendName, budget_blocks: int, reserve_blocks: int) -> int:
        page = self._pages.get(backend)
        if page is None or page.judge.is_strict:
            return budget_blocks - reserve_blocks
        return min(budget_blocks - reserve_blocks, int((1.0 - page.judge.headroom) * budget_blocks))

    def has_budget(self, backend: BackendName, budget_blocks: int) -> None:
        self._page(backend).budget_blocks = budget_blocks

    def begin(self, ticket: Ticket, backend: BackendName, need: Need) -> int:
        charged_blocks = self.charge(ticket, backend, need, 0)
        if ticket.cap_tokens is None:
            self._count_cold(ticket, backend, need, charged_blocks)
        return charged_blocks

    def moved(self, ticket: Ticket, backend: BackendName, need: Need, charged_blocks: int, output_tokens: int) -> None:
        following = self._following.get(ticket.id)
        if following is not None:
            following.reaches(output_tokens)
        elif need.seats == 1 and output_tokens:
            self._following[ticket.id] = self._evidence.follow(ticket, output_tokens)
        if ticket.cap_tokens is None:
            self._end_cold(ticket)
            self._count_cold(ticket, backend, need, charged_blocks)

    def ended(self, ticket: Ticket) -> None:
        if self._following:
            following = self._following.pop(ticket.id, None)
            if following is not None:
                following.ends()
        if ticket.cap_tokens is None:
            self._end_cold(ticket)

    def learn(self, ticket: Ticket, output_tokens: int, ending: Ending) -> bool:
        for need in ticket.needs.values():
            if need.seats > 1:
                return False
        return self._evidence.learn(ticket, output_tokens, ending)

    def read_engine(self, backend: BackendName, preemptions: int | None, *, overrun_fails_all: bool, now: float) -> bool:
        judge = self._page(backend).judge
        was_strict = judge.is_strict
        changed = judge.read(preemptions, overrun_fails_all=overrun_fails_all, now=now)
        if not was_strict and judge.is_strict and judge.last_preemption == now:
            self._evidence.doubt()
        return changed

    def snapshot(self, backend: BackendName) -> CommitmentSnapshot:
        page = self._page(backend)
        return CommitmentSnapshot(
            is_forecast=not page.judge.is_strict,
            headroom=page.judge.headroom,
            why=page.judge.why,
            last_preemption=page.judge.last_preemption,
            cold_blocks=page.cold_blocks,
        )

    def _page(self, backend: BackendName) -> _Page:
        page = self._pages.get(backend)
        if page is None:
            page = self._pages[backend] = _Page(pinned=self._pinned)
        return page

    def _count_cold(self, ticket: Ticket, backend: BackendName, need: Need, charged_blocks: int) -> None:
        """Keep the sum of guessed charges. What is charged its worst is no guess."""
        page = self._page(backend)
        is_guess = charged_blocks < need.worst_blocks and page.judge.may_start_cold
        if is_guess and self._evidence.lengths_for(ticket) is None:
            self._cold[ticket.id] = page, charged_blocks
            page.cold_blocks += charged_blocks

    def _end_cold(self, ticket: Ticket) -> None:
        if ticket.id in self._cold:
            page, charged_blocks = self._cold.pop(ticket.id)
            page.cold_blocks -= charged_blocks


def _blocks(need: Need, output_tokens: int) -> int:
    """Blocks if each of its sequences gets so many tokens."""
    assert need.weighing is not None
    if output_tokens > need.output_tokens:
        output_tokens = need.output_tokens
    blocks = need.weighing.sequence_blocks(need.prompt_tokens + output_tokens) * need.seats
    if blocks > need.worst_blocks:
        blocks = need.worst_blocks
    return blocks
