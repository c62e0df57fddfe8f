"""Demand: the tokens a request may occupy at most. Usage: the tokens that its answer says it took.

What is made for every request is not frozen, which would make it three times as dear; nobody changes it all the same.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class SequenceDemand:
    """`samples` sequences of one prompt, each of up to `prompt_tokens + output_tokens` tokens."""

    prompt_tokens: int
    output_tokens: int
    samples: int = 1


@dataclass(slots=True)
class Demand:
    """Everything a request may hold at once. Sequences are rounded up each for itself; a shared prompt earns no discount."""

    groups: tuple[SequenceDemand, ...]

    @property
    def sequences(self) -> int:
        return sum(group.samples for group in self.groups)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each once."""
        return sum(group.prompt_tokens for group in self.groups)


@dataclass(slots=True)
class Usage:
    """Tokens as the engine reports them. prompt_tokens: all of them, those of `cached_tokens` included.

    cached_tokens: prompt tokens found in its prefix cache, None if it does not tell.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
