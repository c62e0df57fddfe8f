"""An access log of kvgate as a trace: the JSON lines that a gateway writes, one for each request that has ended.

A line is dated by its end; its head came total_ms before that, and its body upload_ms later: that is its arrival here, as it
is for queue_ms. What a request would have become that did not end by
itself is not known. Lines of other loggers, requests that never were counted, and those that the engine itself refused are
skipped and counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Final

import msgspec

from gateway.replay.csv_rows import MOST_TOKENS
from gateway.replay.trace import Recorded, Request, RowError

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]

_LOGGER: Final = "kvgate.request"
# Answers that ended by themselves, or by the cap that is in the line.
_WHOLE: Final = frozenset({"completed", "capped"})
_VLLM_COMPLETIONS_CAP: Final = 16
_MANY_PROMPTS: Final = frozenset({"openai_completions", "openai_embeddings"})


class _Head(msgspec.Struct):
    logger: str = ""


class LogLine(msgspec.Struct):
    """What is read of a request's line. The names are those of web/request_line.py; what is not there has not happened."""

    time: str
    outcome: str
    dialect: str = ""
    tenant: str = ""
    model: str = ""
    backend: str = ""
    pool: str = ""
    stream: bool = True
    prompt_tokens_counted: Tokens | None = None
    count: str = "exact"
    cap_tokens: Tokens | None = None
    written_cap_tokens: Tokens | None = None
    blocks: Tokens | None = None
    sequences: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 1
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    upload_ms: Milliseconds = 0.0
    queue_ms: Milliseconds = 0.0
    ttft_ms: Milliseconds | None = None
    total_ms: Milliseconds = 0.0


_head: Final = msgspec.json.Decoder(_Head)
_line: Final = msgspec.json.Decoder(LogLine)


def read_log_lines(
    lines: Iterable[tuple[int, bytes]], skipped: Counter[str], *, pool: str | None = None
) -> Iterator[tuple[Request, Recorded]]:
    """The requests of numbered lines. skipped: counts the others, by what they are. pool: those of one pool only, None: all.

    Raises RowError for a request's line that makes no sense.
    """
    for number, line in lines:
        try:
            logger = _head.decode(line).logger
        except (msgspec.DecodeError, UnicodeDecodeError):
            skipped["lines that are not of a log in JSON"] += 1
            continue
        if logger != _LOGGER:
            skipped["lines of other loggers"] += 1
            continue
        try:
            said = _line.decode(line)
            ended_at = datetime.fromisoformat(said.time).timestamp()
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise RowError(number, f"this line of a request makes no sense: {error}") from None
        if said.prompt_tokens_counted is None:
            skipped["requests that were never weighed"] += 1
        elif pool is not None and said.pool != pool:
            skipped["requests of other pools"] += 1
        elif said.outcome == "engine_refused":
            skipped["requests that the engine itself refused"] += 1
        else:
            yield _request(said, ended_at), _recorded(said)


def _request(said: LogLine, ended_at: float) -> Request:
    assert said.prompt_tokens_counted is not None, "others are skipped"
    is_whole = said.outcome in _WHOLE and said.output_tokens is not None
    # Several sequences of a chat are samples of its one prompt; elsewhere they are mostly prompts of their own, taken as alike.
    prompts = said.sequences if said.dialect in _MANY_PROMPTS else 1
    counted = max(-(-said.prompt_tokens_counted // prompts), 1)
    is_bound = said.count != "exact"
    told = -(-(said.prompt_tokens or 0) // prompts) or counted
    # A bound is never below the truth.
    prompt = min(told, counted) if is_bound else told
    cap_tokens = said.cap_tokens or None
    if cap_tokens is None and said.dialect == "openai_completions" and (said.output_tokens or 0) <= _VLLM_COMPLETIONS_CAP:
        cap_tokens = _VLLM_COMPLETIONS_CAP
    return Request(
        at=ended_at - max(said.total_ms - said.upload_ms, 0.0) / 1000,
        prompt_tokens=prompt,
        output_tokens=max(said.output_tokens or 1, said.sequences) if is_whole else None,
        counted_tokens=counted,
        is_bound=is_bound,
        cap_tokens=cap_tokens,
        sequences=said.sequences,
        is_stream=said.stream,
        tenant=said.tenant,
        model=said.model,
        cached_tokens=min(said.cached_tokens or 0, prompt),
    )


def _recorded(said: LogLine) -> Recorded:
    # Counting is a part of the time in line, as the log has it.
    ttft_s = None if said.ttft_ms is None else max(said.ttft_ms - said.upload_ms, 0.0) / 1000
    return Recorded(
        outcome=said.outcome,
        waited_s=said.queue_ms / 1000,
        ttft_s=ttft_s,
        first_token_s=None if ttft_s is None else max(ttft_s - said.queue_ms / 1000, 0.0),
        total_s=max(said.total_ms - said.upload_ms, 0.0) / 1000,
        backend=said.backend,
        pool=said.pool,
        blocks=said.blocks,
    )
