"""The first bytes of a value's JSON, beside the whole of it."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.request import AFFINITY_BYTES
from gateway.dialects.json_start import start_of

TEXT = st.text(alphabet=st.sampled_from('ab"\\\n\té中😀'), max_size=8) | st.sampled_from(["x" * 600, "é" * 900, "y" * 3000])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(value=st.lists(VALUES, max_size=4) | TEXT)
def test_it_is_what_the_whole_begins_with(value: Any) -> None:
    assert start_of(value) == msgspec.json.encode(value)[:AFFINITY_BYTES]


def test_who_nests_for_fun_is_not_followed() -> None:
    deep: list[Any] = ["x"]
    for _ in range(5_000):
        deep = [deep]
    assert start_of(deep) == b"[[[[[[[[[null]]]]]]]]]"
