"""The line that each request leaves in the log: its fields, in their order. None is left out. Content never enters it."""

import msgspec

from gateway import logs

REQUEST = logs.FrequentEvent("kvgate.request", "request")


class RequestLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The README tells of each field. Those without a default are known of every request."""

    request_id: str
    trace_id: str | None = None
    parent_id: str | None = None
    dialect: str
    outcome: str
    phase: str
    reason: str | None = None
    status: int | None = None
    error: str | None = None
    model: str
    tenant: str
    lane: str
    pool: str | None = None
    backend: str | None = None
    stream: bool | None = None
    prompt_tokens_counted: int | None = None
    count: str | None = None
    cap_tokens: int | None = None
    written_cap_tokens: int | None = None
    sequences: int | None = None
    blocks: int | None = None
    charged_blocks: int | None = None
    released_blocks: int | None = None
    would_have: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    upload_ms: float | None = None
    count_ms: float | None = None
    truncated: bool | None = None
    queue_ms: int
    head_ms: float | None = None
    ttft_ms: float | None = None
    upstream_ms: float | None = None
    total_ms: float


def milliseconds(seconds: float) -> float:
    """To a tenth."""
    return int(seconds * 10_000 + 0.5) / 10
