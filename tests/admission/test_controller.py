"""The controller: a grant, a refusal or a goodbye, whatever the instant; and nothing held or queued afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.admission.controller import Controller
from gateway.admission.grant import Grant
from gateway.core.errors import Rejected
from gateway.core.ledger import Budget
from gateway.core.outcomes import RejectReason
from gateway.core.ticket import Need, Ticket
from support.fake_upstream import eventually
from support.manual_clock import ManualClock
from support.tickets import A, book_with, ticket, tid

START = 1000.0


class Desk:
    """A controller before one backend of 64 blocks, with its clock."""

    def __init__(self, *, max_requests: int = 1024) -> None:
        self.clock = ManualClock(START)
        self.controller = Controller(book_with(64, max_requests=max_requests), self.clock)

    async def admit(self, number: int, blocks: int, *, wait_s: float = 60.0) -> Grant:
        placed = ticket(number, blocks, arrived=self.clock.now(), deadline=self.clock.now() + wait_s)
        return await self.controller.admit(placed, on_queued=lambda _: None)

    def begin(self, number: int, blocks: int, *, wait_s: float = 60.0) -> asyncio.Task[Grant]:
        """Admit in a task of its own, as every request does."""
        return asyncio.create_task(self.admit(number, blocks, wait_s=wait_s), name=f"request {number}")

    async def queue(self, number: int, blocks: int, *, wait_s: float = 60.0) -> asyncio.Task[Grant]:
        """The same, and return once it stands in line."""
        before = self.waiting
        task = self.begin(number, blocks, wait_s=wait_s)
        await eventually(lambda: self.waiting == before + 1)
        return task

    @property
    def held(self) -> int:
        return self.controller.snapshot().backends[A].charged_blocks

    @property
    def waiting(self) -> int:
        return sum(line.requests for lines in self.controller.snapshot().pools.values() for line in lines.values())

    def assert_idle(self) -> None:
        assert (self.held, self.waiting) == (0, 0)
        assert self.controller.snapshot().backends[A].in_flight == 0


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def pumped(desk: Desk) -> AsyncIterator[Desk]:
    """With its pump running."""
    pump = asyncio.create_task(desk.controller.pump(), name="pump")
    yield desk
    assert not pump.done(), pump
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)
    assert [task.get_name() for task in asyncio.all_tasks() if "deadline" in task.get_name()] == []


async def test_what_fits_is_granted_before_anybody_else_runs(desk: Desk) -> None:
    admitted = desk.admit(1, 64)
    with pytest.raises(StopIteration) as granted:
        admitted.send(None)  # one step: it never waited
    grant: Grant = granted.value.value
    assert desk.held == 64
    grant.release()
    desk.assert_idle()


async def test_a_waiter_is_granted_in_the_tick_of_the_release(desk: Desk) -> None:
    first = await desk.admit(1, 64)
    waiters = [await desk.queue(number, 20) for number in (2, 3, 4)]
    first.release()
    assert (desk.held, desk.waiting) == (60, 0)
    for grant in await asyncio.gather(*waiters):
        grant.release()
    desk.assert_idle()


async def test_a_refusal_is_raised_with_its_numbers_and_leaves_nothing(desk: Desk) -> None:
    with pytest.raises(Rejected, match=r"65 .*64") as refused:
        await desk.admit(1, 65)
    assert refused.value.reason is RejectReason.KV_BUDGET
    assert refused.value.retry_after_s is None
    desk.assert_idle()


async def test_a_full_queue_is_refused_at_once() -> None:
    desk = Desk(max_requests=1)
    grant = await desk.admit(1, 64)
    waiter = await desk.queue(2, 1)
    with pytest.raises(Rejected, match="queue is full") as refused:
        await desk.admit(3, 1)
    assert refused.value.reason is RejectReason.QUEUE_FULL
    grant.release()
    (await waiter).release()
    desk.assert_idle()


async def test_the_one_who_waits_is_told_so_before_the_wait(desk: Desk) -> None:
    told: list[Ticket] = []
    grant = await desk.controller.admit(ticket(1, 64, deadline=2000.0), on_queued=told.append)
    assert told == []
    waiter = asyncio.create_task(desk.controller.admit(ticket(2, 1, deadline=2000.0), on_queued=told.append))
    await eventually(lambda: desk.waiting == 1)
    assert [placed.id for placed in told] == [2]
    grant.release()
    (await waiter).release()


async def test_a_failure_while_being_told_leaves_nobody_in_line(desk: Desk) -> None:
    """The ticket stayed in the line, and was granted later to nobody."""

    def fail(_: Ticket) -> None:
        raise ZeroDivisionError

    grant = await desk.admit(1, 64)
    with pytest.raises(ZeroDivisionError):
        await desk.controller.admit(ticket(2, 1, deadline=2000.0), on_queued=fail)
    assert desk.waiting == 0
    grant.release()
    desk.assert_idle()


# Deadlines


async def test_the_pump_ends_a_wait_at_its_deadline_and_not_before(pumped: Desk) -> None:
    grant = await pumped.admit(1, 64)
    waiter = await pumped.queue(2, 1, wait_s=5.0)
    await eventually(lambda: pumped.clock.sleepers == 1)
    pumped.clock.advance(4.999)
    await asyncio.sleep(0)
    assert not waiter.done()
    pumped.clock.advance(0.001)
    with pytest.raises(Rejected) as refused:
        await waiter
    assert refused.value.reason is RejectReason.QUEUE_TIMEOUT
    grant.release()
    pumped.assert_idle()


async def test_an_earlier_deadline_that_joins_later_wakes_the_pump(pumped: Desk) -> None:
    grant = await pumped.admit(1, 64)
    patient = await pumped.queue(2, 1, wait_s=60.0)
    await eventually(lambda: pumped.clock.sleepers == 1)
    impatient = await pumped.queue(3, 1, wait_s=5.0)
    pumped.clock.advance(5.0)
    with pytest.raises(Rejected):
        await impatient
    assert not patient.done()
    pumped.clock.advance(55.0)
    with pytest.raises(Rejected):
        await patient
    grant.release()
    pumped.assert_idle()


async def test_a_deadline_that_joins_before_the_pump_first_runs_is_not_missed(desk: Desk) -> None:
    grant = await desk.admit(1, 64)
    waiter = await desk.queue(2, 1, wait_s=5.0)
    pump = asyncio.create_task(desk.controller.pump())
    desk.clock.advance(5.0)
    with pytest.raises(Rejected):
        await waiter
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)
    grant.release()
    desk.assert_idle()


async def test_the_pump_goes_on_when_the_one_it_slept_for_is_gone(pumped: Desk) -> None:
    grant = await pumped.admit(1, 64)
    first, second = await pumped.queue(2, 1, wait_s=5.0), await pumped.queue(3, 1, wait_s=9.0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    pumped.clock.advance(5.0)
    await eventually(lambda: pumped.clock.sleepers == 1)
    pumped.clock.advance(4.0)
    with pytest.raises(Rejected):
        await second
    grant.release()
    third = await pumped.admit(4, 64)
    fourth = await pumped.queue(5, 1, wait_s=1.0)
    await eventually(lambda: pumped.clock.sleepers == 1)
    pumped.clock.advance(1.0)
    with pytest.raises(Rejected):
        await fourth
    third.release()
    pumped.assert_idle()


# Goodbyes


async def test_a_waiter_that_is_cancelled_leaves_the_line(desk: Desk) -> None:
    grant = await desk.admit(1, 64)
    leaver, stayer = await desk.queue(2, 64), await desk.queue(3, 10)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert desk.waiting == 1
    grant.release()
    (await stayer).release()
    desk.assert_idle()


async def test_the_room_of_a_cancelled_head_goes_to_those_behind_it(desk: Desk) -> None:
    grant = await desk.admit(1, 40)
    head, behind = await desk.queue(2, 64), await desk.queue(3, 64)
    head.cancel()
    await asyncio.gather(head, return_exceptions=True)
    grant.release()
    (await behind).release()
    desk.assert_idle()


async def test_a_grant_that_arrived_in_the_tick_of_the_cancellation_is_given_on(desk: Desk) -> None:
    grant = await desk.admit(1, 64)
    leaver, next_one = await desk.queue(2, 64), await desk.queue(3, 64)
    grant.release()  # the grant is in the leaver's hands, and its task has not run
    assert desk.held == 64
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    (await next_one).release()
    desk.assert_idle()


async def test_a_grant_for_one_who_was_cancelled_in_the_same_tick_is_given_on(desk: Desk) -> None:
    grant = await desk.admit(1, 64)
    leaver, next_one = await desk.queue(2, 64), await desk.queue(3, 64)
    leaver.cancel()
    grant.release()  # the leaver's task has not run since
    with pytest.raises(asyncio.CancelledError):
        await leaver
    (await next_one).release()
    desk.assert_idle()


async def test_a_4_grant_goodbye_and_deadline_in_any_order_never_lose_a_share_or_a_wake_up() -> None:
    """Five hundred times: A ends while B leaves or runs out of time, in every order and distance; C must get the blocks."""
    order = random.Random(4)
    for _ in range(500):
        desk = Desk()
        pump = asyncio.create_task(desk.controller.pump())
        holder = await desk.admit(1, 64)
        leaver = await desk.queue(2, 64, wait_s=5.0)
        heir = await desk.queue(3, 64, wait_s=60.0)
        await asyncio.sleep(0)

        def run_out(desk: Desk = desk) -> None:
            desk.clock.advance(5.0)

        events: list[Callable[[], object]] = [holder.release, order.choice([leaver.cancel, run_out])]
        if order.random() < 0.3:
            events.append(order.choice([leaver.cancel, run_out]))
        order.shuffle(events)
        for event in events:
            event()
            for _ in range(order.randrange(3)):
                await asyncio.sleep(0)
        (ended,) = await asyncio.gather(leaver, return_exceptions=True)
        if isinstance(ended, Grant):
            ended.release()
        else:
            assert isinstance(ended, Rejected | asyncio.CancelledError)
        async with asyncio.timeout(5):
            (await heir).release()
        desk.assert_idle()
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


async def test_what_is_delivered_to_nobody_is_given_back(desk: Desk) -> None:
    """The waiter's task has been destroyed without a word, as a loop does that is closed."""
    grant = await desk.admit(1, 64)
    lost = desk.controller.admit(ticket(2, 64, deadline=2000.0), on_queued=lambda _: None)
    lost.send(None)
    desk.controller._waiting.clear()
    grant.release()
    desk.assert_idle()
    lost.close()


# What runs


async def test_a_second_release_frees_nothing(desk: Desk) -> None:
    first, _ = await desk.admit(1, 30), await desk.admit(2, 30)
    assert "running" in repr(first)
    first.release()
    first.release()
    assert first.is_released
    assert "released" in repr(first)
    assert desk.held == 30


async def test_an_exact_count_makes_room_for_those_who_wait(desk: Desk) -> None:
    await desk.admit(1, 60)
    waiter = await desk.queue(2, 40)
    desk.controller.reweigh(tid(1), {A: Need(10)})
    await waiter
    assert desk.held == 50
    assert desk.controller.worst_blocks(A) == 50


async def test_what_the_roster_learns_is_delivered_to_those_who_wait(desk: Desk) -> None:
    await desk.admit(1, 64)
    waiter = await desk.queue(2, 60)
    desk.controller.set_backend(A, budget=Budget(200), serving=True, foreign_blocks=0)
    (await waiter).release()
    hopeless = await desk.queue(3, 150)
    desk.controller.set_backend(A, budget=Budget(100), serving=True, foreign_blocks=0)
    with pytest.raises(Rejected, match=r"150 .*100") as refused:
        await hopeless
    assert refused.value.reason is RejectReason.KV_BUDGET


async def test_a_backend_of_which_nothing_is_known_has_written_nothing(desk: Desk) -> None:
    assert desk.controller.worst_blocks(A) == 0
    assert not desk.controller.has_waiting_for(A)


async def test_a_drain_refuses_those_in_line_and_those_who_come(pumped: Desk) -> None:
    grant = await pumped.admit(1, 64)
    waiters = [await pumped.queue(number, 1) for number in (2, 3)]
    pumped.controller.drain()
    for waiter in waiters:
        with pytest.raises(Rejected) as refused:
            await waiter
        assert refused.value.reason is RejectReason.DRAINING
    with pytest.raises(Rejected) as refused:
        await pumped.admit(4, 1)
    assert refused.value.reason is RejectReason.DRAINING
    grant.release()
    pumped.assert_idle()
