"""Names and labels are a contract; a scrape is always well-formed and never grows by what callers send."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.waste import WasteCause
from gateway.metrics import OTHER_MODEL, GaugeName, GaugeRow, Metrics, WaitEnded

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
BACKEND, MODEL = ("backend",), ("model",)

# As a scrape names them. Dashboards and alerts are written against these.
CONTRACT: dict[str, tuple[str, tuple[str, ...]]] = {
    "kvgate_budget_blocks": (GAUGE, BACKEND),
    "kvgate_reserve_blocks": (GAUGE, BACKEND),
    "kvgate_held_blocks": (GAUGE, BACKEND),
    "kvgate_worst_case_blocks": (GAUGE, BACKEND),
    "kvgate_foreign_blocks": (GAUGE, BACKEND),
    "kvgate_engine_used_blocks": (GAUGE, BACKEND),
    "kvgate_ledger_gap_blocks": (GAUGE, BACKEND),
    "kvgate_ledger_gap_cause_blocks": (GAUGE, ("backend", "cause")),
    "kvgate_in_flight": (GAUGE, BACKEND),
    "kvgate_engine_preemptions": (COUNTER, BACKEND),
    "kvgate_backend_up": (GAUGE, BACKEND),
    "kvgate_commitment": (GAUGE, ("backend", "mode")),
    "kvgate_open_requests": (GAUGE, ("phase",)),
    "kvgate_queue_requests": (GAUGE, ("pool", "lane")),
    "kvgate_queue_blocks": (GAUGE, ("pool", "lane")),
    "kvgate_backlog_seconds": (GAUGE, ("pool",)),
    "kvgate_requests": (COUNTER, ("model", "outcome")),
    "kvgate_rejections": (COUNTER, ("pool", "lane", "reason")),
    "kvgate_tenant_requests": (COUNTER, ("tenant", "outcome")),
    "kvgate_queue_wait_seconds": (HISTOGRAM, ("lane", "outcome")),
    "kvgate_time_to_first_token_seconds": (HISTOGRAM, MODEL),
    "kvgate_upstream_first_token_seconds": (HISTOGRAM, MODEL),
    "kvgate_inter_token_seconds": (HISTOGRAM, MODEL),
    "kvgate_request_seconds": (HISTOGRAM, MODEL),
    "kvgate_prompt_tokens": (COUNTER, MODEL),
    "kvgate_output_tokens": (COUNTER, MODEL),
    "kvgate_demand_blocks": (HISTOGRAM, MODEL),
    "kvgate_prompt_estimate_ratio": (HISTOGRAM, MODEL),
    "kvgate_event_loop_lag_seconds": (GAUGE, ()),
    "kvgate_build_info": (GAUGE, ("version",)),
}


def rows() -> list[GaugeRow]:
    """One sample of every gauge that is read at scrape time."""
    two = {
        GaugeName.COMMITMENT: ("a", "strict"),
        GaugeName.LEDGER_GAP_CAUSE_BLOCKS: ("a", "estimate"),
        GaugeName.QUEUE_REQUESTS: ("a", "standard"),
        GaugeName.QUEUE_BLOCKS: ("a", "standard"),
        GaugeName.UPSTREAM_CONNECTIONS: ("a", "idle"),
        GaugeName.UPSTREAM_CONNECTS: ("a", "opened"),
        GaugeName.UPSTREAM_REQUESTS: ("a", "ready"),
    }
    none = {"kvgate_log_lines_dropped_total"}
    return [GaugeRow(name, () if name.value in none else two.get(name, ("a",)), 1.0) for name in GaugeName]


@pytest.fixture
def metrics() -> Metrics:
    """With one observation of everything."""
    metrics = Metrics("1.2.3")
    metrics.read_gauges_from(rows)
    metrics.requests_ended("m", Outcome.COMPLETED, "anonymous", [1.0])
    metrics.rejected("a", "standard", RejectReason.QUEUE_FULL)
    metrics.waited("standard", WaitEnded.GRANTED, [0.1])
    metrics.granted("m", 3)
    metrics.would_have("a", "waited")
    metrics.wasted("anonymous", {WasteCause.CAP_ABOVE_TRUTH: 1.0})
    metrics.refused_at_door("data", "malformed_http")
    metrics.first_token("m", since_arrival_s=0.2, since_sent_s=0.1)
    metrics.token_gaps("m", [0.01, 0.02])
    metrics.used("m", 10, 20)
    metrics.estimate_ratios("m", [1.1])
    metrics.usage_missing("m")
    metrics.prompt_truncated("m")
    metrics.loop_lag(0.001)
    return metrics


def families(metrics: Metrics) -> dict[str, tuple[str, set[tuple[str, ...]]]]:
    """Every family of a scrape: its kind, and the sets of label names of its samples."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        labels = {tuple(sorted(name for name in sample.labels if name != "le")) for sample in family.samples}
        found[family.name] = (family.type, labels)
    return found


def test_every_name_of_the_contract_is_there_with_its_kind_and_exactly_its_labels(metrics: Metrics) -> None:
    found = families(metrics)
    for name, (kind, labels) in CONTRACT.items():
        assert name in found, name
        assert found[name] == (kind, {tuple(sorted(labels))}), name


def test_every_name_is_of_this_gateway_and_explained(metrics: Metrics) -> None:
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        assert family.name.startswith("kvgate_")
        assert family.documentation or family.name.endswith("_created"), family.name


def test_a_scrape_before_anything_happened_is_well_formed() -> None:
    found = families(Metrics("1"))
    assert set(CONTRACT) <= set(found)


def test_the_first_token_s_buckets_reach_from_five_milliseconds_to_ten_minutes(metrics: Metrics) -> None:
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        if family.name == "kvgate_time_to_first_token_seconds":
            bounds = [float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels]
            assert (bounds[0], bounds[-2]) == (0.005, 600.0)


def test_two_gateways_in_one_process_share_nothing() -> None:
    one, other = Metrics("1"), Metrics("1")
    one.requests_ended("m", Outcome.COMPLETED, "anonymous", [1.0])
    assert b'outcome="completed"' in one.exposition()
    assert b'outcome="completed"' not in other.exposition()


@pytest.mark.parametrize("name", ['quote"', "back\\slash", "new\nline", "日本", ""])
def test_a_backends_odd_name_does_not_break_a_scrape(name: str) -> None:
    metrics = Metrics("1")
    metrics.read_gauges_from(lambda: [GaugeRow(GaugeName.BACKEND_UP, (name,), 1.0)])
    (found,) = [
        each for each in text_string_to_metric_families(metrics.exposition().decode()) if each.name == "kvgate_backend_up"
    ]
    assert [sample.labels for sample in found.samples] == [{"backend": name}]


def test_gauges_are_read_anew_at_each_scrape() -> None:
    metrics = Metrics("1")
    values = iter([1.0, 2.0])
    read: Callable[[], list[GaugeRow]] = lambda: [GaugeRow(GaugeName.IN_FLIGHT, ("a",), next(values))]  # noqa: E731
    metrics.read_gauges_from(read)
    assert b'kvgate_in_flight{backend="a"} 1.0' in metrics.exposition()
    assert b'kvgate_in_flight{backend="a"} 2.0' in metrics.exposition()


def samples(metrics: Metrics) -> int:
    """Time series of a scrape."""
    return sum(len(family.samples) for family in text_string_to_metric_families(metrics.exposition().decode()))


def test_what_is_expected_is_counted_from_zero_so_that_its_first_event_is_an_increase() -> None:
    metrics = Metrics("1")
    metrics.expect(pools=["a"], lanes=["standard"], models=["m"])
    rejections = {
        (each.labels["pool"], each.labels["reason"]): each.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for each in family.samples
        if each.name == "kvgate_rejections_total"
    }
    assert rejections == {(pool, reason.value): 0 for pool in ("", "a") for reason in RejectReason}
    for model in ("m", OTHER_MODEL):
        assert f'kvgate_requests_total{{model="{model}",outcome="completed"}} 0.0' in metrics.exposition().decode()
    metrics.requests_ended("m", Outcome.COMPLETED, "anonymous", [1.0])
    before = metrics.exposition()
    metrics.expect(pools=["a"], lanes=["standard"], models=["m"])
    assert metrics.exposition() == before, "what was counted stays counted"


def test_ten_thousand_tenants_make_a_hundred_labels_and_other() -> None:
    metrics = Metrics("1", tenant_labels=100)
    for number in range(10_000):
        metrics.requests_ended("m", Outcome.COMPLETED, f"tenant-{number}", [1.0])
        metrics.wasted(f"tenant-{number}", {WasteCause.CAP_ABOVE_TRUTH: 1.0})
    text = metrics.exposition().decode()
    assert 'kvgate_tenant_requests_total{outcome="completed",tenant="other"} 9900.0' in text
    assert 'tenant="tenant-99"' in text
    assert 'tenant="tenant-100"' not in text
    assert text.count("kvgate_tenant_requests_total{") == 101


def test_a_server_that_lists_thousands_of_models_does_not_make_thousands_of_series_in_advance() -> None:
    metrics = Metrics("1")
    metrics.expect(models=[f"model-{number}" for number in range(10_000)])
    assert samples(metrics) < 5_000


def test_a_scrape_of_many_series_comes_in_small_pieces_of_one_instant() -> None:
    metrics = Metrics("1")
    for number in range(200):
        metrics.requests_ended(f"model-{number}", Outcome.COMPLETED, "anonymous", [1.0])
    whole = metrics.exposition()
    pieces: list[bytes] = []
    for piece in metrics.pieces():
        pieces.append(piece)
        metrics.requests_ended("model-7", Outcome.COMPLETED, "anonymous", [1.0])  # what goes between is in the next scrape
    assert b"".join(pieces) == whole
    assert len(pieces) > 10
    assert max(map(len, pieces)) < len(whole) / 10


def add_granted(metrics: Metrics, blocks: list[int]) -> None:
    for each in blocks:
        metrics.granted("m", each)


def test_what_is_added_later_is_in_the_next_scrape_and_once() -> None:
    metrics = Metrics("1")
    for number in range(1, 101):
        metrics.add_later(add_granted, 1)
        if number % 7 == 0:
            assert f'kvgate_demand_blocks_count{{model="m"}} {number}.0' in metrics.exposition().decode()
    assert metrics.exposition() == metrics.exposition()


def test_additions_do_not_gather_until_somebody_scrapes() -> None:
    metrics = Metrics("1")
    for _ in range(1_000):
        metrics.add_later(add_granted, 1)
    assert len(metrics._later[add_granted]) < 100


def test_what_is_added_together_is_added_once_each_by_whom_it_was_meant_for() -> None:
    metrics = Metrics("1")
    gone: list[list[int]] = []

    def add_gone(_: Metrics, numbers: list[int]) -> None:
        gone.append(numbers)

    for number in range(10):
        metrics.add_later(add_granted, 1)
        metrics.add_later(add_gone, number)
    assert b'kvgate_demand_blocks_count{model="m"} 10.0' in metrics.exposition()
    assert gone == [list(range(10))]


def test_what_is_added_while_a_scrape_is_rendered_is_in_the_next_one() -> None:
    metrics = Metrics("1")
    metrics.add_later(add_granted, 1)
    pieces = metrics.pieces()
    first = next(pieces)
    for _ in range(100):
        metrics.add_later(add_granted, 1)
    assert b'kvgate_demand_blocks_count{model="m"} 1.0' in b"".join([first, *pieces])
    assert b'kvgate_demand_blocks_count{model="m"} 101.0' in metrics.exposition()


# The README's table


def readme_table() -> dict[str, tuple[str, ...]]:
    """Each metric of the README's table with its labels."""
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    _, _, table = text.partition("<!-- metrics table -->")
    found = {}
    for line in table.strip().splitlines():
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        if cells[0].startswith("`"):
            assert cells[2], f"{cells[0]} has no meaning"
            assert cells[3].endswith("?"), f"{cells[0]} answers no question"
            found[cells[0].strip("`")] = tuple(re.findall(r"`([a-z_]+)`", cells[1]))
    return found


def test_the_readme_tells_of_every_metric_with_its_labels_and_of_no_other(metrics: Metrics) -> None:
    told = {name + ("_total" if kind == COUNTER else ""): labels for name, (kind, labels) in families(metrics).items()}
    registry = {name: {tuple(sorted(each)) for each in sets} for name, sets in told.items() if not name.endswith("_created")}
    table = {name: tuple(sorted(labels)) for name, labels in readme_table().items()}
    assert set(table) == set(registry)
    # Of what has samples here, the labels are the README's.
    assert {name: {table[name]} for name, sets in registry.items() if sets} == {n: s for n, s in registry.items() if s}
