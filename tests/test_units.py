"""Durations and sizes, as operators write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.units import parse_bytes, parse_duration, show_bytes, show_duration


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [("500ms", 0.5), ("60s", 60), ("5m", 300), ("1h", 3600), ("90", 90), ("0", 0), ("1.5s", 1.5), (" 2 S ", 2), ("0.5h", 1800)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("32MiB", 33554432),
        ("10MB", 10_000_000),
        ("512KiB", 524288),
        ("1gib", 2**30),
        ("4096", 4096),
        ("0.5KiB", 512),
        ("7b", 7),
    ],
)
def test_a_size_has_a_unit_or_is_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "sixty", "-1s", "1d", "1s 2s", "s", "1e3", "inf", "nan", "٣s", "9" * 400, "9" * 293, "277778h"])
def test_what_is_no_duration_is_told_how_one_looks(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 500ms, 60s, 5m, 1h"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "big", "-1", "1TB", "1 M iB", "0x10", "9" * 400, "9" * 20, "2000000000GiB"])
def test_what_is_no_size_is_told_how_one_looks(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 32MiB, 10MB, 512KiB"):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=10**9))
def test_a_shown_duration_reads_as_the_same(milliseconds: int) -> None:
    duration_s = milliseconds / 1000
    assert parse_duration(show_duration(duration_s)) == duration_s


@given(st.integers(min_value=0, max_value=2**50))
def test_a_shown_size_reads_as_the_same(size_bytes: int) -> None:
    assert parse_bytes(show_bytes(size_bytes)) == size_bytes
