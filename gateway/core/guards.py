"""Guards: memory is not the only thing that runs out. Two limits beside the fit test, per backend, both about computing.

* Unanswered prompts: tokens expected to be computed for granted requests that have no first token yet stay below about two
  engine steps, taken to be as many as are computed within the token gap that is aimed at, so that nothing queues inside
  the engine where nobody sees it and no step full of prompts makes everybody's next token late. A prompt larger than that
  goes when no other is unanswered.
* Token gap: additive increase and multiplicative decrease of the sequences that run at once hold the observed gap between
  tokens at nine tenths of a target.

They promise: a backend on which nothing runs is never barred; what is barred now becomes free by answers and ends alone;
who has been unanswered for much longer than its prompt explains bars nobody any more.
"""

from typing import Final

from gateway.core.names import BackendName, TicketId
from gateway.core.pace import Pace
from gateway.core.snapshots import GuardSnapshot

UNKNOWN_LIMIT_TOKENS: Final = 8192  # until the prefill rate is known: two steps of 4,096, one of the largest in use
_LEAST_LIMIT_TOKENS: Final = 2048  # one step of vLLM's usual size
_MOST_LIMIT_TOKENS: Final = 16384  # two steps of its largest default
_TWO_STEPS_S: Final = 0.1  # while no gap is aimed at
_ASSUMED_TOKENS_PER_S: Final = 4096.0
_LATE: Final = 4.0  # times the expected time after which a missing first token is no sign of computing
_LATE_AFTER_S: Final = 5.0

_LIGHT_TIMES: Final = 3.0
_SET_POINT: Final = 0.9
_DECREASE: Final = 0.9
_INCREASE: Final = 0.1  # at most, where the gap is far below the target; at least one sequence
# A decode step of so few is bound by reading the weights: a long gap then has another cause, which fewer would not cure.
_LEAST_SEQUENCES: Final = 4


class _Page:
    __slots__ = ("has_barred", "is_slow", "limit_tokens", "name", "pace", "seat_limit", "unanswered", "unanswered_tokens")

    def __init__(self, name: BackendName) -> None:
        self.name = name
        self.pace = Pace()
        self.limit_tokens = UNKNOWN_LIMIT_TOKENS  # that may be unanswered, by what is known of the pace
        self.unanswered = 0
        self.unanswered_tokens = 0.0
        self.has_barred = False  # somebody, since room last came free
        self.seat_limit: float | None = None
        self.is_slow = False  # the last window's gap was above the set point


_Unanswered = tuple[_Page, float, float, float]
"""Where it runs; tokens expected to be computed for it; those, and of all that were unanswered before it; when granted."""


class Guards:
    """Of all backends. gap_target_s: None takes three times the gap of the lightly loaded engine. is_on False watches the
    pace and bars nobody."""

    def __init__(self, *, gap_target_s: float | None = None, is_on: bool = True) -> None:
        self._gap_target_s = gap_target_s
        self._is_on = is_on
        self._pages: dict[BackendName, _Page] = {}
        self._unanswered: dict[TicketId, _Unanswered] = {}

    def pace(self, name: BackendName) -> Pace:
        """What is known of a backend's speed. Read only."""
        return (self._pages.get(name) or self._page(name)).pace

    def admits(self, name: BackendName, prompt_tokens: int) -> bool:
        """Whether a prompt may be computed there now, beside those that are unanswered. A no is remembered."""
        page = self._pages.get(name)
        if page is None or not page.unanswered or not self._is_on:
            return True
        if page.unanswered_tokens + prompt_tokens * page.pace.computed_share <= page.limit_tokens:
            return True
        page.has_barred = True
        return False

    def would_admit(self, name: BackendName, prompt_tokens: int) -> bool:
        """As `admits`, for who only looks."""
        page = self._pages.get(name)
        if page is None or not page.unanswered or not self._is_on:
            return True
        return page.unanswered_tokens + prompt_tokens * page.pace.computed_share <= page.limit_tokens

    def has_room(self, name: BackendName) -> bool:
        """Whether any prompt at all may be computed there now: a quick no before many tickets are tried."""
        page = self._pages.get(name)
        if page is None or not page.unanswered or not self._is_on or page.unanswered_tokens < page.limit_tokens:
            return True
        page.has_barred = True
        return False

    def granted(self, ticket_id: TicketId, name: BackendName, prompt_tokens: int, *, now: float) -> None:
        """A request was granted: its prompt is unanswered from now on."""
        page = self._pages.get(name) or self._page(name)
        tokens = prompt_tokens * page.pace.computed_share
        page.unanswered += 1
        page.unanswered_tokens += tokens
        self._unanswered[ticket_id] = page, tokens, page.unanswered_tokens, now

    def answered(self, ticket_id: TicketId, *, now: float | None) -> BackendName | None:
        """Its first token came, or cannot be waited for any more (now None). Returns where somebody may be admitted now who
        was barred before; None if nobody was."""
        gone = self._unanswered.pop(ticket_id, None)
        if gone is None:
            return None
        page, tokens, ahead, granted = gone
        page.unanswered -= 1
        page.unanswered_tokens = page.unanswered_tokens - tokens if page.unanswered else 0.0
        if now is not None:
            page.pace.saw_first_token(ahead, now - granted)
            page.limit_tokens = self._limit(page.pace)
        if not page.has_barred:
            return None
        page.has_barred = False
        return page.name

    def expected_s(self, ticket_id: TicketId, *, is_stream: bool) -> float:
        """Seconds after its grant from which a request counts as answered whatever was seen of it.

        Of a plain request no first token is ever seen: it has one when its prompt was probably computed. A stream that has
        none long after that waits for something else.
        """
        waits = self._unanswered.get(ticket_id)
        if waits is None:
            return 0.0
        page, _, ahead, _ = waits
        seconds = ahead / (page.pace.prefill_tokens_per_s or _ASSUMED_TOKENS_PER_S)
        return max(_LATE * seconds, _LATE_AFTER_S) if is_stream else seconds

    def prefill_s(self, name: BackendName, prompt_tokens: int) -> float:
        """Seconds from a grant now to the first token, by the observed rate; 0 while that is unknown."""
        page = self._pages.get(name)
        if page is None or page.pace.prefill_tokens_per_s is None:
            return 0.0
        return (page.unanswered_tokens + prompt_tokens * page.pace.computed_share) / page.pace.prefill_tokens_per_s

    def saw_gaps(self, name: BackendName, seconds: float, tokens: int, *, running: int, now: float) -> bool:
        """Streams on a backend took `seconds` in all for `tokens` more tokens, while `running` sequences run there.

        Returns whether the limit on sequences moved.
        """
        page = self._pages.get(name) or self._page(name)
        if not page.pace.saw_gaps(seconds, tokens, now=now):
            return False
        page.limit_tokens = self._limit(page.pace)
        if not self._is_on:
            return False
        before = self.seat_limit(name)
        target_s, gap_s, limit = self._target(page.pace), page.pace.gap_s, page.seat_limit
        if target_s is None or gap_s is None:
            return False
        set_point_s = _SET_POINT * target_s
        was_slow, page.is_slow = page.is_slow, gap_s > set_point_s
        if page.is_slow:
            # One slow window is chance. And what runs leaves only as it ends, so a decrease shows once the number has come
            # down to it, and not before.
            if was_slow and (limit is None or running <= limit + 1):
                page.seat_limit = max(float(_LEAST_SEQUENCES), min(running, limit or running) * _DECREASE)
        elif limit is not None and running >= int(limit):
            page.seat_limit = limit + max(1.0, _INCREASE * limit * (1.0 - gap_s / set_point_s))
        return self.seat_limit(name) != before

    def seat_limit(self, name: BackendName) -> int | None:
        """Sequences that may run there at once; None while the gap asks for no limit."""
        page = self._pages.get(name)
        return None if page is None or page.seat_limit is None else int(page.seat_limit)

    def snapshot(self, name: BackendName) -> GuardSnapshot | None:
        """What guards a backend now; None if they are off."""
        if not self._is_on:
            return None
        page = self._page(name)
        return GuardSnapshot(
            unanswered_tokens=round(page.unanswered_tokens),
            unanswered_limit=page.limit_tokens,
            gap_s=page.pace.gap_s,
            gap_target_s=self._target(page.pace),
            seat_limit=self.seat_limit(name),
        )

    def _target(self, pace: Pace) -> float | None:
        if self._gap_target_s is not None:
            return self._gap_target_s
        return None if pace.light_gap_s is None else _LIGHT_TIMES * pace.light_gap_s

    def _limit(self, pace: Pace) -> int:
        """Prompt tokens that may be unanswered."""
        rate = pace.prefill_tokens_per_s
        if rate is None:
            return UNKNOWN_LIMIT_TOKENS
        return min(max(int(rate * (self._target(pace) or _TWO_STEPS_S)), _LEAST_LIMIT_TOKENS), _MOST_LIMIT_TOKENS)

    def _page(self, name: BackendName) -> _Page:
        page = self._pages.get(name)
        if page is None:
            page = self._pages[name] = _Page(name)
        return page
