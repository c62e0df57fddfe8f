"""Who may come in, and how long a connection may keep us waiting."""

import random
import time

import pytest

from gateway.metrics import Metrics
from gateway.web.door import LINGER_S, MAX_TURNED_AWAY, Door, DoorLimits, DoorReason, Waiting
from gateway.web.error_answers import answer_at_door


class Guest:
    """A connection that remembers what the door told it."""

    def __init__(self, address: str | None = "10.0.0.1") -> None:
        self.address = address
        self.told: list[str] = []

    def head_is_late(self) -> None:
        self.told.append("late")

    def has_idled(self) -> None:
        self.told.append("idle")

    def has_lingered(self) -> None:
        self.told.append("lingered")


def door(*, connections: int | None = None, per_address: int | None = None, header_s: float = 10, idle_s: float = 75) -> Door:
    limits = DoorLimits(
        header_bytes=1024,
        headers=16,
        url_bytes=256,
        header_s=header_s,
        idle_s=idle_s,
        pipelined=2,
        connections=connections,
        per_address=per_address,
    )
    return Door("data", limits, Metrics("test"), random.Random(1))


async def test_as_many_come_in_as_may_and_one_that_leaves_makes_room() -> None:
    at = door(connections=2)
    first, second, third = Guest(), Guest(), Guest()
    assert [at.come(first), at.come(second), at.come(third)] == [None, None, DoorReason.TOO_MANY_CONNECTIONS]
    at.leave(third)
    assert at.connections == 2
    at.leave(first)
    at.leave(first)  # told twice
    assert at.connections == 1
    assert at.come(Guest()) is None


async def test_one_address_has_its_share_and_others_have_theirs() -> None:
    at = door(per_address=2)
    greedy = [Guest("10.0.0.1") for _ in range(3)]
    assert [at.come(each) for each in greedy] == [None, None, DoorReason.TOO_MANY_FROM_ADDRESS]
    assert at.come(Guest("10.0.0.2")) is None
    assert [at.come(Guest(None)) for _ in range(5)] == [None] * 5  # a local socket has no address
    at.leave(greedy[0])
    assert at.come(Guest("10.0.0.1")) is None


async def test_a_crowd_that_was_turned_away_and_does_not_leave_is_told_nothing_more() -> None:
    at = door(connections=1)
    at.come(Guest())
    crowd = [Guest() for _ in range(MAX_TURNED_AWAY + 1)]
    for each in crowd:
        at.come(each)
    assert at.is_crowded
    at.leave(crowd[0])
    assert not at.is_crowded


def test_those_who_wait_longest_are_due_first_and_each_once() -> None:
    waiting, guests = Waiting(5.0), [Guest() for _ in range(3)]
    for each in guests:
        waiting.begin(each)
    waiting.begin(guests[0])  # begins anew, and is now the last
    now = time.monotonic()
    assert waiting.take_late(now) == []
    waiting.end(guests[2])
    assert waiting.take_late(now + 6) == [guests[1], guests[0]]
    assert waiting.take_late(now + 60) == []
    assert len(waiting) == 0


async def test_the_sweep_tells_each_what_it_waited_for_too_long() -> None:
    at = door(header_s=10, idle_s=75)
    head, idle, leaving = Guest(), Guest(), Guest()
    for each in (head, idle, leaving):
        at.come(each)
    at.heads.begin(head)
    at.idle.begin(idle)
    at.lingering.begin(leaving)
    now = time.monotonic()
    at.sweep(now + LINGER_S + 1)
    assert (head.told, idle.told, leaving.told) == ([], [], ["lingered"])
    at.sweep(now + 11)
    assert (head.told, idle.told) == (["late"], [])
    at.sweep(now + 76)
    assert (head.told, idle.told) == (["late"], ["idle"])
    for each in (head, idle, leaving):
        at.leave(each)
    assert "0 connections" in repr(at)


@pytest.mark.parametrize("reason", DoorReason)
def test_every_reason_has_an_answer_and_only_what_waiting_cures_invites_a_retry(reason: DoorReason) -> None:
    answer = answer_at_door(reason, random.Random(1))
    assert answer.facts.code == reason.value
    assert answer.facts.message
    names = {name for name, _ in answer.headers}
    assert (b"retry-after" in names) == (answer.facts.status == 503)
    assert 400 <= answer.facts.status < 600
