"""Heads on their way: a client's to the engine, the engine's back to the client."""

import pytest

from benchmarks.micro.measure import Measure
from gateway.relay.headers import Header, answer_headers, onward_headers
from gateway.relay.upstream_request import WireRequest, write_request

ASKED: list[Header] = [
    (b"host", b"gateway:8700"),
    (b"user-agent", b"OpenAI/Python 1.99.0"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer sk-0123456789"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-timeout", b"600"),
    (b"content-length", b"1024"),
]
ANSWERED: list[Header] = [
    (b"date", b"Thu, 01 Jan 2026 00:00:00 GMT"),
    (b"server", b"uvicorn"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"transfer-encoding", b"chunked"),
]
OWN: list[Header] = [
    (b"x-kvgate-request-id", b"01234567-1"),
    (b"x-kvgate-blocks", b"64"),
    (b"x-kvgate-queue-ms", b"0"),
]
BODY = b"x" * 1024


def send_on() -> WireRequest:
    return write_request(b"POST", b"/v1/chat/completions", onward_headers(ASKED, host=b"engine:8000"), BODY)


def test_a_request_s_head_for_the_engine(benchmark: Measure) -> None:
    written = benchmark(send_on)
    assert isinstance(written, WireRequest)
    assert written.buffers[0].endswith(b"\r\n\r\n" + BODY)


@pytest.mark.parametrize("is_event_stream", [True, False], ids=["stream", "plain"])
def test_an_answer_s_headers_for_the_client(benchmark: Measure, is_event_stream: bool) -> None:
    def pass_back() -> list[Header]:
        return answer_headers(ANSWERED, OWN, is_event_stream=is_event_stream, length_changes=is_event_stream)

    back = benchmark(pass_back)
    assert isinstance(back, list)
    assert back[-len(OWN) :] == OWN
