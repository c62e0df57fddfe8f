"""The fuzz itself: it repeats itself, it finds what is there to find, and it does not wait for ever."""

import random

import pytest

from fuzz import mutation
from fuzz.mutation import cuts, mutate, try_all

SAMPLES = [b'{"a": 1, "b": [true, null]}', b"data: x\n\n"]


def test_an_input_is_repeated_by_its_number() -> None:
    assert [mutate(random.Random(f"x/{number}"), SAMPLES) for number in range(50)] == [
        mutate(random.Random(f"x/{number}"), SAMPLES) for number in range(50)
    ]
    assert len({mutate(random.Random(number), SAMPLES) for number in range(500)}) > 400


def test_a_cut_loses_nothing() -> None:
    for number in range(200):
        dice = random.Random(number)
        data = mutate(dice, SAMPLES)
        assert b"".join(cuts(dice, data)) == data


def test_a_fault_is_told_with_the_input_that_shows_it() -> None:
    def trips_over_a_nul(data: bytes, _: random.Random) -> None:
        if b"\x00" in data:
            raise KeyError("nul")

    with pytest.raises(AssertionError, match=r"nul tripper, input \d+: KeyError: 'nul'\n.*x00"):
        try_all("nul tripper", 2_000, SAMPLES, trips_over_a_nul)


def test_an_input_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "HANGS_AFTER_S", 0.05)

    def spins(_: bytes, __: random.Random) -> None:
        while True:
            pass

    with pytest.raises(AssertionError, match="spinner, input 0: TimeoutError"):
        try_all("spinner", 1, SAMPLES, spins)
