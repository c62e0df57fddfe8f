"""kvgate's own errors in OpenAI's shape: what its SDKs raise on, as a body and inside a stream."""

import json

from gateway.dialects.dialect import ErrorFacts

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "overloaded_error"}
# A message is one sentence with numbers; longer ones come from elsewhere (an engine, a URL) and are cut.
_MESSAGE_CHARS = 1_000


def error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def short_message(message: str) -> str:
    """The message as it can be written: no half emoji, and not endless."""
    shown = message if len(message) <= _MESSAGE_CHARS else message[:_MESSAGE_CHARS] + "…"
    return shown.encode("utf-8", "replace").decode()


def error_body(error: ErrorFacts) -> bytes:
    """`{"error": {...}}`, strict JSON in plain ASCII, so that half an emoji in a message cannot break the answer."""
    members: dict[str, str | int | None] = {
        **error.facts,
        "message": short_message(error.message),
        "type": error_type(error.status),
        "param": error.param,
        "code": error.code,
    }
    return json.dumps({"error": members}, allow_nan=False, separators=(",", ":")).encode()


def error_event(error: ErrorFacts) -> bytes:
    """One event. An `event: error` line would make SDKs skip it in silence, and no `[DONE]` may follow (both measured)."""
    return b"data: " + error_body(error) + b"\n\n"
