"""What each policy says of its order and its bound, held against the book: who goes first, and who can be passed by whom."""

from dataclasses import replace

import pytest

from gateway.core.book import Book
from gateway.core.commitment.strict import StrictCommitment
from gateway.core.decisions import Mode
from gateway.core.ledger import Budget
from gateway.core.policies import POLICIES
from gateway.core.policies.size import TOKENS_PER_S
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Ticket
from support.tickets import A, ids, ticket, tid


def served(policy: str, *tickets: Ticket) -> list[int]:
    """The order in which they are granted, one at a time, all waiting before the first is."""
    book = Book(
        mode=Mode.ENFORCE, commitment=StrictCommitment(), policy=POLICIES[policy], limits=QueueLimits(max_requests=1000)
    )
    book.set_backend(A, budget=Budget(8), serving=True, now=0.0)
    book.join(ticket(0, 8), now=0.0)
    for each in sorted(tickets, key=lambda each: each.arrived):
        book.join(each, now=each.arrived)
    order, running = [], 0
    for _ in tickets:
        (running,) = ids(book.release(tid(running), now=500.0))
        order.append(running)
    return order


def one(number: int, *, arrived: float = 0.0, deadline: float = 1000.0, priority: int = 0, prompt_tokens: int = 0) -> Ticket:
    each = ticket(number, 8, arrived=arrived, deadline=deadline)
    return replace(each, priority=priority, prompt_tokens=prompt_tokens)


def test_fifo_goes_by_arrival_and_by_nothing_else() -> None:
    tickets = one(1, arrived=2.0, priority=-5), one(2, arrived=1.0, deadline=600.0), one(3, arrived=3.0, deadline=501.0)
    assert served("fifo", *tickets) == [2, 1, 3]


def test_priority_lets_the_lower_number_go_first_and_equals_by_arrival() -> None:
    tickets = one(1, priority=1), one(2, arrived=5.0), one(3, arrived=4.0), one(4, arrived=6.0, priority=-1)
    assert served("priority", *tickets) == [4, 3, 2, 1]


def test_by_deadline_the_earliest_goes_first_and_equals_by_arrival() -> None:
    tickets = one(1, deadline=900.0), one(2, arrived=2.0, deadline=800.0), one(3, arrived=1.0, deadline=800.0)
    assert served("deadline", *tickets) == [3, 2, 1]


def test_by_size_the_smaller_prompt_goes_first() -> None:
    assert served("size", one(1, prompt_tokens=9000), one(2, arrived=1.0, prompt_tokens=100)) == [2, 1]


@pytest.mark.parametrize(("later_by", "order"), [(8.8, [2, 1]), (9.0, [1, 2])])
def test_a_large_prompt_is_passed_only_by_those_who_come_within_the_difference_of_their_prefills(
    later_by: float, order: list[int]
) -> None:
    large, small = 9000, 100
    assert (large - small) / TOKENS_PER_S == pytest.approx(8.9)
    assert served("size", one(1, prompt_tokens=large), one(2, arrived=later_by, prompt_tokens=small)) == order


def test_under_endless_small_ones_a_large_prompt_waits_for_its_bound_and_no_longer() -> None:
    small = [one(number, arrived=0.5 * number, prompt_tokens=50) for number in range(2, 200)]
    order = served("size", one(1, prompt_tokens=30_000), *small)
    before = order[: order.index(1)]
    assert len(before) == len([each for each in small if each.arrived < (30_000 - 50) / TOKENS_PER_S])
