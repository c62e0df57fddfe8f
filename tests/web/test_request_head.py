"""Heads that could be read in two ways are refused, each for its reason, and ordinary ones are not."""

import pytest

from gateway.web.door import DoorReason
from gateway.web.request_head import fault_of, framing_of

HOST = [b"gateway:8700"]


@pytest.mark.parametrize(
    ("version", "hosts", "codings", "expectation", "fault"),
    [
        ("1.1", HOST, [], None, None),
        ("1.1", [b"[::1]:8700"], [b"chunked"], b"100-continue", None),
        ("1.0", [], [], None, None),
        ("1.0", HOST, [], b"anything", None),
        ("2.0", HOST, [], None, DoorReason.VERSION),
        ("1.1", [], [], None, DoorReason.HOST),
        ("1.1", [b"a", b"b"], [], None, DoorReason.HOST),
        ("1.1", [b"a/b"], [], None, DoorReason.HOST),
        ("1.1", [b"a\n"], [], None, DoorReason.HOST),
        ("1.1", HOST, [b"gzip, chunked"], None, DoorReason.TRANSFER_CODING),
        ("1.1", HOST, [b"chunked", b"chunked"], None, DoorReason.TRANSFER_CODING),
        ("1.0", HOST, [b"chunked"], None, DoorReason.TRANSFER_CODING),
        ("1.1", HOST, [], b"a-teapot", DoorReason.EXPECTATION),
    ],
)
def test_a_head_is_refused_for_what_is_wrong_with_it(
    version: str, hosts: list[bytes], codings: list[bytes], expectation: bytes | None, fault: DoorReason | None
) -> None:
    assert fault_of(version, hosts, codings, expectation) is fault


def test_a_body_comes_in_chunks_with_a_length_or_not_at_all() -> None:
    assert framing_of([b"chunked"], None) == b"transfer-encoding: chunked"
    assert framing_of([], b"05") == b"content-length: 05"
    assert framing_of([], b"0") is framing_of([], None) is None
