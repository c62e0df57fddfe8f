"""Errors to HTTP: each reason its status, its outcome, and whether to come back."""

import random

import pytest

from gateway.core.errors import InvalidRequest, Rejected, UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.core.outcomes import Outcome, RejectReason
from gateway.web.error_answers import ErrorAnswer, answer_to, retry_headers

INVALID = {
    RejectReason.INVALID_REQUEST: (400, Outcome.REFUSED_INVALID_REQUEST),
    RejectReason.UNAUTHORIZED: (401, Outcome.REFUSED_UNAUTHORIZED),
    RejectReason.UNKNOWN_MODEL: (404, Outcome.REFUSED_UNKNOWN_MODEL),
    RejectReason.BODY_TOO_LARGE: (413, Outcome.REFUSED_BODY_TOO_LARGE),
    RejectReason.UPLOAD_TIMEOUT: (408, Outcome.TIMEOUT_UPLOAD),
    RejectReason.CONTEXT_LENGTH: (400, Outcome.REFUSED_CONTEXT_LENGTH),
    RejectReason.KV_BUDGET: (400, Outcome.REFUSED_KV_BUDGET),
}
CURABLE = {
    RejectReason.QUEUE_FULL: (429, Outcome.REFUSED_QUEUE_FULL),
    RejectReason.PREDICTED_WAIT: (429, Outcome.REFUSED_PREDICTED_WAIT),
    RejectReason.QUEUE_TIMEOUT: (429, Outcome.TIMEOUT_QUEUE),
    RejectReason.TENANT_LIMIT: (429, Outcome.REFUSED_TENANT_LIMIT),
    RejectReason.NO_BACKEND: (503, Outcome.REFUSED_NO_BACKEND),
    RejectReason.DRAINING: (503, Outcome.REFUSED_DRAINING),
}


def answer(error: Exception, *, patience_left_s: float | None = None) -> ErrorAnswer:
    return answer_to(error, patience_left_s=patience_left_s, jitter=random.Random(1))


def invites_retry(found: ErrorAnswer) -> bool:
    """Whether it does, and never both ways at once."""
    names = {name for name, _ in found.headers}
    says_no = (b"x-should-retry", b"false") in found.headers
    assert ({b"retry-after", b"retry-after-ms"} <= names) != says_no, found.headers
    return not says_no


def test_every_reason_is_in_one_of_the_two_tables() -> None:
    assert {*INVALID, *CURABLE} == set(RejectReason)
    assert not set(INVALID) & set(CURABLE)


@pytest.mark.parametrize("reason", INVALID)
def test_what_waiting_does_not_cure_invites_no_retry(reason: RejectReason) -> None:
    found = answer(InvalidRequest("no", reason=reason, param="p", facts={"need": 3}))
    assert (found.status, found.outcome) == INVALID[reason]
    assert not invites_retry(found)
    assert (found.facts.code, found.facts.param, dict(found.facts.facts)) == (reason.value, "p", {"need": 3})


@pytest.mark.parametrize("reason", [RejectReason.UNAUTHORIZED, RejectReason.BODY_TOO_LARGE, RejectReason.UPLOAD_TIMEOUT])
def test_a_connection_with_an_unread_body_is_closed(reason: RejectReason) -> None:
    assert (b"connection", b"close") in answer(InvalidRequest("no", reason=reason)).headers


@pytest.mark.parametrize("reason", CURABLE)
def test_what_waiting_cures_says_when_to_come_back(reason: RejectReason) -> None:
    found = answer(Rejected("later", reason=reason, retry_after_s=3.0))
    assert (found.status, found.outcome) == CURABLE[reason]
    assert invites_retry(found)
    assert (found.facts.code, found.facts.message) == (reason.value, "later")


def test_a_queued_request_that_became_too_large_is_not_invited_back() -> None:
    found = answer(Rejected("never", reason=RejectReason.KV_BUDGET, retry_after_s=None))
    assert (found.status, found.outcome) == (400, Outcome.REFUSED_KV_BUDGET)
    assert not invites_retry(found)


@pytest.mark.parametrize(("left_s", "again"), [(None, True), (3.0, True), (0.0, False), (-0.1, False)])
def test_a_wait_that_used_up_the_callers_patience_invites_no_retry(left_s: float | None, again: bool) -> None:
    timed_out = Rejected("late", reason=RejectReason.QUEUE_TIMEOUT, retry_after_s=None)
    assert invites_retry(answer(timed_out, patience_left_s=left_s)) is again


@pytest.mark.parametrize("stage", list(UpstreamStage))
def test_an_engines_failure_may_be_tried_again_only_where_nothing_was_sent(stage: UpstreamStage) -> None:
    found = answer(UpstreamFailed(BackendName("a"), stage, "10.0.0.1 said no"))
    assert found.status in (502, 503, 504)
    assert invites_retry(found) is (stage in (UpstreamStage.CONNECT, UpstreamStage.CONNECT_TIMEOUT))
    assert "10.0.0.1" not in found.facts.message


def test_a_bug_of_ours_tells_nothing_of_itself() -> None:
    found = answer(ZeroDivisionError("secret"))
    assert (found.status, found.outcome) == (500, Outcome.GATEWAY_ERROR)
    assert "secret" not in found.facts.message


@pytest.mark.parametrize("wait_s", [None, 0.0, 0.3, 1.0, 7.0, 59.9, 119.0, 120.0, 121.0, 4000.0, 1e9])
def test_retry_after_is_a_whole_number_from_1_to_120_that_varies(wait_s: float | None) -> None:
    jitter = random.Random(7)
    seconds: list[int] = []
    for _ in range(500):
        headers = dict(retry_headers(wait_s, jitter))
        assert headers[b"retry-after"].isdigit()
        whole_s, exact_ms = int(headers[b"retry-after"]), int(headers[b"retry-after-ms"])
        assert 1 <= whole_s <= 120
        assert whole_s * 1000 >= exact_ms > (whole_s - 1) * 1000
        if wait_s is not None:
            assert exact_ms >= min(wait_s, 90.0) * 1000, "told to come back before there will be room"
        seconds.append(whole_s)
    assert len(set(seconds)) > 1


def test_no_two_callers_come_back_in_the_same_millisecond() -> None:
    jitter = random.Random(7)
    told = [dict(retry_headers(None, jitter))[b"retry-after-ms"] for _ in range(50)]
    assert len(set(told)) > 45


def test_the_head_of_an_error_has_each_header_once() -> None:
    head = answer(InvalidRequest("no")).head_for(b"{}")
    names = [name for name, _ in head]
    assert len(names) == len(set(names))
    assert (b"content-length", b"2") in head
    assert b"date" in names
