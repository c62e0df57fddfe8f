"""Every request is in one place and ends once: the sum holds at every instant."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.outcomes import Outcome
from gateway.web.tally import Counts, Entry, Place, Tally


def accounted(counts: Counts) -> int:
    return counts.reading + counts.queued + counts.in_flight + sum(counts.outcomes.values())


def test_a_new_tally_has_every_outcome_at_nothing() -> None:
    counts = Tally().counts()
    assert counts.received == 0
    assert set(counts.outcomes) == set(Outcome)
    assert accounted(counts) == 0


def test_a_request_is_read_first_and_moves_on() -> None:
    tally = Tally()
    entry = tally.arrive()
    assert entry.place is Place.READING
    for place, expected in [(Place.QUEUED, (0, 1, 0)), (Place.IN_FLIGHT, (0, 0, 1)), (Place.IN_FLIGHT, (0, 0, 1))]:
        entry.move(place)
        counts = tally.counts()
        assert (counts.reading, counts.queued, counts.in_flight) == expected
        assert entry.place is place
    entry.end(Outcome.COMPLETED)
    assert tally.counts().outcomes[Outcome.COMPLETED] == tally.counts().received == 1


def test_a_second_end_is_a_bug_and_counts_nothing() -> None:
    tally = Tally()
    entry = tally.arrive()
    entry.end(Outcome.COMPLETED)
    with pytest.raises(RuntimeError, match="completed"):
        entry.end(Outcome.DRAINED)
    assert tally.counts().received == 1
    assert tally.counts().outcomes[Outcome.DRAINED] == 0


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([*Place, *list(Outcome)[:3]]) | st.just("arrive")), max_size=60)
)
def test_the_sum_holds_whatever_happens(steps: list[tuple[int, Place | Outcome | str]]) -> None:
    tally = Tally()
    live: list[Entry] = []
    arrived = 0
    for which, what in steps:
        if what == "arrive" or not live:
            live.append(tally.arrive())
            arrived += 1
        elif isinstance(what, Place):
            live[which % len(live)].move(what)
        elif isinstance(what, Outcome):
            live.pop(which % len(live)).end(what)
        counts = tally.counts()
        assert counts.received == arrived == accounted(counts)
        assert min(counts.reading, counts.queued, counts.in_flight) >= 0
        assert tally.unfinished == len(live)


async def test_idle_is_waited_for_and_only_real_idleness_counts() -> None:
    tally = Tally()
    await tally.wait_until_idle()
    first, second = tally.arrive(), tally.arrive()
    waiting = asyncio.create_task(tally.wait_until_idle())
    await asyncio.sleep(0)
    first.end(Outcome.COMPLETED)
    await asyncio.sleep(0)
    assert not waiting.done()
    second.end(Outcome.COMPLETED)
    third = tally.arrive()  # in the same tick: it is not idle any more
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    third.end(Outcome.COMPLETED)
    async with asyncio.timeout(5):
        await waiting
