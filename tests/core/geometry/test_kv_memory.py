import pytest

from gateway.core.geometry.kv_memory import kv_budget_bytes, kv_bytes, sessions_within

GIB = 2**30


def test_the_known_figures() -> None:
    assert kv_bytes(4096, 32, 8, 128, 2) == 512 * 2**20
    assert kv_bytes(8192, 32, 8, 128, 2) == 2 * kv_bytes(4096, 32, 8, 128, 2)
    left = kv_budget_bytes(total_bytes=24 * GIB, weights_bytes=12 * GIB, runtime_bytes=3 * GIB, reserve_bytes=3 * GIB)
    assert left == 6 * GIB
    assert sessions_within(left, kv_bytes(4096, 32, 8, 128, 2)) == 12


def test_memory_that_is_not_there_holds_nothing() -> None:
    assert kv_budget_bytes(total_bytes=8 * GIB, weights_bytes=12 * GIB, runtime_bytes=0) == 0
    assert sessions_within(-5, 10) == 0


@pytest.mark.parametrize("wrong", [0, -1, True, 8.0, "8", None])
@pytest.mark.parametrize("place", range(5))
def test_only_whole_numbers_above_zero_are_taken(place: int, wrong: object) -> None:
    sizes: list[object] = [4096, 32, 8, 128, 2]
    sizes[place] = wrong
    with pytest.raises(ValueError, match="whole number above 0"):
        kv_bytes(*sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, True, 8.0, "8"])
def test_memory_is_given_in_whole_bytes(wrong: object) -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        kv_budget_bytes(total_bytes=wrong, weights_bytes=0, runtime_bytes=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="per_session"):
        sessions_within(5, 0)
