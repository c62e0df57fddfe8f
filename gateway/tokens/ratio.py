"""Ratios: how many bytes one token has at least, learned from what engines report, for prompts that nobody can count.

What is learned is the bound of a prompt (bytes, and the shares of its template as bytes) over the tokens that the engine
then reported: 4 or so for English, never below 1. What is used is the smallest of the newest `SAMPLES` such ratios of a
class, a low quantile and never an average. It promises, by order statistics and whatever the distribution (Wilks 1941):
with a confidence of `CONFIDENCE` at most the share `SHARE` of prompts of that class are counted too low, as long as the next
ones come from where the last ones came from. A class is a model on an engine's version, with tools or without, and prompts
within a factor of four in size, since a short prompt is mostly template and a long one mostly text.

A prompt whose ratio is in the sample already adds nothing to it: one client that repeats itself is one witness. Memory is
bounded: `_MOST_CLASSES` classes of `SAMPLES` pairs; the class that was used least recently gives way.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Final

from gateway.core.request import InferenceRequest, Prompt
from gateway.tokens.bound import prompt_bound

SHARE: Final = 0.01
CONFIDENCE: Final = 0.95
# The smallest n with 1 - (1 - SHARE)^n >= CONFIDENCE: so many draws have one below the quantile.
SAMPLES: Final = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - SHARE))

_MOST_CLASSES: Final = 256
_FORMAT: Final = 1
# Beyond any prompt: such figures are garbage.
_MOST_TOKENS: Final = 2**31

_ClassName = tuple[str, str, int]
"""family, kind of prompt, size by powers of four."""


class _Sample:
    """The newest distinct (bound, tokens) pairs of one class, and the smallest of their ratios."""

    __slots__ = ("held", "least", "pairs")

    def __init__(self) -> None:
        self.pairs: deque[tuple[int, int]] = deque()
        self.held: set[tuple[int, int]] = set()
        self.least = math.inf

    def add(self, pair: tuple[int, int]) -> None:
        if pair in self.held:
            return
        ratio = pair[0] / pair[1]
        if len(self.pairs) == SAMPLES:
            oldest = self.pairs.popleft()
            self.held.discard(oldest)
            if oldest[0] / oldest[1] <= self.least:
                self.least = min((bound / tokens for bound, tokens in self.pairs), default=math.inf)
        self.pairs.append(pair)
        self.held.add(pair)
        self.least = min(self.least, ratio)


class Ratios:
    """The ratios of one gateway."""

    def __init__(self) -> None:
        self._classes: OrderedDict[_ClassName, _Sample] = OrderedDict()

    def learn(self, family: str, request: InferenceRequest, reported_tokens: int) -> bool:
        """The engine has counted the prompt of this request. Returns whether anything can be learned of it."""
        bound = _learnable(request)
        if bound is None or not 0 < reported_tokens <= _MOST_TOKENS:
            return False
        name = _class_of(family, request.prompts[0], bound)
        sample = self._classes.get(name) or self._new_sample(name)
        self._classes.move_to_end(name)
        pair = (bound, reported_tokens)
        if pair not in sample.held:
            sample.add(pair)
        return True

    def estimate(self, family: str, request: InferenceRequest) -> tuple[int, ...] | None:
        """Tokens of the prompt: too few in at most `SHARE` of all cases, never above its bound; None: not enough is known."""
        bound = _learnable(request)
        if bound is None:
            return None
        name = _class_of(family, request.prompts[0], bound)
        sample = self._classes.get(name)
        if sample is None or len(sample.pairs) < SAMPLES:
            return None
        self._classes.move_to_end(name)
        return (min(bound, math.ceil(bound / sample.least)),)

    def record(self) -> dict[str, Any]:
        """Everything that is worth keeping, in terms of JSON: sizes and counts, nothing of anybody's text."""
        rows = [{"class": list(name), "pairs": list(sample.pairs)} for name, sample in self._classes.items()]
        return {"kvgate_ratios": _FORMAT, "classes": rows}

    def take(self, record: object) -> None:
        """Begin with what `record` gave. Raises ValueError for anything else; nothing is taken then."""
        taken: OrderedDict[_ClassName, _Sample] = OrderedDict()
        if not isinstance(record, Mapping) or record.get("kvgate_ratios") != _FORMAT:
            raise ValueError("no record of ratios of this format")
        try:
            for row in record["classes"]:
                family, kind, size = row["class"]
                sample = taken.setdefault((str(family), str(kind), int(size)), _Sample())
                for bound, tokens in row["pairs"]:
                    if not 0 < int(tokens) <= _MOST_TOKENS or not 0 < int(bound) <= _MOST_TOKENS * 4:
                        raise ValueError("a ratio that cannot be")
                    sample.add((int(bound), int(tokens)))
        except (KeyError, TypeError, OverflowError):
            raise ValueError("ratios that cannot be read") from None
        if len(taken) > _MOST_CLASSES:
            raise ValueError(f"more than {_MOST_CLASSES} classes of ratios")
        self._classes = taken

    def _new_sample(self, name: _ClassName) -> _Sample:
        if len(self._classes) >= _MOST_CLASSES:
            self._classes.popitem(last=False)
        sample = self._classes[name] = _Sample()
        return sample


def _learnable(request: InferenceRequest) -> int | None:
    """The bound of a request whose reported tokens are those of its one text; None for all others."""
    if len(request.prompts) != 1:
        return None
    prompt = request.prompts[0]
    # A cut prompt has fewer tokens than its text, and what a picture adds is not in the bytes.
    if prompt.token_ids is not None or prompt.media_parts or prompt.may_be_cut:
        return None
    return prompt_bound(prompt)


def _class_of(family: str, prompt: Prompt, bound: int) -> _ClassName:
    kind = "text" if not prompt.messages else "tools" if prompt.tools else "chat"
    return (family, kind, bound.bit_length() // 2)
