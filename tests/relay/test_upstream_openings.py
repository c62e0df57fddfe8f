"""Who waits for a connection, which are being opened, and that neither is lost: by hand, and by a random walk."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.known_answer import KnownAnswer
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_connection import UpstreamConnection
from gateway.relay.upstream_openings import AT_FIRST, AT_MOST, UpstreamOpenings

BACKEND = BackendName("fake")
LIMIT_S = 5.0


def failure(stage: UpstreamStage = UpstreamStage.CONNECT) -> UpstreamFailed:
    return UpstreamFailed(BACKEND, stage, "as the test wants it")


class Wire:
    """Connects as the test says, and keeps account of what became of each connection. Its owner, as the pool would be."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []
        self.most_asked = 0
        self.open: set[UpstreamConnection] = set()
        self.answers = KnownAnswer()
        self.spare: list[UpstreamConnection] = []
        self.openings = UpstreamOpenings(
            self._connect,
            spare=self.spare.append,
            too_late=lambda: failure(UpstreamStage.CONNECT_TIMEOUT),
            limit_s=LIMIT_S,
            name="connect",
        )

    async def _connect(self) -> UpstreamConnection:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append(asked)
        self.most_asked = max(self.most_asked, len(self.asked))
        try:
            await asked
        finally:
            self.asked.remove(asked)
        return self.connection()

    def connection(self) -> UpstreamConnection:
        made = UpstreamConnection(self, BACKEND, default_idle_limit_s=3.0, retry_window_s=1.0)
        self.open.add(made)
        return made

    def used(self) -> UpstreamConnection:
        made = self.connection()
        made.is_fresh = False
        return made

    def settled(self, connection: UpstreamConnection) -> None:
        raise AssertionError("nothing was sent")

    def lost(self, connection: UpstreamConnection) -> None:
        self.open.discard(connection)

    def resend(self, exchange: UpstreamExchange) -> None:
        raise AssertionError("nothing was sent")


class ManualLoop(asyncio.SelectorEventLoop):
    """Its time is what the test says."""

    now = 100.0

    def time(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def wait(wire: Wire, *, is_sent_again: bool = False) -> asyncio.Task[UpstreamConnection]:
    since = asyncio.get_running_loop().time()
    return asyncio.create_task(wire.openings.wait(since=since, is_sent_again=is_sent_again))


async def test_a_wave_is_opened_in_growing_parts_and_a_failure_makes_them_small_again() -> None:
    wire = Wire()
    calls = [wait(wire) for _ in range(2000)]
    seen = []
    while any(not call.done() for call in calls):
        await settle()
        seen.append(len(wire.asked))
        assert wire.openings.under_way == len(wire.asked)
        for asked in list(wire.asked):
            asked.set_result(None)
        await settle()
    assert seen[:4] == [AT_FIRST, 2 * AT_FIRST, 4 * AT_FIRST, AT_MOST]
    assert max(seen) == AT_MOST
    assert wire.openings.opened == len({call.result() for call in calls}) == 2000
    again = [wait(wire) for _ in range(2000)]
    await settle()
    assert len(wire.asked) == AT_MOST
    for asked in wire.asked[: AT_MOST - 8]:
        asked.set_exception(failure())
    await settle()
    assert len(wire.asked) == AT_FIRST
    wire.openings.close(failure())
    await asyncio.gather(*again, return_exceptions=True)


async def test_who_waits_longest_gets_what_comes_first_be_it_free_or_new() -> None:
    wire = Wire()
    first, second, third = calls = [wait(wire) for _ in range(3)]
    await settle()
    free = wire.used()
    assert wire.openings.give(free)
    await settle()
    assert [call.done() for call in calls] == [True, False, False]
    assert first.result() is free
    wire.asked[2].set_result(None)
    await settle()
    assert [call.done() for call in calls] == [True, True, False]
    assert second.result().is_fresh
    wire.asked[0].set_result(None)
    await settle()
    assert third.done()
    assert not wire.openings.give(wire.used()), "nobody waits any more"
    wire.asked[0].set_result(None)
    await settle()
    assert len(wire.spare) == 1, "what was being opened for the first may lie ready"


async def test_what_is_sent_again_takes_only_a_fresh_one_and_goes_ahead() -> None:
    wire = Wire()
    call = wait(wire)
    await settle()
    again = wait(wire, is_sent_again=True)
    await settle()
    wire.asked[0].set_result(None)
    await settle()
    assert (again.done(), call.done()) == (True, False)
    another = wait(wire, is_sent_again=True)
    await settle()
    assert wire.openings.give(wire.used())
    await settle()
    assert (another.done(), call.done()) == (False, True)
    wire.openings.close(failure())
    with pytest.raises(UpstreamFailed):
        await another


async def test_each_failure_is_told_to_one_and_the_others_have_their_own_try() -> None:
    wire = Wire()
    calls = [wait(wire) for _ in range(AT_FIRST + 8)]
    await settle()
    for asked in list(wire.asked):
        asked.set_exception(failure())
    await settle()
    assert [call.done() for call in calls] == [True] * AT_FIRST + [False] * 8
    assert len(wire.asked) == 8
    for asked in list(wire.asked):
        asked.set_result(None)
    await settle()
    assert all(call.done() for call in calls)
    assert (wire.openings.opened, wire.openings.failed) == (8, AT_FIRST)


def test_who_is_still_in_line_when_the_time_is_over_is_told_so() -> None:
    loop = ManualLoop()

    async def scene() -> None:
        wire = Wire()
        early = [wait(wire) for _ in range(AT_FIRST + 1)]
        await settle()
        loop.now += 2.0
        late = wait(wire)
        await settle()
        loop.now += 3.0
        await settle()
        stages = {call.exception().stage for call in early if isinstance(call.exception(), UpstreamFailed)}  # type: ignore[union-attr]
        assert (stages, late.done()) == ({UpstreamStage.CONNECT_TIMEOUT}, False)
        assert len(wire.asked) == 1, "what took too long is given up, and a new try made for who has time left"
        loop.now += 2.0
        await settle()
        assert isinstance(late.exception(), UpstreamFailed)
        assert not wire.asked

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scene())


async def test_who_gives_up_leaves_nothing_that_is_being_opened() -> None:
    wire = Wire()
    calls = [wait(wire) for _ in range(50)]
    await settle()
    for call in calls[:49]:
        call.cancel()
    await settle()
    assert len(wire.asked) == 1
    wire.asked[0].set_result(None)
    calls[49].cancel()  # in the very tick in which it is opened
    await settle()
    assert not wire.asked
    assert not wire.open


async def test_a_free_connection_that_comes_with_the_cancellation_goes_to_the_next() -> None:
    wire = Wire()
    gone, next_in_line = wait(wire), wait(wire)
    await settle()
    free = wire.used()
    assert wire.openings.give(free)
    gone.cancel()
    await settle()
    assert gone.cancelled()
    assert next_in_line.result() is free
    wire.openings.close(failure())


async def test_ahead_of_need_nothing_is_opened_after_a_failure_until_somebody_got_through() -> None:
    wire = Wire()
    wire.openings.open_ahead(4)
    await settle()
    assert len(wire.asked) == 4
    wire.asked[0].set_exception(failure())
    for asked in wire.asked[1:]:
        asked.set_result(None)
    await settle()
    assert len(wire.spare) <= 3
    wire.openings.open_ahead(4)
    await settle()
    assert not wire.asked
    call = wait(wire)
    await settle()
    wire.asked[0].set_result(None)
    await call
    wire.openings.open_ahead(4)
    await settle()
    assert len(wire.asked) == 4
    wire.openings.close(failure())


class OpeningsMachine(RuleBasedStateMachine):
    """Random waits, cancellations, openings, failures and time; nobody waits for ever, and no connection is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop()
        self.runner = asyncio.Runner(loop_factory=lambda: self.loop)
        self.calls: list[tuple[asyncio.Task[UpstreamConnection], float]] = []
        self.taken: set[UpstreamConnection] = set()
        self.wire = self.run(Wire)

    def run(self, step: Callable[[], Any]) -> Any:
        async def scene() -> Any:
            done = step()
            await settle()
            return done

        result = self.runner.run(scene())
        for call, _ in self.calls:
            if call.done() and not call.cancelled() and call.exception() is None:
                self.taken.add(call.result())
        self.calls = [(call, began) for call, began in self.calls if not call.done()]
        return result

    @rule(count=st.integers(1, 80), is_sent_again=st.booleans())
    def come(self, count: int, is_sent_again: bool) -> None:
        began = self.loop.now
        self.run(lambda: self.calls.extend((wait(self.wire, is_sent_again=is_sent_again), began) for _ in range(count)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), count=st.integers(1, 60), opens=st.integers(0, 3))
    def go(self, data: st.DataObject, count: int, opens: int) -> None:
        """Some give up, and in the same tick some connections open."""
        gone = [data.draw(st.sampled_from(self.calls))[0] for _ in range(min(count, len(self.calls)))]

        def step() -> None:
            self.answer(opens)
            for call in gone:
                call.cancel()

        self.run(step)

    @rule(count=st.integers(1, 300))
    def open(self, count: int) -> None:
        self.run(lambda: self.answer(count))

    def answer(self, count: int) -> None:
        for asked in list(self.wire.asked)[:count]:
            asked.set_result(None)

    @precondition(lambda self: self.wire.asked)
    @rule(data=st.data(), count=st.integers(1, 40))
    def fail(self, data: st.DataObject, count: int) -> None:
        def step() -> None:
            for asked in list(self.wire.asked)[-count:]:
                asked.set_exception(failure())

        self.run(step)

    @rule()
    def become_free(self) -> None:
        free = self.run(self.wire.used)
        if not self.run(lambda: self.wire.openings.give(free)):
            free.close()

    @rule(count=st.integers(0, 32))
    def open_ahead(self, count: int) -> None:
        self.run(lambda: self.wire.openings.open_ahead(count))

    @rule(seconds=st.floats(0.1, 7.0))
    def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        self.run(lambda: None)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert all(self.loop.now - began < LIMIT_S for _, began in self.calls)
        assert not self.calls or self.wire.asked, "who waits, waits for something"

    @invariant()
    def no_more_are_being_opened_than_may_or_are_wanted(self) -> None:
        assert self.wire.openings.under_way == len(self.wire.asked)
        assert self.wire.most_asked <= AT_MOST
        assert len(self.wire.asked) <= len(self.calls) + 32 + AT_FIRST

    @invariant()
    def no_connection_is_lost(self) -> None:
        assert self.wire.open == self.taken | set(self.wire.spare)
        assert self.taken.isdisjoint(self.wire.spare)

    def teardown(self) -> None:
        self.run(lambda: self.wire.openings.close(failure()))
        assert not self.calls
        assert not self.wire.asked
        self.runner.close()


TestOpenings = OpeningsMachine.TestCase
TestOpenings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
