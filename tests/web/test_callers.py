"""Callers: whose key it is, what a client may ask for by it, and a keys file that is read again."""

import hashlib
import logging
from pathlib import Path

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.outcomes import RejectReason
from gateway.core.tenant import ANONYMOUS_TERMS
from gateway.keys_file import MOST_PRIORITY
from gateway.web.asked import asked_of
from gateway.web.callers import Callers, asked_priority
from support.keys import keys_file

A, B = b"key-of-a", b"key-of-b"


def bearer(key: bytes) -> tuple[bytes, bytes]:
    return b"Authorization", b"Bearer " + key


def test_without_a_keys_file_everybody_is_anonymous_whatever_they_bring() -> None:
    callers = Callers()
    for headers in ([], [bearer(b"any")], [(b"x-api-key", b"any")], [(b"authorization", b"Basic eA==")]):
        assert callers.identify(headers) is ANONYMOUS_TERMS
    assert not callers.are_known


@pytest.mark.parametrize(
    "header",
    [bearer(A), (b"authorization", b"bearer  " + A + b" "), (b"X-Api-Key", A), (b"x-api-key", b" " + A)],
)
def test_a_key_comes_in_either_of_two_headers(tmp_path: Path, header: tuple[bytes, bytes]) -> None:
    assert Callers(keys_file(tmp_path, a=A, b=B)).identify([(b"host", b"x"), header]).name == "a"


def test_of_two_keys_the_one_that_is_known_counts(tmp_path: Path) -> None:
    callers = Callers(keys_file(tmp_path, a=A))
    assert callers.identify([bearer(b"stranger"), (b"x-api-key", A)]).name == "a"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [bearer(b"")],
        [bearer(b"stranger")],
        [(b"x-api-key", b"")],
        [(b"authorization", A)],
        [(b"authorization", b"Basic " + A)],
        [(b"cookie", A)],
        [bearer(hashlib.sha256(A).hexdigest().encode())],
        [bearer(b"\xff" * 70_000)],
    ],
    ids=range(9),
)
def test_who_brings_no_key_that_is_known_is_not_let_in(tmp_path: Path, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Callers(keys_file(tmp_path, a=A)).identify(headers)
    assert refused.value.reason is RejectReason.UNAUTHORIZED


def test_a_stranger_is_not_taken_for_anonymous_where_those_are_let_in(tmp_path: Path) -> None:
    callers = Callers(keys_file(tmp_path, "[anonymous]\npriority = -1", a=A))
    assert callers.identify([]).priority == -1
    with pytest.raises(InvalidRequest):
        callers.identify([bearer(b"stranger")])


def test_the_file_is_read_again_as_a_whole_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = keys_file(tmp_path, a=A)
    callers = Callers(path)
    keys_file(tmp_path, b=B)
    assert callers.identify([bearer(A)]).name == "a"
    with caplog.at_level(logging.INFO, "kvgate"):
        callers.reread()
    assert callers.identify([bearer(B)]).name == "b"
    with pytest.raises(InvalidRequest):
        callers.identify([bearer(A)])
    assert [record.getMessage() for record in caplog.records] == ["keys read again: 1 of 1 tenants"]


@pytest.mark.parametrize("broken", ["", "[tenants.a]\nkeys = ['s3cr3t']", None])
def test_a_broken_file_leaves_the_keys_as_they_were_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    path = keys_file(tmp_path, a=A)
    callers = Callers(path)
    if broken is None:
        path.unlink()
    else:
        path.write_text(broken)
    callers.reread()
    assert callers.identify([bearer(A)]).name == "a"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("the keys stay as they were: ")
    assert "s3cr3t" not in record.getMessage()


@pytest.mark.parametrize(
    ("header", "body", "asked"),
    [
        (None, None, None),
        (b"5", None, 5),
        (b"+3", None, 3),
        (b"-7", None, -7),
        (None, -9, -9),
        (b"3", -9, 3),  # the header counts first
        (b"high", None, None),
        (b"", -9, None),
        (b"9" * 5_000, None, None),
        (b"-999999999999999", None, -MOST_PRIORITY),
    ],
)
def test_a_client_asks_for_a_priority_by_header_or_by_body(header: bytes | None, body: int | None, asked: int | None) -> None:
    headers = [] if header is None else [(b"X-Kvgate-Priority", header)]
    assert asked_priority(asked_of(headers), body) == asked
