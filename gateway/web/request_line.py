"""The line that each request leaves in the log: its fields, in their order. None is left out. Content never enters it."""

import msgspec


class RequestLine(msgspec.Struct, omit_defaults=True, gc=False):
    """The README tells of each field. All are known of every request that was answered; what is None is left out."""

    request_id: str
    trace_id: str | None = None
    parent_id: str | None = None
    dialect: str | None = None
    outcome: str | None = None
    phase: str | None = None
    reason: str | None = None
    status: int | None = None
    error: str | None = None
    model: str | None = None
    tenant: str | None = None
    lane: str | None = None
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
    queue_ms: int | None = None
    head_ms: float | None = None
    ttft_ms: float | None = None
    upstream_ms: float | None = None
    total_ms: float | None = None


def milliseconds(seconds: float) -> float:
    """To a tenth."""
    return int(seconds * 10_000 + 0.5) / 10


def whole_milliseconds(seconds: float) -> int:
    """0 for less than none."""
    return round(seconds * 1000) if seconds > 0 else 0
