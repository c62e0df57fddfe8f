"""What Messages' answers say, read leniently: nothing here raises, whatever an engine puts where a number should be."""

import re
from typing import Any, Final

import msgspec

from gateway.core.demand import Usage
from gateway.dialects.openai_answer import decode

# More tokens than any answer has; above it a count is nonsense and must not reach a counter.
_MAX_TOKENS: Final = 1 << 40
# Ends that are a limit's: the cap, or the context.
_CAPPED: Final = frozenset(("max_tokens", "model_context_window_exceeded"))
# A key cannot stand inside a text: its quotes would be escaped there. Two levels are what usage objects have.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class Counts:
    """The usage of one answer, which a stream tells in parts: the prompt at its start, the output at its end.

    What is told later counts. Dynamo guesses the prompt at the start and counts it at the end (measured).
    """

    __slots__ = ("_cached", "_output", "_prompt")

    def __init__(self) -> None:
        self._prompt: int | None = None
        self._cached: int | None = None
        self._output: int | None = None

    def read_prompt(self, usage: Any) -> None:
        """Where the prompt's tokens are told: `input_tokens` is only what was neither found in a cache nor written to one."""
        if not isinstance(usage, dict):
            return
        computed = _count(usage.get("input_tokens"))
        if computed is not None:
            found, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
            self._prompt, self._cached = computed + (found or 0) + (written or 0), found

    def read_output(self, usage: Any) -> None:
        """Where the output's tokens are told, and they are all that there will be so far."""
        if isinstance(usage, dict):
            output = _count(usage.get("output_tokens"))
            self._output = self._output if output is None else output

    @property
    def usage(self) -> Usage | None:
        """None before both halves are known."""
        if self._prompt is None or self._output is None:
            return None
        return Usage(prompt_tokens=self._prompt, output_tokens=self._output, cached_tokens=self._cached)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def whole_usage(usage: Any) -> Usage | None:
    """The usage of an answer that tells it at once, None unless both of its counts make sense."""
    counts = Counts()
    counts.read_prompt(usage)
    counts.read_output(usage)
    return counts.usage


def last_usage(text: bytes | bytearray) -> Usage | None:
    """The last usage object in the end of an answer that is too large to decode."""
    found = None
    for match in _USAGE.finditer(text):
        found = whole_usage(decode(match.group(1))) or found
    return found


def is_error(answer: dict[str, Any]) -> bool:
    """An error in this format's shape, or in OpenAI's, as engines write theirs also here."""
    return answer.get("type") == "error" or bool(answer.get("error"))


def is_stop(reason: Any) -> bool:
    return isinstance(reason, str) and bool(reason)


def is_capped(reason: Any) -> bool:
    return isinstance(reason, str) and reason in _CAPPED


def token_bytes(block: Any) -> int:
    """Bytes of text, thinking and tool calls in a block, whole or a delta of it; 0 if it carries none."""
    if not isinstance(block, dict):
        return 0
    total = 0
    for name in ("text", "thinking", "partial_json"):
        if value := block.get(name):
            total += _text(value)
    called = block.get("input")
    if isinstance(called, dict):
        # A stream begins a call with an empty input, and then sends it as text.
        total += _text(block.get("name")) + (len(msgspec.json.encode(called)) if called else 0)
    return total


def blocks_of(answer: dict[str, Any]) -> list[Any]:
    content = answer.get("content")
    return content if isinstance(content, list) else []


def _text(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return len(value) if value.isascii() else len(value.encode())
