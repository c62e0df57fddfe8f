"""What one request of a storm does, on both of its ends: its body, how its client behaves, and how its engine answers.

A plan is a function of (seed, number) and of nothing else, so the client and the engine each work it out for themselves
from the number, which travels in the header `x-plan`: through a gateway that may hold the request back, or drop it.
"""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ALPHA = "alpha"  # served by two engines like vLLM
BETA = "beta"  # served by one engine like llama.cpp
CONTEXT = 512
MAX_BODY_BYTES = 64 * 1024
BIG_PIECE = "b" * 40_000  # of answers that fill every buffer on their way


class Act(StrEnum):
    """How the engine answers."""

    GOOD = "good"
    INTERIM = "interim"  # good, behind 100 and 103
    SURPLUS = "surplus"  # good, with bytes behind it that nobody asked for
    EARLY = "early"  # good, and the connection is closed right behind it
    ZIPPED = "zipped"  # good, and compressed although nobody asked
    USAGE_LIES = "usage_lies"  # good, but for the figures of its usage
    REFUSES = "refuses"  # 422
    FAILS = "fails"  # 500
    RESET_BEFORE = "reset_before"
    CLOSE_BEFORE = "close_before"
    STALL_BEFORE = "stall_before"
    GARBAGE = "garbage"
    HUGE_HEAD = "huge_head"
    TWO_LENGTHS = "two_lengths"
    UPGRADE = "upgrade"  # 101
    CUT = "cut"  # closes within its answer
    RESET_WITHIN = "reset_within"
    STALL_WITHIN = "stall_within"
    BAD_CHUNK = "bad_chunk"
    NO_END = "no_end"  # a stream that ends tidily, without its end mark
    ERROR_EVENT = "error_event"  # a stream that says itself that it broke


WHOLE = frozenset((Act.GOOD, Act.INTERIM, Act.SURPLUS, Act.EARLY, Act.ZIPPED, Act.USAGE_LIES))
"""Acts whose answer is whole: it may reach the client, and then it must be exactly what the engine sent."""
ANSWERED = WHOLE | {Act.REFUSES, Act.FAILS}
"""Acts whose answer may end tidily at the client."""

_FAULTS = {
    Act.INTERIM: 6,
    Act.SURPLUS: 6,
    Act.EARLY: 8,
    Act.ZIPPED: 4,
    Act.USAGE_LIES: 8,
    Act.REFUSES: 8,
    Act.FAILS: 6,
    Act.RESET_BEFORE: 10,
    Act.CLOSE_BEFORE: 10,
    Act.STALL_BEFORE: 1,
    Act.GARBAGE: 5,
    Act.HUGE_HEAD: 1,
    Act.TWO_LENGTHS: 3,
    Act.UPGRADE: 3,
    Act.CUT: 12,
    Act.RESET_WITHIN: 12,
    Act.STALL_WITHIN: 2,
    Act.BAD_CHUNK: 6,
    Act.NO_END: 6,
    Act.ERROR_EVENT: 6,
}


class Manner(StrEnum):
    """What the client does."""

    OBEYS = "obeys"
    DIES_UPLOADING = "dies_uploading"
    DIES_LATER = "dies_later"  # at some instant after its upload: counting, queued, connecting, waiting, streaming
    DIES_READING = "dies_reading"  # after some bytes of the answer
    STOPS_UPLOADING = "stops_uploading"  # and stays: the upload clock is for this one
    READS_SLOWLY = "reads_slowly"
    READS_NOTHING = "reads_nothing"


class Death(StrEnum):
    FIN = "fin"
    RST = "rst"
    HALF = "half"  # shuts its sending side only


_CLIENT_FAULTS = {
    Manner.DIES_UPLOADING: 20,
    Manner.DIES_LATER: 50,
    Manner.DIES_READING: 22,
    Manner.STOPS_UPLOADING: 1,
    Manner.READS_SLOWLY: 5,
    Manner.READS_NOTHING: 1,
}

_KINDS = {
    "ids": 50,
    "chat": 24,
    "counted": 8,  # needs an exact count before it can be weighed
    "uncapped": 4,
    "many": 3,  # several prompts, several samples
    "overlong": 2,  # no context would hold it
    "outsize": 2,  # no budget would hold it
    "malformed": 3,
    "huge": 1,  # larger than a body may be
    "stranger": 1,  # a model that nobody serves
    "uncounted": 3,  # a path that goes on without a hold
}


@dataclass(frozen=True, slots=True)
class Plan:
    """pause_s: between the two writes of an upload, or until the client dies. at: where it dies (part of the upload, or
    bytes of the answer). gaps_s: before each event of the engine's answer."""

    number: int
    kind: str
    path: str
    body: bytes
    headers: tuple[str, ...]
    is_stream: bool
    wants_usage: bool
    act: Act
    manner: Manner
    death: Death
    at: float
    pause_s: float
    keeps_connection: bool
    events: int
    first_gap_s: float
    gap_s: float
    framing: str
    cut_seed: int
    is_big: bool

    @property
    def is_faulty(self) -> bool:
        return self.act is not Act.GOOD or self.manner is not Manner.OBEYS

    @property
    def is_chat(self) -> bool:
        return "chat" in self.path


def plan(seed: int, number: int, *, fault_part: float, slowness: float = 1.0) -> Plan:
    """The plan of that number.

    fault_part: the part of all plans in which the client, the engine or both misbehave. slowness: a factor of the time that
    the engine takes before it answers.
    """
    dice = random.Random(f"{seed}/{number}")
    each = 1.0 - (1.0 - fault_part) ** 0.5
    act = _pick(dice, _FAULTS) if dice.random() < each else Act.GOOD
    manner = _pick(dice, _CLIENT_FAULTS) if dice.random() < each else Manner.OBEYS
    is_big = manner in (Manner.READS_SLOWLY, Manner.READS_NOTHING)
    kind = "ids" if is_big else _pick(dice, _KINDS)
    is_stream = dice.random() < 0.65
    if act in (Act.BAD_CHUNK, Act.NO_END, Act.ERROR_EVENT) or is_big:
        is_stream = True
    wants_usage = is_stream and dice.random() < 0.3
    events = 64 if is_big else dice.choice((1, 1, 2, 3, 6))
    path, body = _body(dice, kind, events=events, is_stream=is_stream, wants_usage=wants_usage)
    # Mostly within what an answer takes, now and then long enough to die in line.
    pause_s = dice.choice((0.0, 0.001, 0.003, 0.01, 0.03, 0.1)) * (0.5 + dice.random())
    headers = [f"x-plan: {number}"]
    if dice.random() < 0.05:
        headers.append(f"x-request-timeout: {dice.choice(('0.05', '0.2', '30', 'soon', '-1', 'nan', '1e9'))}")
    return Plan(
        number=number,
        kind=kind,
        path=path,
        body=body,
        headers=tuple(headers),
        is_stream=is_stream,
        wants_usage=wants_usage,
        act=act,
        manner=manner,
        death=dice.choice((Death.FIN, Death.RST, Death.HALF)),
        at=dice.random(),
        pause_s=pause_s,
        keeps_connection=dice.random() < 0.7,
        events=events,
        first_gap_s=dice.choice((0.0, 0.0, 0.004, 0.02, 0.05)) * slowness,
        gap_s=dice.choice((0.0, 0.0, 0.0, 0.002, 0.02)),
        framing=dice.choice(("length", "length", "chunked", "close")),
        cut_seed=dice.randrange(1 << 30),
        is_big=is_big,
    )


def _pick(dice: random.Random, weights: dict[Any, int]) -> Any:
    return dice.choices(tuple(weights), tuple(weights.values()))[0]


def _body(dice: random.Random, kind: str, *, events: int, is_stream: bool, wants_usage: bool) -> tuple[str, bytes]:
    asked: dict[str, Any] = {"model": ALPHA if dice.random() < 0.7 else BETA}
    is_chat = False
    match kind:
        case "ids":
            asked |= {"prompt": [1] * dice.randint(1, 120), "max_tokens": events + dice.randint(0, 200)}
        case "chat":
            is_chat = True
            text = "word " * dice.randint(1, 12)
            asked |= {"messages": [{"role": "user", "content": text}], "max_completion_tokens": events + dice.randint(0, 60)}
        case "counted":
            # Some 110 tokens, but four times that by its bytes: with its cap the bound passes the context.
            is_chat = True
            asked |= {"messages": [{"role": "user", "content": "text " * 80}], "max_tokens": events + dice.randint(60, 200)}
        case "uncapped":
            is_chat = dice.random() < 0.8
            asked |= {"messages": [{"role": "user", "content": "as you like"}]} if is_chat else {"prompt": "as you like"}
        case "many":
            prompts = [[1] * dice.randint(1, 30) for _ in range(dice.randint(1, 3))]
            asked |= {"prompt": prompts, "n": dice.randint(1, 3), "max_tokens": events + dice.randint(0, 30)}
        case "overlong":
            asked |= {"prompt": [1] * (CONTEXT + dice.randint(0, 50)), "max_tokens": 8}
        case "outsize":
            asked |= {"prompt": [1] * 100, "n": 128, "max_tokens": 200}
        case "uncounted":
            return "/tokenize", json.dumps({**asked, "prompt": "x", "stream": is_stream}).encode()
        case "stranger":
            asked |= {"model": "nobody's", "prompt": [1], "max_tokens": 8}
        case "huge":
            asked |= {"prompt": "x" * (MAX_BODY_BYTES + 1), "max_tokens": 8}
        case _:
            is_chat = True
            wrongs: tuple[bytes, ...] = (b"{", b"", b"[]", b'{"messages":', b'{"messages":[],"max_tokens":true}', b"\xff\xfe{}")
            return "/v1/chat/completions", dice.choice(wrongs)
    if is_stream:
        asked["stream"] = True
        if wants_usage:
            asked["stream_options"] = {"include_usage": True}
    if dice.random() < 0.2:
        asked["session_id"] = f"s{dice.randrange(20)}"
    return "/v1/chat/completions" if is_chat else "/v1/completions", json.dumps(asked).encode()
