"""kvgate's own errors in Anthropic's shape: what its SDKs raise on, as a body and inside a stream."""

import json
from typing import Final

from gateway.dialects.dialect import ErrorFacts

# https://docs.anthropic.com/en/api/errors; 503 is what other gateways say where Anthropic says 529.
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# A message is one sentence with numbers; longer ones come from elsewhere (an engine, a URL) and are cut.
_MESSAGE_CHARS: Final = 1_000


def error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(error: ErrorFacts) -> bytes:
    """`{"type": "error", "error": {...}}`, strict JSON in plain ASCII, with our code and numbers beside the message."""
    message = error.message if len(error.message) <= _MESSAGE_CHARS else error.message[:_MESSAGE_CHARS] + "…"
    members: dict[str, str | int | None] = {
        **error.facts,
        "type": error_type(error.status),
        "message": message.encode("utf-8", "replace").decode(),
        "param": error.param,
        "code": error.code,
    }
    return json.dumps({"type": "error", "error": members}, allow_nan=False, separators=(",", ":")).encode()


def error_event(error: ErrorFacts) -> bytes:
    """One event. Without its name SDKs would skip it in silence (measured)."""
    return b"event: error\ndata: " + error_body(error) + b"\n\n"
