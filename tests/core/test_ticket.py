"""A ticket's need is at least a block and a seat."""

import pytest

from gateway.core.ticket import Need


@pytest.mark.parametrize(("blocks", "seats"), [(0, 1), (1, 0), (-3, 1)])
def test_a_request_that_would_hold_nothing_is_a_mistake(blocks: int, seats: int) -> None:
    with pytest.raises(ValueError):
        Need(blocks, seats)
