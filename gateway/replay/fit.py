"""Engine speeds fitted from a log, by least squares over what its requests saw.

    step = fixed + per sequence x running + per prompt token x tokens of prompts in it

Between its first token and its last an answer of n tokens saw n - 1 steps; until its first token it saw the prompts that were
computed meanwhile, its own among them, and half a step of waiting for its turn. How many ran and which prompts were computed
meanwhile is known from the other lines. Errors count in proportion: a tenth of a short time weighs as much as a tenth of a
long one. First tokens weigh little beside answers, for it is not known how much of which step they saw; where nothing is
computed beside answers, they alone tell what a prompt costs.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gateway.core.outcomes import Outcome
from gateway.replay.trace import Trace

ENOUGH: Final = 30
_LEAST_STEPS: Final = 8  # an answer of fewer tells little of a step
_WHOLE: Final = frozenset({Outcome.COMPLETED.value, Outcome.CAPPED.value})
_SAME_STEP_S: Final = 0.0015  # a log's times are whole milliseconds
_PROMPT_WEIGHT: Final = 0.05
_LEAST_S: Final = 0.005  # a log's times are too coarse for parts of less
_MOST_ROWS: Final = 50_000  # more make it slower and no better

Row = tuple[tuple[float, float, float], float]
"""What was done (steps, steps x running, prompt tokens), and the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds. answers, prompts: how many of each it was fitted from; answer_error, prompt_error: half of them were predicted
    with a smaller relative error."""

    fixed_s: float
    sequence_s: float
    prompt_token_s: float
    answers: int
    prompts: int
    answer_error: float
    prompt_error: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """One request on its backend. first: its first token, None where that was not seen. tokens: of its prompts, those that
    were computed. is_whole: it is a stream of one sequence that came to its end."""

    granted: float
    first: float | None
    end: float
    output_tokens: int
    tokens: int
    sequences: int
    is_whole: bool


class _Backend:
    """What ran when, and which prompts were done when."""

    def __init__(self, seen: list[_Seen], step_tokens: int) -> None:
        begun = [(each.granted, each.sequences) for each in seen]
        changes = sorted(begun + [(each.end, -each.sequences) for each in seen])
        self._times = [at for at, _ in changes]
        self._running = list(accumulate(change for _, change in changes))
        spans = (
            running * (after - before)
            for running, before, after in zip(self._running, self._times, self._times[1:], strict=False)
        )
        self._area = list(accumulate(spans, initial=0.0))
        # An engine computes prompts one after the other, so each is begun when the one before it is done; one that needs no
        # more than a step is computed in the last. Those that are done in one step share its time.
        done = sorted((each.granted if each.first is None else each.first, each.granted, each.tokens) for each in seen)
        self._done_at: list[float] = []
        self._begun_at: list[float] = []
        self._done = [0]
        for at, granted, tokens in done:
            if self._done_at and at - self._done_at[-1] < _SAME_STEP_S:
                self._done[-1] += tokens
                continue
            before = self._done_at[-1] if self._done_at else granted
            self._begun_at.append(max(granted, before) if tokens > step_tokens else at)
            self._done_at.append(at)
            self._done.append(self._done[-1] + tokens)

    def running(self, start: float, end: float) -> float:
        """How many ran from start to end, on average."""
        return (self._area_to(end) - self._area_to(start)) / (end - start) if end > start else 0.0

    def prompts(self, start: float, end: float) -> float:
        """Prompt tokens that were computed after start and by end; what was done in the same step as another is no later."""
        return self._done_by(end + _SAME_STEP_S) - self._done_by(start + _SAME_STEP_S)

    def _done_by(self, at: float) -> float:
        """Of a prompt that is being computed, the part that its time so far is of all its time."""
        index = bisect_right(self._done_at, at)
        done = self._done[index]
        if index == len(self._done_at) or at <= self._begun_at[index]:
            return done
        begun, end = self._begun_at[index], self._done_at[index]
        return done + (self._done[index + 1] - done) * (at - begun) / (end - begun)

    def _area_to(self, at: float) -> float:
        index = max(bisect_left(self._times, at) - 1, 0)
        return self._area[index] + self._running[index] * (at - self._times[index])


def fit_speeds(trace: Trace, *, step_tokens: int) -> Fit | None:
    """The speeds of the engines behind a log; None where too few of its lines tell any. step_tokens: that they compute in a
    step."""
    by_backend: dict[str, list[_Seen]] = {}
    for backend, seen in _seen(trace):
        by_backend.setdefault(backend, []).append(seen)
    answers: list[Row] = []
    prompts: list[Row] = []
    for each in by_backend.values():
        backend_answers, backend_prompts = _rows(each, step_tokens)
        answers += backend_answers
        prompts += backend_prompts
    if min(len(answers), len(prompts)) < ENOUGH:
        return None
    answers, prompts = _thinned(answers), _thinned(prompts)
    fixed_s, sequence_s, prompt_token_s = speeds = _solve([(answers, 1.0), (prompts, _PROMPT_WEIGHT)])
    return Fit(
        fixed_s, sequence_s, prompt_token_s, len(answers), len(prompts), _error(answers, speeds), _error(prompts, speeds)
    )


def _seen(trace: Trace) -> Iterator[tuple[str, _Seen]]:
    for index, request in trace.rows():
        recorded = trace.recorded(index)
        if recorded is None or recorded.total_s is None or not recorded.backend:
            continue  # it did not run
        first = None if recorded.ttft_s is None else request.at + recorded.ttft_s
        granted = request.at + recorded.waited_s
        if first is not None and recorded.first_token_s is not None:
            granted = first - recorded.first_token_s
        seen = _Seen(
            granted,
            first,
            max(request.at + recorded.total_s, granted, first or granted),
            request.output_tokens or 1,
            max(request.prompt_tokens - request.cached_tokens, 1),
            request.sequences,
            is_whole=request.is_stream and request.sequences == 1 and recorded.outcome in _WHOLE,
        )
        yield recorded.backend, seen


def _rows(seen: list[_Seen], step_tokens: int) -> tuple[list[Row], list[Row]]:
    backend = _Backend(seen, step_tokens)
    answers: list[Row] = []
    prompts: list[Row] = []
    for each in seen:
        if each.first is None or not each.is_whole:
            continue
        steps = each.output_tokens - 1
        if steps >= _LEAST_STEPS and each.end > each.first:
            done = (steps, steps * backend.running(each.first, each.end), backend.prompts(each.first, each.end))
            answers.append((done, each.end - each.first))
        if each.first > each.granted:
            tokens = max(backend.prompts(each.granted, each.first), each.tokens)
            steps_before = 0.5 + math.ceil(tokens / step_tokens)
            running = backend.running(each.granted, each.first)
            prompts.append(((steps_before, steps_before * running, tokens), each.first - each.granted))
    return answers, prompts


def _thinned(rows: list[Row]) -> list[Row]:
    return rows[:: -(-len(rows) // _MOST_ROWS)]


def _solve(weighted: list[tuple[list[Row], float]]) -> tuple[float, float, float]:
    """The three speeds with the least squared relative error, none below 0: what would be is left out."""
    sums = [[0.0] * 4 for _ in range(3)]
    for rows, weight in weighted:
        for done, seconds in rows:
            least_s = max(seconds, _LEAST_S)
            scaled = [amount / least_s for amount in done]
            for line, amount in enumerate(scaled):
                for column, other in enumerate(scaled):
                    sums[line][column] += weight * amount * other
                sums[line][3] += weight * amount * seconds / least_s
    used = [0, 1, 2]
    while True:
        found = _eliminate([[sums[line][column] for column in (*used, 3)] for line in used])
        negative = [unknown for unknown, value in zip(used, found, strict=True) if value < 0]
        if not negative:
            values = dict(zip(used, found, strict=True))
            return values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0)
        used.remove(negative[-1])


def _eliminate(lines: list[list[float]]) -> list[float]:
    """The solution of so many equations; an unknown that nothing depends on is 0."""
    size = len(lines)
    scale = max((abs(lines[index][index]) for index in range(size)), default=1.0)
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(lines[line][column]))
        lines[column], lines[pivot] = lines[pivot], lines[column]
        head = lines[column]
        if abs(head[column]) <= 1e-12 * scale:
            head[:] = [0.0] * (size + 1)
            head[column] = 1.0
        for line in range(size):
            factor = lines[line][column] / head[column]
            if line != column and factor:
                lines[line] = [one - factor * other for one, other in zip(lines[line], head, strict=True)]
    return [lines[index][size] / lines[index][index] for index in range(size)]


def _error(rows: list[Row], speeds: tuple[float, float, float]) -> float:
    errors = sorted(
        abs(sum(amount * speed for amount, speed in zip(done, speeds, strict=True)) / seconds - 1) for done, seconds in rows
    )
    return errors[len(errors) // 2]
