"""No header makes the relay raise anything but a refusal, or get a line of its own onto the next hop."""

import random

import pytest

from fuzz.mutation import mutate, try_all
from gateway.core.errors import InvalidRequest
from gateway.relay.headers import answer_headers, onward_headers
from gateway.relay.upstream_request import write_request
from gateway.web.asked import asked_of
from gateway.web.patience import patience_of

FIELDS = [
    b"content-type: application/json",
    b"Authorization: Bearer secret",
    b"connection: keep-alive, x-drop, te",
    b"x-drop: this hop only",
    b"transfer-encoding: chunked",
    b"content-length: 5",
    b"x-kvgate-request-id: forged",
    b"x-stainless-timeout: 600",
    b"x-request-timeout: 0.5",
    b"expect: 100-continue",
    b"date: Mon, 30 Nov 2026 10:00:00 GMT",
    b"x-title: caf\xe9 \xe6\x97\xa5",
    b"set-cookie: a=b; path=/",
    b"keep-alive: timeout=5",
]
WORDS = (
    b": ",
    b":",
    b"\r\nx-injected: 1",
    b"\nx-injected: 1",
    b"\rx",
    b"\x00",
    b"connection: ",
    b"host: elsewhere",
    b" ",
    b"1e309",
    b"-1",
    b"nan",
)


def fields(data: bytes) -> list[tuple[bytes, bytes]]:
    """Any pairs: what a parser would never let through may be among them."""
    return [(name, value.lstrip(b" ")) for name, _, value in (line.partition(b":") for line in data.split(b"|"))]


def check_headers(data: bytes, dice: random.Random) -> None:
    pairs = fields(data)
    authorization = dice.choice((None, b"Bearer ours"))
    patience = patience_of(asked_of(pairs))
    assert patience is None or 0 < patience < float("inf")
    try:
        onward = onward_headers(pairs, host=b"engine:1", authorization=authorization)
    except InvalidRequest:
        pass
    else:
        names = [name for name, _ in onward]
        assert names.count(b"host") == 1
        assert not {b"connection", b"transfer-encoding", b"content-length", b"te", b"upgrade"} & set(names)
        assert not any(name.startswith(b"x-kvgate-") for name in names)
        assert authorization is None or [value for name, value in onward if name == b"authorization"] == [authorization]
        # What went through here is never refused a step later, and each field is one line.
        (head,) = write_request(b"POST", b"/v1/x", onward, b"").buffers
        lines = head.split(b"\r\n")
        assert lines[1:-2] == [name + b": " + value for name, value in onward] + [b"content-length: 0"]
    back = answer_headers(pairs, [(b"x-kvgate-queue-ms", b"1")], is_event_stream=dice.random() < 0.5, length_changes=False)
    assert [name for name, _ in back].count(b"date") == 1
    assert [value for name, value in back if name.startswith(b"x-kvgate-")] == [b"1"]
    assert not any(byte in name + value for name, value in back for byte in b"\r\n\x00")


def test_mutated_headers_stay_in_their_lines(fuzz_inputs: int) -> None:
    samples = [b"|".join(random.Random(number).sample(FIELDS, k=5)) for number in range(40)]
    try_all("headers", fuzz_inputs, samples, check_headers, words=WORDS)


def test_mutated_request_lines_are_one_line_or_refused(fuzz_inputs: int) -> None:
    def check(data: bytes, dice: random.Random) -> None:
        method, _, target = data.partition(b" ")
        try:
            request = write_request(method, target, [(b"host", b"engine")], b"")
        except InvalidRequest:
            return
        head = b"".join(request.buffers)
        assert head.startswith(method + b" " + target + b" HTTP/1.1\r\nhost: engine\r\n")
        assert head.count(b"\r\n\r\n") == 1
        assert head.count(b" HTTP/1.1\r\n") == 1

    try_all("request lines", fuzz_inputs, [b"POST /v1/chat/completions?x=%20", b"GET /metrics", b"HEAD /"], check, words=WORDS)


@pytest.mark.parametrize("value", [b"nan", b"inf", b"-inf", b"1e400", b"", b" ", b"1_0", b"\xd9\xa1", b"0", b"-0.0", b"1e-400"])
def test_a_patience_that_is_no_positive_number_says_nothing(value: bytes) -> None:
    patience = patience_of({b"x-request-timeout": value})
    assert patience is None or patience > 0


def test_the_samples_are_mutated_into_refusals_and_into_requests() -> None:
    """A fuzz that is always refused would prove nothing."""
    refused = 0
    for number in range(300):
        try:
            onward_headers(fields(mutate(random.Random(number), [b"|".join(FIELDS)], WORDS)), host=b"engine")
        except InvalidRequest:
            refused += 1
    assert 10 < refused < 290
