"""What every engine's file gives: is it this engine, what does it say of itself, what is in use now, how does it count.

An engine's file is the only place that knows its routes, its names and its quirks. What it answers is not to be trusted
any further than its shape: whatever is missing or of the wrong kind becomes None here, never an exception.
"""

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.backends.engines.answers import member, whole
from gateway.backends.probe import Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.request import InferenceRequest


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of itself. None: it does not say.

    models: listed name -> the longest context it allows (tokens), None where it does not tell; empty: no list to be had,
    and then it serves whatever it is asked for.
    block_tokens: tokens in one block. usable_blocks: blocks that can hold tokens. total_blocks: as it counts them itself.
    cache_tokens: its own figure for what the cache holds at full-length requests (vLLM: kv_cache_size_tokens).
    kv_dtype, state_dtype, state_mode: how it stores keys and values and recurrent states, and how many blocks a state
    holds, in its own words.
    cells: its unit is the token itself, so that no rounding and no formula is in doubt.
    slots_share: whether seats share one cache although each sees all of it; unknown is taken as shared.
    answer_lengths: by model, how many answers that ended by themselves had at most so many tokens (and more than the next
    lower figure); empty where it does not count them.
    identity: whatever changes when the engine starts anew or with another cache; compared with what live reads say.
    assumptions, warnings: sentences for the operator. budget_assumptions: those that hold only while its own figure is the
    budget.
    """

    engine: str
    version: str | None = None
    models: Mapping[str, int | None] = field(default_factory=dict)
    block_tokens: int | None = None
    usable_blocks: int | None = None
    total_blocks: int | None = None
    cache_tokens: int | None = None
    kv_dtype: str | None = None
    state_dtype: str | None = None
    state_mode: str | None = None
    cells: bool = False
    seats: int | None = None
    slots_share: bool = False
    rules: EngineRules = field(default_factory=EngineRules)
    answer_lengths: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    identity: Hashable = None
    assumptions: tuple[str, ...] = ()
    budget_assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def max_context(self) -> int | None:
        """The longest context listed: what a request may have at most, whichever model it names."""
        return max((tokens for tokens in self.models.values() if tokens is not None), default=None)


@dataclass(frozen=True, slots=True)
class LiveUse:
    """What an engine says is going on now. None: it does not say. preemptions: since its start."""

    used_blocks: int | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    identity: Hashable = None


@dataclass(frozen=True, slots=True)
class CountCall:
    """One question to an engine: how many tokens is this? read: its JSON answer -> tokens, None if that makes no sense."""

    path: str
    body: bytes
    read: Callable[[object], int | None]


def json_object(members: Mapping[str, bytes]) -> bytes:
    """A JSON object of members that are JSON already."""
    return b"{" + b",".join(json.dumps(name).encode() + b":" + raw for name, raw in members.items()) + b"}"


def count_messages(members: Mapping[str, bytes], model: str | None) -> tuple[CountCall, ...]:
    """The question for a Messages body, as the route that Anthropic named it for takes it. members: those that it reads.

    vLLM and llama.cpp answer with what the same body is run with, to the token (300 and 40 generated chats with tools,
    tool results and thinking, measured); vLLM refuses to count a prompt beyond its context.
    """
    named = {} if model is None else {"model": json.dumps(model).encode()}
    return (CountCall("/v1/messages/count_tokens", json_object({**named, **members}), _read_input_tokens),)


def _read_input_tokens(answer: object) -> int | None:
    return whole(member(answer, "input_tokens"))


class Engine(Protocol):
    """One kind of engine. Both reads raise what Probe raises (UpstreamFailed, NeedsKey), and nothing else."""

    @property
    def name(self) -> str: ...

    async def probe(self, probe: Probe) -> EngineReport | None:
        """What the server says of itself, None if it is not this engine."""
        ...

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        """What goes on in it now."""
        ...

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        """The questions whose answers are the tokens of those prompts that were not sent as ids, in order; None: it cannot."""
        ...
