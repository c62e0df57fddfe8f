"""The watcher of the books is as strict as the book may be held to, and no stricter."""

from collections.abc import Sequence

import pytest

from support.book_watch import BookWatch, State


def snapshot(budget_blocks: int | None, held_blocks: int, in_flight: int = 2) -> State:
    backend = {
        "name": "a",
        "budget_blocks": budget_blocks,
        "reserve_blocks": (budget_blocks or 0) // 10,
        "held_blocks": held_blocks,
        "in_flight": in_flight if held_blocks else 0,
    }
    flight = in_flight if held_blocks else 0
    return State(
        {
            "mode": "enforce",
            "received": flight,
            "outcomes": {},
            "queue": {"requests": 0, "blocks": 0},
            "in_flight": flight,
            "reading": 0,
            "backends": [backend],
        }
    )


@pytest.mark.parametrize(
    ("snapshots", "faults"),
    [
        ([(100, 90, 2)], 0),
        ([(100, 91, 2)], 1),
        ([(100, 91, 1)], 0),
        ([(100, 90, 2), (60, 90, 2), (60, 70, 2)], 0),  # what it held when its engine came back smaller
        ([(100, 90, 2), (60, 91, 2)], 1),
        ([(100, 90, 2), (60, 90, 2), (60, 54, 2), (60, 55, 2)], 1),  # it has gone, and then there was more again
        ([(100, 50, 2), (None, 50, 2), (60, 90, 2)], 0),
        ([(60, 54, 2), (100, 91, 2)], 1),
    ],
)
def test_more_is_held_than_may_be_only_while_a_budget_was_larger(
    snapshots: Sequence[tuple[int | None, int, int]], faults: int
) -> None:
    watch = BookWatch("")
    for each in snapshots:
        watch._take(snapshot(*each))
    assert len(watch.faults) == faults
