"""How backends are named, and how a setting is given for one of them."""

from pathlib import Path

import pytest

from gateway.backend_settings import BackendAddress, PerBackend, parse_addresses, parse_per_backend, read_backend_keys
from gateway.core.names import BackendName

A, B = BackendName("a"), BackendName("b")


def test_a_backend_without_a_name_is_called_by_its_host_and_port() -> None:
    assert parse_addresses("http://10.0.0.7:8000/v1/") == (
        BackendAddress(BackendName("10.0.0.7:8000"), "http://10.0.0.7:8000/v1"),
    )


def test_several_backends_keep_their_order_and_their_names() -> None:
    addresses = parse_addresses(" b=https://gpu2/ , a=http://[::1]:8000,http://gpu3/llm ")
    assert [(address.name, address.url) for address in addresses] == [
        ("b", "https://gpu2"),
        ("a", "http://[::1]:8000"),
        ("gpu3/llm", "http://gpu3/llm"),
    ]


def test_no_text_is_no_backend() -> None:
    assert parse_addresses(" , ") == ()


def test_user_info_is_cut_and_remembered_as_cut() -> None:
    (address,) = parse_addresses("a=http://user:s3cret@gpu1:8000")
    assert address == BackendAddress(A, "http://gpu1:8000", user_info_cut=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ftp://gpu1", "is not a backend's URL"),
        ("gpu1:8000", "is not a backend's URL"),
        ("http://", "is not a backend's URL"),
        ("http://gpu1:80000", "the host or the port of the URL cannot be read"),
        ("http://gpu1/?x=1", "has no query"),
        ("a b=http://gpu1", "cannot be a backend's name"),
        ("a=http://gpu1,a=http://gpu2", "two backends have the name 'a'"),
        ("a=http://gpu1,b=http://GPU1:80/v1", "is given twice, as 'a' and as 'b'"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_addresses(text)


@pytest.mark.parametrize("url", ["http://u:s3cret@gpu1:x", "ftp://u:s3cret@gpu1", "u:s3cret@gpu1", "http://u:s3cret@gpu1?q"])
def test_no_complaint_repeats_a_password(url: str) -> None:
    with pytest.raises(ValueError, match="entry 1") as caught:
        parse_addresses(url)
    assert "s3cret" not in str(caught.value)


def test_all_wrong_addresses_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"entry 1: .*entry 3: "):
        parse_addresses("ftp://a,http://b,nothing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", PerBackend(7)),
        ("5", PerBackend(5)),
        ("a=5, b=6", PerBackend(7, {A: 5, B: 6})),
        ("5,b=6", PerBackend(5, {B: 6})),
    ],
)
def test_a_setting_is_one_value_or_one_for_each_name(text: str, expected: PerBackend[int]) -> None:
    assert parse_per_backend(text, int, 7) == expected


def test_a_backend_that_is_not_named_has_the_plain_value() -> None:
    setting = parse_per_backend("5,b=6", int, 7)
    assert (setting.of(A), setting.of(B)) == (5, 6)


def test_a_name_may_hold_a_port() -> None:
    assert parse_per_backend("gpu1:8000=5", int, 7).of(BackendName("gpu1:8000")) == 5


@pytest.mark.parametrize(
    ("text", "reason"), [("5,6", "2 values without a backend's name"), ("a=5,a=6", "two values for the backend 'a'")]
)
def test_two_values_for_one_thing_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_per_backend(text, int, 7)


def test_a_file_of_keys_has_a_line_for_each_backend(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n\na = s3cret=\nb=other\n")
    keys = read_backend_keys(path)
    assert {name: key.get_secret_value() for name, key in keys.items()} == {"a": "s3cret=", "b": "other"}
    assert "s3cret" not in repr(keys)


@pytest.mark.parametrize(
    ("text", "reason"), [("a=1\ns3cret", "line 2 of"), ("a=s3cret\na=s3cret2", "line 2 of"), ("a=", "line 1 of")]
)
def test_a_wrong_line_of_keys_is_told_by_its_number_only(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        read_backend_keys(path)
    assert "s3cret" not in str(caught.value)
