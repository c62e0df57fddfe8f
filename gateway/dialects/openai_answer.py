"""What OpenAI's answers say, read leniently: nothing here raises, whatever an engine puts where a number should be."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway.core.demand import Usage

_JSON = msgspec.json.Decoder()


class Words(msgspec.Struct, gc=False):
    """What a choice says, whole or what an event adds to it. Engines that know reasoning by both of its names send it under
    both."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an answer, or what an event adds to it."""

    index: int = 0
    text: str | None = None
    delta: Words | None = None
    message: Words | None = None
    finish_reason: str | None = None


class Counts(msgspec.Struct, gc=False):
    """The `usage` of an answer, as far as it is looked at."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: Any = None


class Answer(msgspec.Struct, gc=False):
    """A plain answer or an event of a stream, as far as it is looked at. choices: None where there are none that make sense."""

    choices: list[Choice] | None = None
    usage: Counts | None = None
    timings: Any = None
    error: Any = None
    object: Any = None

    @property
    def is_error(self) -> bool:
        """An error object, as its own member or (older vLLM) as the whole answer."""
        return bool(self.error) or self.object == "error"

    @property
    def only_tells_usage(self) -> bool:
        return self.choices == [] and self.usage is not None


_ANSWER = msgspec.json.Decoder(Answer)
# More tokens than any answer has; above it a count is nonsense and must not reach a counter.
_MAX_TOKENS = 1 << 40
# A key cannot stand inside a text: its quotes would be escaped there. Two levels are what usage objects have.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


def decode(text: bytes | bytearray) -> Any:
    """The decoded JSON, None if it is none."""
    try:
        return _JSON.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_usage(usage: Any) -> Usage | None:
    """The usage of an answer, None unless both of its counts make sense."""
    return usage_of(Answer(usage=_odd_counts(usage)))


def read_answer(text: bytes | bytearray) -> Answer | None:
    """The answer or event that the JSON is; None if it is none. Choices that make no sense are left out."""
    try:
        return _ANSWER.decode(text)
    except msgspec.ValidationError:
        return _odd_answer(decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_answers(lines: list[bytes]) -> Iterator[Answer]:
    """Many of them, one after the other, up to the first that is not as it should be."""
    try:
        yield from map(_ANSWER.decode, lines)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return


def _odd_answer(answer: Any) -> Answer | None:
    if not isinstance(answer, dict):
        return None
    told = answer.get("choices")
    choices = [_odd_choice(choice) for choice in (told if isinstance(told, list) else ()) if isinstance(choice, dict)]
    others = {name: answer.get(name) for name in ("timings", "error", "object")}
    return Answer(choices or ([] if told == [] else None), _odd_counts(answer.get("usage")), **others)


def _odd_counts(usage: Any) -> Counts | None:
    return Counts(*map(usage.get, Counts.__struct_fields__)) if isinstance(usage, dict) else None


def _odd_choice(choice: dict[str, Any]) -> Choice:
    index = choice.get("index")
    return Choice(
        index=index if type(index) is int else 0,
        text=_text(choice.get("text")),
        delta=_odd_words(choice.get("delta")),
        message=_odd_words(choice.get("message")),
        finish_reason=_text(choice.get("finish_reason")),
    )


def _odd_words(words: Any) -> Words | None:
    if not isinstance(words, dict):
        return None
    calls = words.get("tool_calls")
    return Words(
        content=_text(words.get("content")),
        reasoning=_text(words.get("reasoning")),
        reasoning_content=_text(words.get("reasoning_content")),
        refusal=_text(words.get("refusal")),
        tool_calls=calls if isinstance(calls, list) else None,
        function_call=words.get("function_call"),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def usage_of(answer: Answer) -> Usage | None:
    """The usage that an answer, or an event of one, carries: as `usage`, where both of its counts make sense, or, from
    llama.cpp, in its timings."""
    counts = answer.usage
    if counts is not None:
        prompt, output, details = counts.prompt_tokens, counts.completion_tokens, counts.prompt_tokens_details
        if type(prompt) is int and type(output) is int and 0 <= prompt <= _MAX_TOKENS and 0 <= output <= _MAX_TOKENS:
            cached = token_count(details.get("cached_tokens")) if isinstance(details, dict) else None
            return Usage(prompt, output, None if cached is None else min(cached, prompt))
    return None if answer.timings is None else read_timings(answer.timings)


def read_timings(timings: Any) -> Usage | None:
    """llama.cpp tells them at the end of every answer, also where no usage was asked for. The prompt: what it computed and
    what it found in its cache."""
    if not isinstance(timings, dict):
        return None
    computed, cached, output = (token_count(timings.get(name)) for name in ("prompt_n", "cache_n", "predicted_n"))
    if computed is None or cached is None or output is None:
        return None
    return Usage(prompt_tokens=computed + cached, output_tokens=output, cached_tokens=cached)


def token_count(value: Any) -> int | None:
    """A count that makes sense, None for anything else."""
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def last_usage(text: bytes | bytearray, read: Callable[[Any], Usage | None] = read_usage) -> Usage | None:
    """The last usage object in a part of an answer that is too large to decode. read: what makes sense of one."""
    found = None
    for match in _USAGE.finditer(text):
        found = read(decode(match.group(1))) or found
    return found


def is_error(answer: dict[str, Any]) -> bool:
    """An error object, as its own member or (older vLLM) as the whole answer."""
    return bool(answer.get("error")) or answer.get("object") == "error"


def token_bytes(choice: Choice) -> int:
    """Bytes of text, reasoning and tool calls in a choice, whole or a delta of it; 0 if it carries none."""
    words = choice.delta or choice.message
    if words is None:
        return text_length(choice.text)
    content = words.content  # nearly always all that there is
    total = 0 if content is None else len(content) if content.isascii() else len(content.encode())
    if (reasoning := words.reasoning or words.reasoning_content) is not None:
        total += text_length(reasoning)
    if choice.text is not None or words.refusal is not None:
        total += text_length(choice.text) + text_length(words.refusal)
    if words.tool_calls is not None:
        total += sum(_call_bytes(call.get("function")) for call in words.tool_calls if isinstance(call, dict))
    if words.function_call is not None:
        total += _call_bytes(words.function_call)
    return total


def _call_bytes(function: Any) -> int:
    return text_length(function.get("name")) + text_length(function.get("arguments")) if isinstance(function, dict) else 0


def text_length(value: Any) -> int:
    """UTF-8 bytes of a text; 0 for anything else."""
    if not isinstance(value, str):
        return 0
    return len(value) if value.isascii() else len(value.encode())
