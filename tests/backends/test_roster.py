"""The roster: backends that come, go, restart, refuse, and who serves what. Real sockets, a clock that the test moves."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.capacity import GivenCapacity
from gateway.backends.probe import Prober
from gateway.backends.ranks import with_ranks
from gateway.backends.roster import BackendView, Roster, clean_url
from gateway.core.names import BackendName
from gateway.core.reserve import Reserve
from support.engine_scripts import script_llama_cpp, script_plain_server, script_transformers, script_vllm
from support.fake_upstream import eventually
from support.manual_clock import ManualClock
from support.scripted_engine import NO_TLS, Scripted, ScriptedEngine

A, B, C = BackendName("a"), BackendName("b"), BackendName("c")
QUEUE_TIMEOUT_S = 60.0


@dataclass
class House:
    """A roster over scripted engines, and what it told."""

    stack: AsyncExitStack
    clock: ManualClock = field(default_factory=ManualClock)
    changes: list[BackendView] = field(default_factory=list)
    written: dict[BackendName, int] = field(default_factory=dict)
    rosters: list[Roster] = field(default_factory=list)

    async def engine(self) -> ScriptedEngine:
        return await self.stack.enter_async_context(ScriptedEngine())

    def roster(self, *specs: BackendSpec, limit_s: float = 5.0) -> Roster:
        roster = Roster(
            specs,
            prober=Prober(tls=NO_TLS, limit_s=limit_s),
            clock=self.clock,
            queue_timeout_s=QUEUE_TIMEOUT_S,
            on_change=self.changes.append,
            written_blocks=lambda name: self.written.get(name, 0),
        )
        self.stack.push_async_callback(roster.stop)
        return roster

    async def looks(self, roster: Roster, times: int) -> None:
        """Rounds of questions, two seconds apart."""
        for _ in range(times):
            self.clock.advance(2.0)
            await roster.look()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(stack)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def test_a_backend_that_is_down_at_start_is_waited_for_in_one_line_and_then_served(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await house.engine()
    script_vllm(engine)
    await engine.go_away()
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 5)
    assert not roster.ready
    assert not roster.view(A).serving
    assert lines(caplog) == [f"a: waits for it at {engine.url}: connection refused"]
    await engine.come_back()
    await house.looks(roster, 1)
    view = roster.view(A)
    assert (roster.ready, view.healthy, view.serving) == (True, True, True)
    assert view.capacity is not None
    assert view.capacity.budget.blocks == 64
    assert house.changes[-1] == view


async def test_a_backend_that_tells_no_capacity_gets_no_grants_and_both_settings_are_named(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await house.engine()
    script_transformers(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 10)
    view = roster.view(A)
    assert (view.healthy, view.serving, view.capacity, roster.ready) == (True, False, None, False)
    assert lines(caplog) == ["a: it answers, but tells no KV capacity: set KVGATE_KV_BLOCKS and KVGATE_BLOCK_TOKENS"]
    assert view.state_text in lines(caplog)[0]


async def test_with_both_settings_any_server_serves(house: House) -> None:
    engine = await house.engine()
    script_plain_server(engine)
    given = GivenCapacity(kv_blocks=100, block_tokens=16)
    roster = house.roster(BackendSpec(A, engine.url, engine="static", given=given))
    await house.looks(roster, 1)
    view = roster.view(A)
    assert (view.engine, view.serving, view.models) == ("static", True, ("any",))
    assert view.capacity is not None
    assert (view.capacity.budget.blocks, view.capacity.weighing.max_context) == (100, 4096)


async def test_a_server_that_does_not_answer_as_the_named_engine_is_said_so(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await house.engine()
    script_plain_server(engine)
    roster = house.roster(BackendSpec(A, engine.url, engine="vllm", given=GivenCapacity(kv_blocks=10, block_tokens=16)))
    await house.looks(roster, 2)
    assert roster.view(A).engine == "vllm"
    assert lines(caplog) == ["a: it does not answer as vllm does, which KVGATE_ENGINE names"]


async def test_a_restart_with_another_capacity_is_followed(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 2)
    told = len(house.changes)
    script_vllm(engine, blocks=33, cache_tokens=1056, started=2e9)
    await house.looks(roster, 1)
    capacity = roster.view(A).capacity
    assert capacity is not None
    assert capacity.budget.blocks == 32
    assert len(house.changes) == told + 1


async def test_counters_that_run_backwards_are_a_restart(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine, preemptions=5)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 2)
    questions = len(engine.asked("/v1/models"))
    script_vllm(engine, preemptions=2)
    await house.looks(roster, 1)
    assert len(engine.asked("/v1/models")) == questions + 1
    assert roster.view(A).preemptions == 2


async def test_a_quiet_period_asks_only_for_the_gauges(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 8)
    assert len(engine.asked("/v1/models")) == 1
    assert len(engine.asked("/metrics")) == 8
    assert len(house.changes) == 1


async def test_a_flap_shorter_than_the_limit_changes_nothing(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 1)
    for _ in range(3):
        engine.json("/metrics", {}, status=503)
        await house.looks(roster, 2)
        script_vllm(engine)
        await house.looks(roster, 1)
    assert len(house.changes) == 1
    assert roster.view(A).serving


async def test_an_outage_stops_new_grants_at_once_and_never_fits_after_the_queue_timeout(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 1)
    await engine.go_away()
    await house.looks(roster, 2)
    view = roster.view(A)
    assert (view.healthy, view.serving, view.capacity is not None) == (False, False, True)
    await house.looks(roster, 29)
    assert roster.view(A).capacity is not None
    await house.looks(roster, 1)
    assert roster.view(A).capacity is None
    assert roster.ready  # an outage does not take it back
    assert lines(caplog) == ["a: unhealthy, no new requests go there: connection refused"]
    await engine.come_back()
    await house.looks(roster, 1)
    assert roster.view(A).serving
    assert "a: answers again" in lines(caplog, logging.INFO)


async def test_two_refused_requests_are_enough_and_one_byte_brings_it_back(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 1)
    roster.note_connect_refused(A)
    assert roster.view(A).serving
    roster.note_connect_refused(A)
    assert not roster.view(A).serving
    assert "connection refused" in roster.view(A).state_text
    roster.note_alive(A)
    assert roster.view(A).serving
    assert [view.serving for view in house.changes] == [True, False, True]


async def test_a_slow_answer_is_no_failure_while_bytes_flow(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url), limit_s=0.3)
    while not roster.view(A).serving:  # a busy machine may need more than the short limit
        await house.looks(roster, 1)
    engine.answers["/metrics"] = Scripted(gate=asyncio.Event())
    for _ in range(4):
        asking = asyncio.create_task(house.looks(roster, 1))
        before = engine.open
        await eventually(lambda before=before: engine.open > before)  # type: ignore[misc]
        roster.note_alive(A)
        await asking
    assert roster.view(A).serving


async def test_a_backend_that_wants_a_key_is_not_unhealthy(house: House, caplog: pytest.LogCaptureFixture) -> None:
    engine = await house.engine()
    script_vllm(engine)
    engine.json("/v1/models", {"error": "Unauthorized"}, status=401)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 6)
    view = roster.view(A)
    assert (view.healthy, view.serving, view.state_text) == (True, False, "needs a key: set KVGATE_BACKEND_KEY")
    assert lines(caplog) == ["a: needs a key: set KVGATE_BACKEND_KEY"]
    script_vllm(engine)
    await house.looks(roster, 1)
    assert roster.view(A).serving


async def test_settings_are_enough_to_serve_a_backend_that_keeps_us_out(house: House) -> None:
    engine = await house.engine()
    engine.json("/v1/models", {}, status=403)
    given = GivenCapacity(kv_blocks=64, block_tokens=16, max_context=1024)
    roster = house.roster(BackendSpec(A, engine.url, given=given))
    await house.looks(roster, 3)
    assert roster.view(A).serving
    assert "KVGATE_BACKEND_KEY" in roster.view(A).state_text


async def test_a_key_that_is_refused_later_takes_nothing_back(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url, key="s3cret"))
    await house.looks(roster, 1)
    engine.json("/metrics", {}, status=401)
    await house.looks(roster, 5)
    assert roster.view(A).serving
    assert roster.view(A).state_text == "does not take the key in KVGATE_BACKEND_KEY"


async def test_neither_key_nor_user_info_is_ever_shown(house: House, caplog: pytest.LogCaptureFixture) -> None:
    engine = await house.engine()
    url, said = clean_url(engine.url.replace("//", "//somebody:s3cret@") + "/v1/")
    assert url == engine.url
    assert len(said) == 2
    spec = BackendSpec(A, url, key="k3y")
    roster = house.roster(spec)
    with caplog.at_level(logging.DEBUG):
        await house.looks(roster, 1)
        await engine.go_away()
        await house.looks(roster, 4)
    shown = " ".join((repr(spec), repr(roster), repr(roster.views()), *said, *lines(caplog, logging.DEBUG)))
    assert "s3cret" not in shown
    assert "k3y" not in shown


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("https://h/models/a/v1/", "https://h/models/a"),
        ("http://h/v1beta", "http://h/v1beta"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_a_trailing_v1_is_cut(url: str, base: str) -> None:
    assert clean_url(url)[0] == base


async def test_foreign_blocks_are_told_after_ten_seconds_and_taken_back_at_once(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine, usage=20 / 64)
    roster = house.roster(BackendSpec(A, engine.url))
    house.written[A] = 8
    await house.looks(roster, 5)
    assert roster.view(A).foreign_blocks == 0
    await house.looks(roster, 1)
    assert (roster.view(A).foreign_blocks, roster.view(A).used_blocks) == (12, 20)
    assert house.changes[-1].foreign_blocks == 12
    script_vllm(engine, usage=8 / 64)
    await house.looks(roster, 1)
    assert roster.view(A).foreign_blocks == 0
    assert house.changes[-1].foreign_blocks == 0


async def test_a_backend_that_is_gone_has_no_foreign_blocks(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine, usage=1.0)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 6)
    assert roster.view(A).foreign_blocks == 64
    await engine.go_away()
    await house.looks(roster, 2)
    assert roster.view(A).foreign_blocks == 0
    assert roster.view(A).used_blocks is None


async def test_an_assumed_formula_is_given_up_at_the_first_preemption(house: House, caplog: pytest.LogCaptureFixture) -> None:
    engine = await house.engine()
    script_vllm(engine, cache_tokens=None)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 1)
    before = roster.view(A).capacity
    assert before is not None
    assert before.weighing.whole_context_blocks is None
    script_vllm(engine, cache_tokens=None, preemptions=1)
    await house.looks(roster, 1)
    after = roster.view(A).capacity
    assert after is not None
    assert after.weighing.whole_context_blocks == 32
    assert house.changes[-1].capacity == after
    script_vllm(engine, cache_tokens=None, started=2e9)
    await house.looks(roster, 1)
    assert roster.view(A).capacity == before  # a new engine, a new chance


async def test_a_proven_formula_is_not_given_up_at_a_preemption(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 1)
    script_vllm(engine, preemptions=3)
    await house.looks(roster, 1)
    assert len(house.changes) == 1


async def test_a_seat_limit_that_the_engine_does_not_tell_is_concluded(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine, running=4, waiting=3, usage=4 / 64)
    roster = house.roster(BackendSpec(A, engine.url))
    house.written[A] = 64
    await house.looks(roster, 3)
    capacity = roster.view(A).capacity
    assert capacity is not None
    assert capacity.budget.seats == 4
    assert any("KVGATE_SEATS" in sentence for sentence in capacity.assumptions)
    script_vllm(engine, running=5, waiting=0, usage=4 / 64)
    await house.looks(roster, 1)
    capacity = roster.view(A).capacity
    assert capacity is not None
    assert capacity.budget.seats is None


async def test_a_reserve_that_leaves_nothing_is_a_conflict_by_name(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url, given=GivenCapacity(reserve=Reserve.parse("64"))))
    await house.looks(roster, 1)
    (conflict,) = roster.conflicts
    assert conflict.startswith("a: the reserve of 64 (64 blocks) leaves nothing of a budget of 64 blocks")
    assert not roster.ready
    assert house.changes[-1].state_text in conflict


async def test_an_engine_that_comes_back_too_small_for_the_reserve_is_no_conflict_but_gets_no_grants(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    roster = house.roster(BackendSpec(A, engine.url, given=GivenCapacity(reserve=Reserve.parse("40"))))
    await house.looks(roster, 1)
    script_vllm(engine, blocks=33, cache_tokens=1056, started=2e9)
    await house.looks(roster, 1)
    assert not roster.conflicts
    assert not roster.view(A).serving
    assert "leaves nothing of a budget of 32 blocks" in roster.view(A).state_text


async def test_the_reserve_can_be_changed_while_it_runs(house: House) -> None:
    engines = [await house.engine(), await house.engine()]
    for engine in engines:
        script_vllm(engine)
    roster = house.roster(BackendSpec(A, engines[0].url), BackendSpec(B, engines[1].url))
    await house.looks(roster, 1)

    def reserves() -> list[int | None]:
        return [view.capacity.budget.reserve_blocks if view.capacity else None for view in roster.views()]

    roster.set_reserve(Reserve.parse("10%"))
    assert reserves() == [7, 7]
    roster.set_reserve(Reserve.parse("0"), B)
    assert reserves() == [7, 0]
    assert house.changes[-1].name == B
    with pytest.raises(ValueError, match="a: the reserve of 64"):
        roster.set_reserve(Reserve.parse("64"))
    assert reserves() == [7, 0]
    with pytest.raises(KeyError):
        roster.set_reserve(Reserve.parse("1"), C)


async def test_models_make_pools(house: House) -> None:
    one, two, three = [await house.engine() for _ in range(3)]
    script_vllm(one, models=("base", "adapter"))
    script_vllm(two, models=("base",))
    script_vllm(three, models=("other",))
    roster = house.roster(BackendSpec(A, one.url), BackendSpec(B, two.url), BackendSpec(C, three.url))
    await house.looks(roster, 1)

    def members(model: str | None) -> tuple[str, ...]:
        pool = roster.pool_for(model)
        return () if pool is None else tuple(view.name for view in pool.backends)

    assert members("base") == ("a", "b")
    assert members("adapter") == ("a",)
    assert members("other") == ("c",)
    assert members("unheard-of") == ()
    assert members(None) == ()
    assert roster.models() == ("base", "adapter", "other")


async def test_with_one_pool_an_unknown_model_goes_there(house: House) -> None:
    engines = [await house.engine(), await house.engine()]
    for engine in engines:
        script_vllm(engine, models=("base",))
    roster = house.roster(*(BackendSpec(name, engine.url) for name, engine in zip((A, B), engines, strict=True)))
    await house.looks(roster, 1)
    for model in ("base", "unheard-of", None):
        pool = roster.pool_for(model)
        assert pool is not None
        assert pool.name == "a+b"


async def test_a_pool_is_worked_out_once_for_as_long_as_its_views_are_the_same(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine, models=("base",))
    roster = house.roster(BackendSpec(A, engine.url))
    await house.looks(roster, 1)
    pool = roster.pool_for("base")
    assert pool is not None
    assert roster.pool_for("unheard-of") is roster.pool_for("base") is pool
    assert pool.planned == pool.backends == (roster.view(A),)
    await house.looks(roster, 1)
    later = roster.pool_for("base")
    assert later is not None
    assert later.backends[0] is roster.view(A)


async def test_a_backend_that_has_not_told_its_models_serves_any(house: House) -> None:
    one, two = await house.engine(), await house.engine()
    script_vllm(one, models=("base",))
    await two.go_away()
    roster = house.roster(BackendSpec(A, one.url), BackendSpec(B, two.url))
    before = roster.pool_for("base")
    assert before is not None
    assert before.name == "a+b"
    await house.looks(roster, 1)
    pool = roster.pool_for("base")
    assert pool is not None
    assert [view.name for view in pool.backends] == [A, B]


async def test_the_lists_are_read_again_at_most_every_five_seconds_and_once_for_all_who_ask(house: House) -> None:
    one, two = await house.engine(), await house.engine()
    script_vllm(one, models=("base",))
    script_vllm(two, models=("other",))
    roster = house.roster(BackendSpec(A, one.url), BackendSpec(B, two.url))
    await house.looks(roster, 1)
    script_vllm(two, models=("other", "new"))
    assert roster.pool_for("new") is None
    await asyncio.gather(*(roster.refresh_models() for _ in range(5)))
    assert len(two.asked("/v1/models")) == 2
    pool = roster.pool_for("new")
    assert pool is not None
    assert pool.name == "b"
    await roster.refresh_models()
    assert len(two.asked("/v1/models")) == 2
    house.clock.advance(5.0)
    await roster.refresh_models()
    assert len(two.asked("/v1/models")) == 3


async def test_it_watches_by_itself_until_it_is_stopped(house: House) -> None:
    engine = await house.engine()
    script_llama_cpp(engine)
    roster = house.roster(BackendSpec(A, engine.url))
    await roster.start()
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert "watch over backend a" in names
    await eventually(lambda: roster.ready and house.clock.sleepers == 1)
    asked = len(engine.seen)
    house.clock.advance(2.0)
    await eventually(lambda: len(engine.seen) > asked and house.clock.sleepers == 1)
    await roster.stop()
    assert "watch over backend a" not in [task.get_name() for task in asyncio.all_tasks()]


async def test_a_stop_in_the_middle_of_a_question_does_not_wait_for_its_answer(house: House) -> None:
    engine = await house.engine()
    engine.answers["/v1/models"] = Scripted(gate=asyncio.Event())
    roster = house.roster(BackendSpec(A, engine.url))
    await roster.start()
    await eventually(lambda: engine.open == 1)
    async with asyncio.timeout(0.4):
        await roster.stop()


async def test_two_engines_behind_one_address_are_planned_with_the_smaller_budget_and_one_warning(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await house.engine()
    roster = house.roster(BackendSpec(A, engine.url))
    for round_ in range(8):
        large = round_ % 2 == 0
        script_vllm(engine, blocks=129 if large else 65, cache_tokens=4128 if large else 2080, started=1e9 + large)
        await house.looks(roster, 1)
    capacity = roster.view(A).capacity
    assert capacity is not None
    assert capacity.budget.blocks == 64
    assert [line for line in lines(caplog) if "several engines" in line] == [
        line for line in lines(caplog) if "list each" in line
    ]
    assert len([line for line in lines(caplog) if "several engines" in line]) == 1
    assert any("several engines" in warning for warning in capacity.warnings)


async def test_data_parallel_engines_become_backends_of_their_own_with_their_own_gauges(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine, engines=2, blocks=130, usage=0.25)
    page = engine.answers["/metrics"].body.decode()
    second_gauge = 'vllm:kv_cache_usage_perc{engine="1",model_name="tiny"}'
    busy = page.replace(f"{second_gauge} 0.25", f"{second_gauge} 0.5")
    engine.text("/metrics", busy)
    prober = Prober(tls=NO_TLS)
    specs = await with_ranks([BackendSpec(A, engine.url), BackendSpec(B, "http://127.0.0.1:9")], prober)
    await prober.close()
    assert [(spec.name, spec.rank) for spec in specs] == [("a.0", 0), ("a.1", 1), ("b", None)]
    roster = house.roster(*specs[:2])
    await house.looks(roster, 1)
    first, second = roster.views()
    assert first.capacity is not None
    assert second.capacity is not None
    # 130 is what both have together; each has 65 with its null block.
    assert [view.capacity.budget.blocks for view in (first, second) if view.capacity] == [64, 64]
    assert (first.used_blocks, second.used_blocks) == (16, 32)
    assert first.capacity.warnings == ()
    pool = roster.pool_for("tiny")
    assert pool is not None
    assert len(pool.backends) == 2


async def test_one_engine_stays_one_backend(house: House) -> None:
    engine = await house.engine()
    script_vllm(engine)
    prober = Prober(tls=NO_TLS)
    spec = BackendSpec(A, engine.url)
    assert await with_ranks([spec], prober) == [spec]
    await prober.close()
