"""Deadlines: the earliest of those who still wait, and no heap that grows with those who are gone."""

from gateway.core.deadlines import Deadlines
from gateway.core.line import Waiting
from gateway.core.names import STANDARD_LANE, PoolName
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import Queue
from support.tickets import ticket

LINE = Queue(FifoPolicy).line(PoolName("model"), STANDARD_LANE, now=0.0)


def waiting(number: int, deadline: float) -> Waiting:
    each = Waiting(ticket(number, deadline=deadline), LINE, sequence=number, blocks=1, seats=1)
    each.is_waiting = True
    return each


def test_the_earliest_deadline_is_that_of_somebody_who_still_waits() -> None:
    deadlines = Deadlines()
    late, soon = waiting(1, 9.0), waiting(2, 3.0)
    deadlines.add(late)
    deadlines.add(soon)
    assert deadlines.earliest() == 3.0
    soon.is_waiting = False
    assert deadlines.earliest() == 9.0
    late.is_waiting = False
    assert deadlines.earliest() is None


def test_what_is_due_is_told_once_and_at_its_very_instant() -> None:
    deadlines = Deadlines()
    first, second, third = waiting(1, 3.0), waiting(2, 5.0), waiting(3, 4.0)
    for each in (first, second, third):
        deadlines.add(each)
    third.is_waiting = False
    assert deadlines.take_due(now=2.9) == []
    assert deadlines.take_due(now=5.0) == [first, second]
    assert deadlines.take_due(now=5.0) == []


def test_those_who_are_gone_do_not_pile_up() -> None:
    deadlines = Deadlines()
    stays = waiting(0, 1_000.0)
    deadlines.add(stays)
    for number in range(1, 5_000):
        each = waiting(number, 1_000.0)
        deadlines.add(each)
        each.is_waiting = False
        deadlines.note_left(live=1)
    assert len(deadlines) < 200
    assert deadlines.earliest() == 1_000.0


def test_a_crowd_that_leaves_is_forgotten_though_nobody_comes_after_it() -> None:
    deadlines = Deadlines()
    crowd = [waiting(number, 1_000.0) for number in range(1_000)]
    for each in crowd:
        deadlines.add(each)
    for left, each in enumerate(crowd, start=1):
        each.is_waiting = False
        deadlines.note_left(live=len(crowd) - left)
        assert len(deadlines) <= 2 * (len(crowd) - left) + 65
    assert len(deadlines) == 0
