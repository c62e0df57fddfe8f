"""A request as bytes: framed once, and nothing in it can begin another."""

import pytest

from gateway.core.errors import InvalidRequest
from gateway.relay.upstream_request import JOIN_BELOW_BYTES, write_request

HOST = (b"host", b"engine:8000")


def test_a_small_request_is_one_buffer_with_its_length() -> None:
    request = write_request(b"POST", b"/v1/x", [HOST, (b"x-a", b"1")], b"{}")
    assert request.buffers == (b"POST /v1/x HTTP/1.1\r\nhost: engine:8000\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}",)


def test_a_large_body_is_handed_over_as_the_very_same_bytes() -> None:
    body = b"x" * JOIN_BELOW_BYTES
    head, same = write_request(b"POST", b"/", [HOST], body).buffers
    assert same is body
    assert head.endswith(b"content-length: %d\r\n\r\n" % len(body))


def test_a_post_without_a_body_says_so_and_a_get_says_nothing() -> None:
    assert b"content-length: 0\r\n" in write_request(b"POST", b"/", [HOST], b"").buffers[0]
    assert write_request(b"GET", b"/", [HOST], b"").buffers == (b"GET / HTTP/1.1\r\nhost: engine:8000\r\n\r\n",)
    assert write_request(b"HEAD", b"/", [HOST], b"").is_head


@pytest.mark.parametrize("bad", [b"a\r\nb", b"a\nb", b"a\rb", b"a\0b", b"a\r\n\r\nGET / HTTP/1.1"])
def test_nothing_can_break_out_of_its_line(bad: bytes) -> None:
    for method, target, field in [
        (bad, b"/", HOST),
        (b"GET", bad, HOST),
        (b"GET", b"/", (bad, b"v")),
        (b"GET", b"/", (b"x", bad)),
    ]:
        with pytest.raises(InvalidRequest):
            write_request(method, target, [field], b"")


@pytest.mark.parametrize("target", [b"", b"/a b", b"/a HTTP/1.1", b"/\x7f", b"/\t"])
def test_a_target_is_one_word(target: bytes) -> None:
    with pytest.raises(InvalidRequest):
        write_request(b"GET", target, [HOST], b"")


@pytest.mark.parametrize("name", [b"content-length", b"transfer-encoding"])
def test_nobody_else_frames(name: bytes) -> None:
    with pytest.raises(ValueError):
        write_request(b"POST", b"/", [HOST, (name, b"1")], b"x")


@pytest.mark.parametrize(("method", "body", "is_head"), [(b"HEAD", b"", True), (b"HEAD", b"{}", True), (b"POST", b"", False)])
def test_the_answer_to_head_has_no_body_whatever_the_request_has(method: bytes, body: bytes, is_head: bool) -> None:
    assert write_request(method, b"/", [], body).is_head == is_head
