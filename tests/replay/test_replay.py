"""What a replay promises: every request ends once, held is never below used where the worst is held, the same figures twice,
and that a log replayed with its own setting tells what it told."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.replay.logged import as_logged
from gateway.replay.profiles import LLAMA_8B_A10G, LLAMA_8B_H100
from gateway.replay.reader import read_trace
from gateway.replay.replay import replay
from gateway.replay.setting import Site
from gateway.replay.trace import Request
from support.replays import SMALL, bench_trace, fates_of, setting, trace_of, write_log

CROWDED = {
    "azure_conv": (800, Site(LLAMA_8B_A10G, 16_384, load=0.5)),
    "servegen_r1": (400, Site(LLAMA_8B_H100, 65_536, load=0.8)),
    "claude_code_sessions": (700, Site(LLAMA_8B_H100, 131_072, patience_s=20.0)),
}


@pytest.mark.parametrize("commitment", ["strict", "auto"])
@pytest.mark.parametrize("name", CROWDED)
def test_every_request_is_completed_refused_or_timed_out_once_and_nothing_stays_held(name: str, commitment: str) -> None:
    requests, site = CROWDED[name]
    trace = bench_trace(name, requests)
    rows: Counter[int] = Counter()
    result = replay(trace, site, setting(commitment=commitment), on_fate=lambda fate: rows.update([fate.row]))

    assert rows == Counter(range(len(trace)))
    fates = result.all
    assert fates.requests == len(trace) == fates.completed + fates.refusals + fates.timed_out
    assert len(fates.waits.values) == len(fates.ttft.values) == fates.completed
    assert fates.completed > 0
    assert fates.refusals + fates.timed_out > 0
    assert 0 < result.used_share <= 1
    causes = result.waste_shares().values()
    assert all(share >= 0 for share in causes)
    assert sum(causes) < 1


@pytest.mark.parametrize("backends", [1, 2])
@pytest.mark.parametrize("name", ["azure_conv", "servegen_r1"])
def test_where_the_worst_is_held_no_engine_uses_more_than_is_held_and_none_preempts(name: str, backends: int) -> None:
    requests, site = CROWDED[name]
    result = replay(bench_trace(name, requests), site, setting(backends=backends))

    assert len(result.timeline.points) > 100
    assert all(point.used_blocks <= point.held_blocks for point in result.timeline.points)
    assert all(point.held_blocks <= result.budget_blocks - result.reserve_blocks for point in result.timeline.points)
    assert result.preemptions == 0


@pytest.mark.parametrize("commitment", ["strict", "auto"])
@pytest.mark.parametrize("policy", ["fifo", "size"])
def test_the_same_trace_twice_gives_the_same_figures_to_the_byte(policy: str, commitment: str) -> None:
    requests, site = CROWDED["azure_conv"]
    trace = bench_trace("azure_conv", requests)
    tried = setting(policy=policy, commitment=commitment, caps="as-sent", backends=2)

    first, second = (json.dumps(replay(trace, site, tried).as_json(tenants=10)) for _ in range(2))

    assert first == second


@pytest.mark.parametrize("name", ["azure_conv", "servegen_r1"])
def test_where_memory_is_what_is_short_a_larger_reserve_never_lets_more_in(name: str) -> None:
    requests, site = CROWDED[name]
    trace = bench_trace(name, requests)
    short = replace(site, has_guards=False)
    completed = [replay(trace, short, setting(reserve=reserve)).all.completed for reserve in ("0", "10%", "30%", "60%")]

    assert all(more >= less for more, less in pairwise(completed))
    assert completed[0] > completed[-1]


def _bursts() -> list[Request]:
    """Crowds with a long pause after each, so that what differs by a millisecond in one makes no difference in the next."""
    draw = random.Random(5)
    return [
        Request(round(100.0 * burst + 0.01 * number, 3), draw.randint(100, 1500), draw.randint(20, 400))
        for burst in range(12)
        for number in range(60)
    ]


@pytest.mark.parametrize("commitment", ["strict", "auto"])
def test_a_log_replayed_with_the_setting_it_was_made_with_agrees_on_who_was_refused(commitment: str, tmp_path: Path) -> None:
    site = Site(SMALL, 4096, patience_s=8.0)
    told = write_log(tmp_path / "access.log", trace_of(_bursts()), site, setting(commitment=commitment))

    log = read_trace([tmp_path / "access.log"])
    replayed = fates_of(log, site, setting(commitment=commitment, caps="as-sent"))

    by_arrival = [sorted(fates, key=lambda fate: fate.arrived_s) for fates in (told, replayed)]
    agree = sum((one.outcome == "completed") == (other.outcome == "completed") for one, other in zip(*by_arrival, strict=True))
    refused = sum(fate.outcome != "completed" for fate in told)
    print(f"{commitment}: {refused} of {len(told)} refused; the replay agrees on {agree}")
    assert log.unknown_lengths == refused > 200
    assert agree / len(told) > 0.98


@pytest.mark.parametrize("name", ["azure_conv", "servegen_r1"])
def test_in_a_full_line_it_agrees_on_how_many_were_refused_and_how_long_the_others_waited(name: str, tmp_path: Path) -> None:
    """Who exactly, hangs on milliseconds there, which the log does not have."""
    requests, site = CROWDED[name]
    told = write_log(tmp_path / "access.log", bench_trace(name, requests), site, setting())

    log = read_trace([tmp_path / "access.log"])
    again = replay(log, replace(site, load=1.0), setting(caps="as-sent")).all

    logged = as_logged(log)
    assert logged is not None
    assert again.completed == pytest.approx(logged.completed, rel=0.05)
    waits, waits_again = logged.waits.quantiles(), again.waits.quantiles()
    print(f"{name}: {logged.completed} of {len(told)} completed, {again.completed} again; waits {waits}, {waits_again}")
    assert waits is not None
    assert waits_again is not None
    assert waits_again["p95"] == pytest.approx(waits["p95"], rel=0.1)


def test_a_turn_of_a_session_comes_its_think_time_after_the_turn_before_has_ended() -> None:
    turns = [Request(5.0 * turn, 1000 + turn, 200, session="a", think_s=3.0) for turn in range(4)]
    fates = fates_of(trace_of(turns), Site(SMALL, 4096), setting())

    assert fates[0].arrived_s == 0.0
    for before, after in pairwise(fates):
        assert after.arrived_s == pytest.approx(before.ended_s + 3.0)


def test_a_session_goes_on_after_a_turn_that_was_refused() -> None:
    turns = [Request(0.0, tokens, 10, session="a", think_s=1.0) for tokens in (100, 5000, 200)]
    fates = fates_of(trace_of(turns), Site(SMALL, 4096), setting())

    assert [fate.outcome for fate in fates] == ["completed", "refused_context_length_exceeded", "completed"]
    assert fates[2].arrived_s == pytest.approx(fates[1].ended_s + 1.0)


def test_no_more_sessions_are_at_work_than_asked_for() -> None:
    turns = [Request(0.0, 500, 100, session=str(number), think_s=1.0) for number in range(6) for _ in range(2)]
    fates = fates_of(trace_of(turns), Site(SMALL, 4096, sessions=2), setting())

    spans = [(fates[2 * number].arrived_s, fates[2 * number + 1].ended_s) for number in range(6)]
    assert all(sum(start <= at < end for start, end in spans) <= 2 for at, _ in spans)


def test_what_a_turn_shares_with_the_one_before_is_not_computed_again_while_it_is_kept() -> None:
    turns = [Request(0.0, 8000, 20, session="a", think_s=2.0, shared_tokens=7900 if turn else 0) for turn in range(2)]
    kept = fates_of(trace_of(turns), Site(SMALL, 16_384), setting())
    gone = fates_of(trace_of(turns), Site(SMALL, 16_384, has_prefix_cache=False), setting())

    first_s, second_s = kept[0].ttft_s, kept[1].ttft_s
    assert first_s is not None
    assert second_s is not None
    assert second_s < first_s / 5
    assert gone[1].ttft_s == pytest.approx(first_s, rel=0.01)


def test_who_is_kept_yields_to_who_runs() -> None:
    """Two contexts of 480 blocks do not fit beside one of 900 in 1,024."""
    turns = [
        Request(0.0, 7600, 20, session="a", think_s=0.0),
        Request(0.0, 14_000, 20, session="b", think_s=0.0),
        Request(0.0, 7600, 20, session="a", think_s=60.0, shared_tokens=7500),
    ]
    fates = fates_of(trace_of(turns), Site(SMALL, 16_384), setting())

    assert fates[2].ttft_s == pytest.approx(fates[0].ttft_s, rel=0.01)


def test_several_samples_of_one_prompt_take_seats_and_blocks_each() -> None:
    request = Request(0.0, 160, 400, cap_tokens=100, sequences=4)
    result = replay(trace_of([request]), Site(SMALL, 4096), setting(caps="as-sent", reserve="0"))

    assert result.all.completed == 1
    assert result.all.output_tokens == 400
    assert result.all.held_block_s / result.span_s == pytest.approx(4 * (17 + 1), rel=0.01)  # 259 tokens, and one spare


def test_a_bound_is_corrected_while_somebody_waits() -> None:
    """Each is weighed as 450 blocks and needs 110: two fit at first, all five once somebody waits and they are counted."""
    requests = [Request(0.1 * number, 1000, 700, counted_tokens=6400, is_bound=True, cap_tokens=700) for number in range(5)]
    fates = fates_of(trace_of(requests), Site(SMALL, 8192, has_guards=False), setting(caps="as-sent"))

    assert max(fate.waited_s for fate in fates) < 0.5


def test_more_engines_take_more() -> None:
    requests, site = CROWDED["azure_conv"]
    trace = bench_trace("azure_conv", requests)
    one, two, four = (replay(trace, site, setting(backends=backends)).all for backends in (1, 2, 4))

    assert one.completed < two.completed <= four.completed


def test_a_cap_that_is_rewritten_cuts_what_is_longer_and_says_so() -> None:
    requests = [Request(float(number), 100, 50 * (number + 1)) for number in range(4)]
    result = replay(trace_of(requests), Site(SMALL, 4096), setting(caps="100"))

    assert result.cut == 2
    assert result.all.output_tokens == 50 + 100 + 100 + 100


def test_figures_of_tenants_add_up_to_those_of_all() -> None:
    requests = [Request(0.2 * number, 500, 100, tenant=f"t{number % 7}") for number in range(300)]
    result = replay(trace_of(requests), Site(SMALL, 4096), setting())

    rows = result.largest_tenants(3)
    assert [name for name, _ in rows][3:] == ["4 others"]
    for figure in ("requests", "completed", "timed_out", "waited", "output_tokens"):
        assert sum(getattr(fates, figure) for _, fates in rows) == getattr(result.all, figure)
    assert sum(fates.held_block_s for _, fates in rows) == pytest.approx(result.all.held_block_s)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0, 30),
            st.integers(1, 9000),
            st.integers(1, 800),
            st.none() | st.integers(1, 9000),
            st.integers(1, 3),
            st.none() | st.integers(1, 20_000),
            st.booleans(),
        ),
        min_size=1,
        max_size=40,
    ),
    commitment=st.sampled_from(["strict", "auto", "forecast"]),
    policy=st.sampled_from(["fifo", "priority", "deadline", "size"]),
    backends=st.integers(1, 3),
    reserve=st.sampled_from(["0", "5%", "90%"]),
)
def test_whatever_comes_every_request_ends_once(
    rows: list[tuple[float, int, int, int | None, int, int | None, bool]],
    commitment: str,
    policy: str,
    backends: int,
    reserve: str,
) -> None:
    trace = trace_of(
        Request(
            at,
            prompt,
            max(output, samples),
            cap_tokens=cap,
            sequences=samples,
            counted_tokens=counted,
            is_bound=is_bound,
            is_stream=bool(prompt % 2),
        )
        for at, prompt, output, cap, samples, counted, is_bound in rows
    )
    site = Site(replace(SMALL, blocks=600, max_running=16), 8192, patience_s=5.0)
    tried = setting(reserve=reserve, backends=backends, policy=policy, commitment=commitment, caps="as-sent")

    fates = fates_of(trace, site, tried)

    assert [fate.row for fate in fates] == list(range(len(rows)))
    assert all(fate.waited_s <= 5.0 + 1e-6 for fate in fates)
