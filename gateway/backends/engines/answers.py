"""Reads values out of an engine's JSON: whatever is missing, of the wrong kind or beyond all reason is None."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

# No cache, context or count comes near; anything above it is garbage and would only spoil the arithmetic.
_MOST: Final = 2**48
_LONGEST_NAME: Final = 512
_MOST_MODELS: Final = 1000


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry of /v1/models. context: tokens, None if it is not told."""

    name: str
    context: int | None
    owned_by: str | None


def member(value: object, *path: str) -> object:
    """What stands at `path` in nested objects, None if anything on the way is missing."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def whole(value: object) -> int | None:
    """A whole number from 0 on, also where it is written as 64.0 or as text (labels are text)."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
        return whole(int(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or not 0 <= value <= _MOST:
        return None
    return int(value) if value == int(value) else None


def positive(value: object) -> int | None:
    """A whole number from 1 on."""
    number = whole(value)
    return number or None


def word(value: object) -> str | None:
    """A text that is short enough to be a name, without characters that would spoil a log line."""
    if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable():
        return value
    return None


def listed_models(body: object, *context_paths: tuple[str, ...]) -> tuple[ListedModel, ...] | None:
    """The models of a /v1/models answer; None if it is no such answer. context_paths: where an entry tells its context."""
    data = member(body, "data")
    if not isinstance(data, list):
        return None
    return tuple(_entries(data[:_MOST_MODELS], context_paths))


def contexts(models: tuple[ListedModel, ...] | None) -> Mapping[str, int | None]:
    """Listed name -> its context. Aliases and adapters stand beside their base."""
    return {model.name: model.context for model in models or ()}


def _entries(data: list[object], context_paths: tuple[tuple[str, ...], ...]) -> Iterator[ListedModel]:
    for entry in data:
        name = word(member(entry, "id"))
        if name is None:
            continue
        told = (positive(member(entry, *path)) for path in context_paths)
        yield ListedModel(
            name, next((context for context in told if context is not None), None), word(member(entry, "owned_by"))
        )
