"""Patience: what SDKs say of it, and that an answer of ours comes before it ends."""

from collections.abc import Mapping

import pytest

from gateway.web.asked import asked_of
from gateway.web.patience import patience_of, usable_patience


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"x-stainless-timeout": "600"}, 600.0),
        ({"x-stainless-timeout": "600", "x-stainless-read-timeout": "2.5"}, 2.5),
        ({"x-request-timeout": "30", "x-stainless-timeout": "NaN"}, 30.0),
        ({"x-request-timeout": "-1"}, None),
        ({"x-request-timeout": "0"}, None),
        ({"x-request-timeout": "inf"}, None),
        ({"x-request-timeout": "soon"}, None),
        ({"x-request-timeout": "日"}, None),
    ],
)
def test_patience_is_the_smallest_that_makes_sense(headers: Mapping[str, str], seconds: float | None) -> None:
    assert patience_of(asked_of((name.encode(), value.encode()) for name, value in headers.items())) == seconds


@pytest.mark.parametrize(("said", "usable_s"), [(b"2", 1.9), (b"600", 599.0)])
def test_a_caller_is_told_that_it_waits_in_vain_before_it_gives_up_by_itself(said: bytes, usable_s: float) -> None:
    assert usable_patience({b"x-stainless-timeout": said}) == pytest.approx(usable_s)
    assert usable_patience({}) is None
