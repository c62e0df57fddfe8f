"""Trace context: what the standard calls one is read, and nothing else that a caller may send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.web.asked import TRACEPARENT, asked_of
from gateway.web.trace_context import TraceContext, trace_context

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


def read(*values: str) -> TraceContext | None:
    return trace_context(asked_of([(b"host", b"gateway"), *((b"Traceparent", value.encode("latin-1")) for value in values)]))


@pytest.mark.parametrize(
    "value",
    [GOOD, f"00-{TRACE}-{PARENT}-00", f" {GOOD} ", f"01-{TRACE}-{PARENT}-09", f"cc-{TRACE}-{PARENT}-01-what-the-future-says"],
)
def test_a_context_is_read_whatever_its_flags_and_version(value: str) -> None:
    assert read(value) == TraceContext(TRACE, PARENT)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01x",
        f"01-{TRACE}-{PARENT}-01x",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-zz",
        GOOD.replace("-", "_"),
        "00-" + "x" * 100_000,
    ],
)
def test_what_is_not_one_is_not_taken_for_one(value: str) -> None:
    assert read(value) is None


def test_none_is_none_and_two_are_none() -> None:
    assert read() is None
    assert read(GOOD, GOOD) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_it_and_what_is_read_is_short_and_harmless(value: bytes) -> None:
    found = trace_context({TRACEPARENT: value})
    assert found is None or (len(found.trace_id), len(found.parent_id)) == (32, 16)
