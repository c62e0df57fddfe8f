"""The three errors, by whose they are: the caller's, our decision, the engine's."""

from collections.abc import Mapping
from enum import StrEnum

from gateway.core.names import BackendName
from gateway.core.outcomes import RejectReason


class GatewayError(Exception):
    """What a room may raise about a request. Anything else that escapes is a bug."""


class InvalidRequest(GatewayError):
    """The caller's error: the request as it stands can never be served.

    message: one sentence for the caller, with numbers. param: the field at fault, None if it is not one field.
    facts: the numbers behind a refusal by size (tokens, blocks), shown beside the message.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: RejectReason = RejectReason.INVALID_REQUEST,
        param: str | None = None,
        facts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.param = param
        self.facts: Mapping[str, int] = facts or {}


class Rejected(GatewayError):
    """Our decision: not now. `retry_after_s` is when to come back; None invites no retry."""

    def __init__(self, message: str, *, reason: RejectReason, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.retry_after_s = retry_after_s


class UpstreamStage(StrEnum):
    """Where the exchange with the engine broke."""

    CONNECT = "connect"  # nothing was sent
    CONNECT_TIMEOUT = "connect_timeout"  # nothing was sent
    HEAD = "head"  # sent, and no whole answer head came
    BODY = "body"  # the answer ended before its end
    FIRST_TOKEN = "first_token"
    STALL = "stall"
    TOTAL = "total"
    DRAIN = "drain"  # cut by us at the end of the drain


class UpstreamFailed(GatewayError):
    """The engine's error: refused, reset, cut, nonsense, or too slow."""

    def __init__(self, backend: BackendName, stage: UpstreamStage, detail: str) -> None:
        super().__init__(f"{backend}: {stage.value}: {detail}")
        self.backend = backend
        self.stage = stage
        self.detail = detail
