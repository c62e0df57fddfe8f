"""Errors to HTTP: the one place that knows statuses and retry headers. The dialect only dresses the body."""

import math
import random
from dataclasses import dataclass, replace
from typing import assert_never

from gateway.core.errors import InvalidRequest, Rejected, UpstreamFailed, UpstreamStage
from gateway.core.outcomes import Outcome, RejectReason, refusal
from gateway.dialects.dialect import ErrorFacts
from gateway.relay.headers import date_header
from gateway.relay.stream import BROKEN, broken_facts
from gateway.web.door import DoorReason

Headers = list[tuple[bytes, bytes]]

_NO_RETRY: tuple[bytes, bytes] = (b"x-should-retry", b"false")
# Before the drain rate is known nobody can say when room will be; spread the callers, so that they do not return as one.
_UNKNOWN_WAIT_S = (1.0, 5.0)
_LONGEST_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An answer of our own: its status and body facts, its retry headers, and what the request is counted as."""

    facts: ErrorFacts
    headers: Headers
    outcome: Outcome

    @property
    def status(self) -> int:
        return self.facts.status

    @property
    def told_wait_s(self) -> float | None:
        """When the caller was told to come back (seconds from now); None: it was not."""
        told_ms = next((int(value) for name, value in self.headers if name == b"retry-after-ms"), None)
        return None if told_ms is None else told_ms / 1000

    @property
    def in_band(self) -> ErrorFacts:
        """The error as an event of a stream tells it, whose headers are out already."""
        told_s = self.told_wait_s
        if told_s is None:
            return self.facts
        return replace(self.facts, facts={**self.facts.facts, "retry_after_ms": round(told_s * 1000)})

    def head_for(self, body: bytes) -> Headers:
        """All headers of an answer with this body, which is JSON."""
        length = (b"content-length", str(len(body)).encode())
        return [(b"content-type", b"application/json"), length, date_header(), *self.headers]


def status_of(reason: RejectReason) -> int:
    """The HTTP status of each reason; a reason without one fails the type check."""
    match reason:
        case RejectReason.INVALID_REQUEST | RejectReason.CONTEXT_LENGTH | RejectReason.KV_BUDGET:
            return 400
        case RejectReason.UNAUTHORIZED:
            return 401
        case RejectReason.UNKNOWN_MODEL:
            return 404
        case RejectReason.UPLOAD_TIMEOUT:
            return 408
        case RejectReason.BODY_TOO_LARGE:
            return 413
        case RejectReason.QUEUE_FULL | RejectReason.PREDICTED_WAIT | RejectReason.QUEUE_TIMEOUT | RejectReason.TENANT_LIMIT:
            return 429
        case RejectReason.NO_BACKEND | RejectReason.DRAINING:
            return 503
        case _:
            assert_never(reason)


def answer_to(error: Exception, *, patience_left_s: float | None = None, jitter: random.Random) -> ErrorAnswer:
    """The answer to whatever ended a request before anything of an answer was sent; what is no GatewayError is our bug.

    patience_left_s: how much longer this caller would have waited, None if it did not say.
    """
    match error:
        case InvalidRequest():
            return answer_to_invalid(error)
        case Rejected():
            return answer_to_rejected(error, patience_left_s=patience_left_s, jitter=jitter)
        case UpstreamFailed():
            return answer_to_upstream_failure(error)
        case _:
            return answer_to_bug()


def answer_to_invalid(error: InvalidRequest) -> ErrorAnswer:
    """The caller's error: nothing that waiting cures, so no retry is invited."""
    facts = ErrorFacts(status_of(error.reason), error.reason.value, error.message, error.param, error.facts)
    headers = [_NO_RETRY]
    if error.reason is RejectReason.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.reason in (RejectReason.UNAUTHORIZED, RejectReason.BODY_TOO_LARGE, RejectReason.UPLOAD_TIMEOUT):
        # The rest of the body is not read: this connection cannot carry another request.
        headers.append((b"connection", b"close"))
    return ErrorAnswer(facts, headers, refusal(error.reason))


def answer_to_rejected(error: Rejected, *, patience_left_s: float | None = None, jitter: random.Random) -> ErrorAnswer:
    """Our decision: when to come back, unless waiting cures nothing or the caller has no patience left."""
    facts = ErrorFacts(status_of(error.reason), error.reason.value, error.message)
    if error.reason is RejectReason.KV_BUDGET or (
        error.reason is RejectReason.QUEUE_TIMEOUT and patience_left_s is not None and patience_left_s <= 0
    ):
        return ErrorAnswer(facts, [_NO_RETRY], refusal(error.reason))
    return ErrorAnswer(facts, retry_headers(error.retry_after_s, jitter), refusal(error.reason))


def answer_to_upstream_failure(error: UpstreamFailed) -> ErrorAnswer:
    """The engine's failure, before anything of an answer was sent. Retry is invited only where nothing was sent to it."""
    unsent = error.stage in (UpstreamStage.CONNECT, UpstreamStage.CONNECT_TIMEOUT)
    headers = [(b"retry-after", b"1"), (b"retry-after-ms", b"1000")] if unsent else [_NO_RETRY]
    return ErrorAnswer(broken_facts(error), headers, BROKEN[error.stage].before)


def answer_to_bug() -> ErrorAnswer:
    facts = ErrorFacts(500, "gateway_error", "the gateway failed on this request; its log says why")
    return ErrorAnswer(facts, [], Outcome.GATEWAY_ERROR)


@dataclass(frozen=True, slots=True)
class DoorAnswer:
    """What is said at the door, where nothing is counted as a request yet."""

    facts: ErrorFacts
    headers: Headers


def answer_at_door(reason: DoorReason, jitter: random.Random) -> DoorAnswer:
    """Why a connection is turned away or ended before a request of it was taken."""
    status, message = _at_door(reason)
    headers = retry_headers(None, jitter) if status == 503 else [_NO_RETRY]
    return DoorAnswer(ErrorFacts(status, reason.value, message), headers)


def _at_door(reason: DoorReason) -> tuple[int, str]:
    match reason:
        case DoorReason.TOO_MANY_CONNECTIONS:
            return 503, "this gateway has as many connections as it may have (KVGATE_MAX_CONNECTIONS)"
        case DoorReason.TOO_MANY_FROM_ADDRESS:
            return 503, "this address has as many connections as it may have (KVGATE_MAX_CONNECTIONS_PER_ADDRESS)"
        case DoorReason.TOO_MANY_PIPELINED:
            return 503, "too much was sent behind requests that are not answered yet (KVGATE_MAX_PIPELINED)"
        case DoorReason.HEADER_TIMEOUT:
            return 408, "the head of the request did not arrive in time (KVGATE_HEADER_TIMEOUT)"
        case DoorReason.HEADERS_TOO_LARGE:
            return 431, "the header fields are too large (KVGATE_MAX_HEADER_BYTES)"
        case DoorReason.TOO_MANY_HEADERS:
            return 431, "there are too many header fields (KVGATE_MAX_HEADERS)"
        case DoorReason.URL_TOO_LONG:
            return 414, "the request's target is too long (KVGATE_MAX_URL)"
        case DoorReason.MALFORMED:
            return 400, "this is not HTTP/1.1 as it must be written"
        case DoorReason.HOST:
            return 400, "a request has one Host header, and its value is a host"
        case DoorReason.VERSION:
            return 505, "only HTTP/1.1 and HTTP/1.0 are spoken here"
        case DoorReason.TRANSFER_CODING:
            return 400, "chunked, once, and in HTTP/1.1 only, is the transfer coding that is understood here"
        case DoorReason.EXPECTATION:
            return 417, "100-continue is the only expectation that can be met here"
        case _:
            assert_never(reason)


def retry_headers(wait_s: float | None, jitter: random.Random) -> Headers:
    """`Retry-After` in whole seconds, 1 to 120, and the finer `retry-after-ms`; no two callers are told the same.

    wait_s: the predicted wait, None while it is unknown. Both are given, since SDKs obey the finer and proxies the other.
    """
    if wait_s is None:
        wait_s = jitter.uniform(*_UNKNOWN_WAIT_S)
    else:
        spread_s = max(2.0, min(wait_s, _LONGEST_WAIT_S) / 4)
        # The least wait comes before the spread: else all who would wait less are told the very same second.
        wait_s = min(max(wait_s, 1.0), _LONGEST_WAIT_S - spread_s) + jitter.uniform(0.0, spread_s)
    return [
        (b"retry-after", str(math.ceil(wait_s)).encode()),
        (b"retry-after-ms", str(math.ceil(wait_s * 1000)).encode()),
    ]
