"""The queue: tickets stand in lines in the order of a policy, and are found by id, backend and deadline."""

import pytest

from gateway.core.line import Waiting
from gateway.core.names import STANDARD_LANE, PoolName
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import Queue, QueueLimits
from gateway.core.ticket import Need, Ticket
from support.tickets import A, B, ticket, tid


class SmallestFirst(FifoPolicy):
    """A policy of these tests: by demand. It starves the large."""

    def rank(self, ticket: Ticket) -> tuple[float, ...]:
        return (min(need.worst_blocks for need in ticket.needs.values()),)


def stand(queue: Queue, each: Ticket) -> Waiting:
    blocks = each.needs[A].worst_blocks if A in each.needs else 1
    waiting = queue.draw(each, queue.line_of(each, now=0.0), blocks=blocks, seats=1)
    queue.join(waiting, now=0.0)
    return waiting


def order(queue: Queue) -> list[int]:
    return [waiting.ticket.id for waiting in queue.line(PoolName("model"), STANDARD_LANE, now=0.0)]


def test_the_older_goes_first_and_among_equals_who_joined_first() -> None:
    queue = Queue(FifoPolicy)
    for number, arrived in [(1, 5.0), (2, 5.0), (3, 4.0)]:
        stand(queue, ticket(number, arrived=arrived))
    assert order(queue) == [3, 1, 2]


def test_another_policy_changes_the_order_and_nothing_else() -> None:
    queue = Queue(SmallestFirst)
    for number, blocks in [(1, 9), (2, 4), (3, 4)]:
        stand(queue, ticket(number, blocks))
    assert order(queue) == [2, 3, 1]
    assert len(queue) == 3


def test_a_line_counts_the_blocks_of_who_stands_in_it() -> None:
    queue = Queue(FifoPolicy)
    first, _ = stand(queue, ticket(1, 9, arrived=3.0)), stand(queue, ticket(2, 4, arrived=2.0))
    line = queue.line(PoolName("model"), STANDARD_LANE, now=0.0)
    lane = queue.lanes(PoolName("model")).snapshot()[STANDARD_LANE]
    assert (lane.requests, lane.blocks, lane.oldest_arrived) == (2, 13, 2.0)
    queue.reweigh(first, ticket(1, 5, arrived=3.0), blocks=5, seats=1, now=0.0)
    assert line.blocks == 9
    queue.remove(first, now=0.0)
    assert (line.blocks, line.seats, len(queue), tid(1) in queue.waiting) == (4, 1, 1, False)


def test_a_ticket_stands_in_line_once_and_leaves_once() -> None:
    queue = Queue(FifoPolicy)
    waiting = stand(queue, ticket(1))
    with pytest.raises(ValueError, match="already waits"):
        queue.join(queue.draw(ticket(1), waiting.line, blocks=1, seats=1), now=0.0)
    queue.remove(waiting, now=0.0)
    with pytest.raises(ValueError, match="does not stand"):
        queue.remove(waiting, now=0.0)


def test_drawing_a_place_takes_none() -> None:
    queue = Queue(FifoPolicy)
    queue.draw(ticket(1), queue.line_of(ticket(1), now=0.0), blocks=1, seats=1)
    assert not queue
    assert queue.next_deadline() is None


def test_lines_are_found_by_the_backends_of_their_tickets() -> None:
    queue = Queue(FifoPolicy)
    stand(queue, ticket(1, pool="x"))
    on_b = stand(queue, ticket(2, pool="y", needs={B: Need(1)}))
    assert [lanes.pool for lanes in queue.pools_for(A)] == ["x"]
    assert queue.has_waiting_for(B)
    queue.remove(on_b, now=0.0)
    assert not queue.has_waiting_for(B)


def test_limits_are_not_negative() -> None:
    with pytest.raises(ValueError):
        QueueLimits(max_passes=-1)


def test_an_operator_can_read_it() -> None:
    queue = Queue(FifoPolicy)
    assert repr(queue) == "Queue: nobody ever waited"
    waiting = stand(queue, ticket(7, 9))
    assert repr(queue) == "Queue: model/standard: 1 wait for 9 blocks, first is ticket 7 with 9, passed 0 times"
    queue.remove(waiting, now=0.0)
    assert repr(queue) == "Queue: model/standard: nobody waits"
