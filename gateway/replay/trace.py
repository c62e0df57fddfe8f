"""A trace: what was asked for, and when. One row a request, in columns, so that a million of them take some tens of megabytes.

Rows come in whatever order they are written; a log's lines come in the order in which requests ended. `finish` puts them in
the order of their arrival, links the turns of sessions, and gives a length to answers whose length is not known.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from gateway.core.commitment.evidence import cap_bucket

UNKNOWN: Final = -1
# The golden ratio: multiples of it, less their whole part, lie evenly in 0..1 however many there are.
_GOLDEN: Final = 0.6180339887498949
_KEPT_LENGTHS: Final = 4096  # of one class, to draw from
_ENOUGH_LENGTHS: Final = 8


class RowError(ValueError):
    """A row that makes no sense, with a sentence that says why. line: its number in its file, from 1 on."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Request:
    """One row. Token counts are of one sequence, output_tokens of all of them.

    at: seconds from any start; a finished trace begins at 0. output_tokens: None where it is not known how long the answer
    would have become.
    counted_tokens: the prompt as the gateway counted it, is_bound where that is a bound; None: as the engine did.
    cap_tokens: the cap that was sent, None: none. session: whose turns follow each other. think_s: from the end of its
    previous turn to this one, None where it came at its time whatever became of that. shared_tokens: of the prompt, what it
    has in common with the previous turn. cached_tokens: what the engine's prefix cache is known to have had.
    """

    at: float
    prompt_tokens: int
    output_tokens: int | None
    counted_tokens: int | None = None
    is_bound: bool = False
    cap_tokens: int | None = None
    sequences: int = 1
    is_stream: bool = True
    tenant: str = ""
    model: str = ""
    session: str = ""
    think_s: float | None = None
    shared_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a log says has become of a request. Seconds; None where it did not happen or is not known.

    first_token_s: from its grant to its first token. total_s: from its arrival to its end. blocks: what it was weighed as.
    """

    outcome: str
    waited_s: float
    ttft_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    backend: str = ""
    pool: str = ""
    blocks: int | None = None


@dataclass(slots=True)
class _Words:
    """Texts by number: names that repeat are kept once."""

    numbers: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def number(self, text: str) -> int:
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


class Trace:
    """skipped: lines that were no requests, by what they were. unknown_lengths: answers whose length was drawn. pools,
    backends: those of a log's requests."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.unknown_lengths = 0
        self.is_log = False
        self.pools: set[str] = set()
        self.backends: set[str] = set()
        self._at = array("d")
        self._prompt = array("i")
        self._output = array("i")
        self._counted = array("i")
        self._cap = array("i")
        self._sequences = array("i")
        self._flags = bytearray()
        self._tenant = array("i")
        self._model = array("i")
        self._session = array("i")
        self._think = array("d")
        self._shared = array("i")
        self._cached = array("i")
        self._words = _Words()
        self._recorded = [array("d") for _ in range(4)]
        self._outcome = array("i")
        self._backend = array("i")
        self._blocks = array("i")
        self._next_turn = array("i")
        self.order = array("i")

    def __len__(self) -> int:
        return len(self._at)

    def add(self, request: Request, recorded: Recorded | None = None) -> None:
        """One row more. Numbers were checked by who read them."""
        self._at.append(request.at)
        self._prompt.append(request.prompt_tokens)
        self._output.append(UNKNOWN if request.output_tokens is None else request.output_tokens)
        self._counted.append(UNKNOWN if request.counted_tokens is None else request.counted_tokens)
        self._cap.append(UNKNOWN if request.cap_tokens is None else request.cap_tokens)
        self._sequences.append(request.sequences)
        self._flags.append(request.is_bound | request.is_stream << 1)
        number = self._words.number
        self._tenant.append(number(request.tenant))
        self._model.append(number(request.model))
        self._session.append(number(request.session) if request.session else UNKNOWN)
        self._think.append(UNKNOWN if request.think_s is None else request.think_s)
        self._shared.append(request.shared_tokens)
        self._cached.append(request.cached_tokens)
        if recorded is not None:
            self._outcome.append(number(recorded.outcome))
            self._backend.append(number(recorded.backend))
            self.pools.add(recorded.pool)
            if recorded.backend:
                self.backends.add(recorded.backend)
            self._blocks.append(UNKNOWN if recorded.blocks is None else recorded.blocks)
            values = (recorded.waited_s, recorded.ttft_s, recorded.first_token_s, recorded.total_s)
            for column, value in zip(self._recorded, values, strict=True):
                column.append(UNKNOWN if value is None else value)

    def row(self, index: int) -> Request:
        output, counted, cap = self._output[index], self._counted[index], self._cap[index]
        session, think_s, texts = self._session[index], self._think[index], self._words.texts
        return Request(
            at=self._at[index],
            prompt_tokens=self._prompt[index],
            output_tokens=None if output == UNKNOWN else output,
            counted_tokens=None if counted == UNKNOWN else counted,
            is_bound=bool(self._flags[index] & 1),
            cap_tokens=None if cap == UNKNOWN else cap,
            sequences=self._sequences[index],
            is_stream=bool(self._flags[index] & 2),
            tenant=texts[self._tenant[index]],
            model=texts[self._model[index]],
            session="" if session == UNKNOWN else texts[session],
            think_s=None if think_s == UNKNOWN else think_s,
            shared_tokens=self._shared[index],
            cached_tokens=self._cached[index],
        )

    def recorded(self, index: int) -> Recorded | None:
        """What the log says of a row; None in a trace that is no log."""
        if not self._outcome:
            return None
        waited_s, *times = (column[index] for column in self._recorded)
        ttft_s, first_token_s, total_s = (None if value == UNKNOWN else value for value in times)
        texts, blocks = self._words.texts, self._blocks[index]
        return Recorded(
            texts[self._outcome[index]],
            waited_s,
            ttft_s,
            first_token_s,
            total_s,
            backend=texts[self._backend[index]],
            blocks=None if blocks == UNKNOWN else blocks,
        )

    def at(self, index: int) -> float:
        return self._at[index]

    def next_turn(self, index: int) -> int | None:
        """The row that follows in the same session once this one has ended."""
        following = self._next_turn[index] if self._next_turn else UNKNOWN
        return None if following == UNKNOWN else following

    def think_s(self, index: int) -> float:
        return max(self._think[index], 0.0)

    @property
    def has_sessions(self) -> bool:
        """Whether some row comes when its session's previous turn has ended."""
        return bool(self._next_turn)

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest sequence."""
        return max(map(_total, self._prompt, self._output, self._sequences), default=0)

    def rows(self) -> Iterator[tuple[int, Request]]:
        """Every row with its number, in the order of `order`."""
        for index in self.order:
            yield index, self.row(index)

    def finish(self, on_session: Callable[[int], None] | None = None) -> None:
        """All rows are here. Raises ValueError with a sentence if lengths are missing and nothing tells any."""
        numbers = range(len(self))
        self.order = array("i", sorted(numbers, key=self._at.__getitem__))
        if self.order:
            start = self._at[self.order[0]]
            if start:
                for index in numbers:
                    self._at[index] -= start
        self._link_turns()
        self._draw_lengths()

    def _link_turns(self) -> None:
        """Turns of a session in the order of their lines; those without a think time come at their time."""
        if all(think_s == UNKNOWN for think_s in self._think):
            return
        following = array("i", [UNKNOWN]) * len(self)
        last: dict[int, int] = {}
        later: set[int] = set()
        for index, session in enumerate(self._session):
            if session == UNKNOWN:
                continue
            before = last.get(session)
            if before is not None and self._think[index] != UNKNOWN:
                following[before] = index
                later.add(index)
            last[session] = index
        self._next_turn = following
        self.order = array("i", [index for index in self.order if index not in later])

    def _draw_lengths(self) -> None:
        """Answers of unknown length get those of completed ones that are like them: evenly spread over what these became, by
        a rule without chance."""
        unknown = [index for index in range(len(self)) if self._output[index] == UNKNOWN]
        self.unknown_lengths = len(unknown)
        if not unknown:
            return
        pools: dict[tuple[object, ...], list[int]] = {}
        for index, output in enumerate(self._output):
            if output != UNKNOWN:
                for key in self._classes(index):
                    pool = pools.setdefault(key, [])
                    if len(pool) < _KEPT_LENGTHS:
                        pool.append(-(-output // self._sequences[index]))
        if not pools:
            raise ValueError("no request in it was completed, so that nothing tells how long answers become")
        for pool in pools.values():
            pool.sort()
        for count, index in enumerate(unknown, start=1):
            likes = [pools[key] for key in self._classes(index) if key in pools]
            pool = next((pool for pool in likes if len(pool) >= _ENOUGH_LENGTHS), likes[-1])
            self._output[index] = pool[int(count * _GOLDEN % 1 * len(pool))] * self._sequences[index]

    def _classes(self, index: int) -> tuple[tuple[object, ...], ...]:
        """What a request's answer is like, from the closest to all: of one model, with caps within a factor of two, of one
        tenant."""
        cap, model, tenant = self._cap[index], self._model[index], self._tenant[index]
        bucket = cap_bucket(None if cap == UNKNOWN else cap)
        return (model, bucket, tenant), (model, bucket), (model,), ()


def _total(prompt: int, output: int, sequences: int) -> int:
    return prompt + -(-max(output, 1) // sequences)
