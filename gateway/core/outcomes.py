"""Every way a request can end, exactly one each, and every reason for which kvgate itself declines one."""

from enum import StrEnum
from typing import Final


class RejectReason(StrEnum):
    """Why we declined. The value is the `code` in the error body and the label `reason` in the metrics."""

    # The caller's: waiting cures none of these.
    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_MODEL = "unknown_model"
    BODY_TOO_LARGE = "body_too_large"
    UPLOAD_TIMEOUT = "upload_timeout"
    CONTEXT_LENGTH = "context_length_exceeded"
    KV_BUDGET = "kv_budget_exceeded"
    # Ours: waiting may cure these.
    QUEUE_FULL = "queue_full"
    PREDICTED_WAIT = "predicted_wait"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_LIMIT = "tenant_limit"
    NO_BACKEND = "no_backend"
    DRAINING = "draining"


class Outcome(StrEnum):
    """How a request ended. A request is a counted route whose head was parsed; each has one outcome."""

    COMPLETED = "completed"
    CAPPED = "capped"  # ended by a cap that the gateway wrote

    REFUSED_INVALID_REQUEST = "refused_invalid_request"
    REFUSED_UNAUTHORIZED = "refused_unauthorized"
    REFUSED_UNKNOWN_MODEL = "refused_unknown_model"
    REFUSED_BODY_TOO_LARGE = "refused_body_too_large"
    REFUSED_CONTEXT_LENGTH = "refused_context_length_exceeded"
    REFUSED_KV_BUDGET = "refused_kv_budget_exceeded"
    REFUSED_QUEUE_FULL = "refused_queue_full"
    REFUSED_PREDICTED_WAIT = "refused_predicted_wait"
    REFUSED_TENANT_LIMIT = "refused_tenant_limit"
    REFUSED_NO_BACKEND = "refused_no_backend"
    REFUSED_DRAINING = "refused_draining"
    ENGINE_REFUSED = "engine_refused"  # the engine's own 4xx

    CLIENT_GONE_UPLOAD = "client_gone_upload"
    CLIENT_GONE_QUEUED = "client_gone_queued"
    CLIENT_GONE_WAITING = "client_gone_waiting"  # granted, nothing of the answer relayed yet
    CLIENT_GONE_STREAMING = "client_gone_streaming"

    TIMEOUT_UPLOAD = "timeout_upload"
    TIMEOUT_QUEUE = "timeout_queue"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"

    UPSTREAM_ERROR_BEFORE = "upstream_error_before"  # nothing of an answer had come
    UPSTREAM_ERROR_AFTER = "upstream_error_after"  # the answer broke, or carried an error event
    DRAINED = "drained"  # cut at the end of the drain
    GATEWAY_ERROR = "gateway_error"  # a bug of ours: it is counted too, so that the sums still add up


_TIMEOUTS: Final = {
    RejectReason.UPLOAD_TIMEOUT: Outcome.TIMEOUT_UPLOAD,
    RejectReason.QUEUE_TIMEOUT: Outcome.TIMEOUT_QUEUE,
}


def refusal(reason: RejectReason) -> Outcome:
    """The outcome of a request that was declined for `reason`."""
    return _TIMEOUTS.get(reason) or Outcome(f"refused_{reason.value}")
