"""Headers that cross the gateway, and those that must not (S-1, S-7, R-11, R-12)."""

import pytest

from gateway.core.errors import InvalidRequest
from gateway.relay.headers import Header, answer_headers, onward_headers

HOP = [
    (b"connection", b"close, X-Hop"),
    (b"x-hop", b"1"),
    (b"keep-alive", b"timeout=5"),
    (b"te", b"trailers"),
    (b"trailer", b"x-t"),
    (b"proxy-connection", b"keep-alive"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
]
ODD = [(b"x-title", "日本".encode()), (b"x-latin", b"caf\xe9"), (b"x-empty", b""), (b"x-long", b"v" * 16_000)]
DATE = (b"date", b"Mon, 30 Nov 2026 09:00:00 GMT")


def back(headers: list[Header], own: list[Header] | None = None, **flags: bool) -> list[Header]:
    return answer_headers(headers, own or [], **{"is_event_stream": False, "length_changes": False} | flags)


def test_s7_what_belongs_to_one_hop_crosses_in_neither_direction() -> None:
    assert onward_headers([*HOP, (b"x-kept", b"1")], host=b"engine") == [
        (b"host", b"engine"),
        (b"accept-encoding", b"identity"),
        (b"x-kept", b"1"),
    ]
    assert back([DATE, *HOP, (b"x-kept", b"1")]) == [DATE, (b"x-kept", b"1")]


def test_s7_what_connection_names_is_stripped_whatever_its_case_and_however_often_it_is_named() -> None:
    headers = [
        (b"Connection", b"X-One ,x-two"),
        (b"x-ONE", b"1"),
        (b"X-Two", b"2"),
        (b"connection", b"x-three"),
        (b"x-three", b"3"),
    ]
    assert onward_headers(headers, host=b"e")[2:] == []
    assert back([DATE, *headers]) == [DATE]


def test_s7_cookies_stay_two_headers_in_order() -> None:
    cookies = [(b"set-cookie", b"a=1"), (b"x-between", b"0"), (b"set-cookie", b"b=2")]
    assert back([DATE, *cookies]) == [DATE, *cookies]


def test_s7_there_is_one_date() -> None:
    second = (b"date", b"Tue, 01 Dec 2026 09:00:00 GMT")
    assert back([DATE, second]) == [DATE]
    ((name, value),) = back([])
    assert name == b"date"
    assert value.endswith(b" GMT")


def test_s1_bytes_beyond_ascii_pass_as_they_are() -> None:
    assert onward_headers(ODD, host=b"e")[2:] == ODD
    assert back([DATE, *ODD]) == [DATE, *ODD]


@pytest.mark.parametrize(
    "bad", [(b"x-a", b"1\r\nx-b: 2"), (b"x-a", b"1\n"), (b"x-a", b"\0"), (b"x a", b"1"), (b"x-a:", b"1"), (b"", b"1")]
)
def test_a_header_that_breaks_out_of_its_line_is_refused_onward_and_dropped_on_the_way_back(bad: Header) -> None:
    with pytest.raises(InvalidRequest):
        onward_headers([bad], host=b"e")
    assert back([DATE, bad]) == [DATE]


def test_the_engine_is_asked_under_its_own_name_without_encodings_and_without_expectations() -> None:
    asked = [(b"host", b"gateway"), (b"accept-encoding", b"gzip, br"), (b"expect", b"100-continue"), (b"content-length", b"5")]
    assert onward_headers(asked, host=b"engine:8000") == [(b"host", b"engine:8000"), (b"accept-encoding", b"identity")]


def test_our_own_headers_are_neither_believed_nor_forged() -> None:
    own = (b"x-kvgate-blocks", b"3")
    forged = (b"X-Kvgate-Blocks", b"1")
    assert onward_headers([forged], host=b"e")[2:] == []
    assert back([DATE, forged], [own]) == [DATE, own]


def test_the_callers_credential_goes_on_unless_another_takes_its_place() -> None:
    caller = (b"authorization", b"Bearer theirs")
    assert onward_headers([caller], host=b"e")[2:] == [caller]
    assert onward_headers([caller], host=b"e", authorization=b"Bearer ours")[2:] == [(b"authorization", b"Bearer ours")]


def test_r11_the_length_goes_back_only_if_it_stays_true() -> None:
    length = (b"content-length", b"10")
    assert back([DATE, length]) == [DATE, length]
    assert back([DATE, length], length_changes=True) == [DATE]
    assert back([DATE, length, (b"content-encoding", b"gzip")]) == [DATE, length, (b"content-encoding", b"gzip")]


def test_r12_event_streams_forbid_to_be_held_back_unless_the_engine_has_said_something() -> None:
    assert back([DATE], is_event_stream=True)[1:] == [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    said = [DATE, (b"cache-control", b"no-store"), (b"x-accel-buffering", b"yes")]
    assert back(said, is_event_stream=True) == said
