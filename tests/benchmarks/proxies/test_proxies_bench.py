"""The bench itself: a short round of it, and that it finds what would make its figures worth nothing. No times."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from benchmarks.proxies.__main__ import main
from benchmarks.proxies.bodies import ANSWER, StreamPlan, chunk, ending, request_body
from benchmarks.proxies.clients import Findings
from benchmarks.proxies.figures import Figure, figures_of, paired_ratio
from benchmarks.proxies.kvgate import faults
from benchmarks.proxies.measured import Measured, Quantiles
from benchmarks.proxies.processes import our_environment, our_module
from benchmarks.proxies.report import crowd_table
from benchmarks.proxies.scenarios import CROWD, SCENARIOS, USUAL
from gateway.core.outcomes import Outcome, RejectReason
from gateway.metrics import Metrics, WaitEnded
from support.gateway_process import Metrics as Scrape

# The prompts of a mock engine are never computed, so that whoever guards its computing would hold them up.
ROOM = ("--setting", "KVGATE_GUARDS=off")


class Visit(msgspec.Struct):
    proxy: str
    measured: list[Measured]
    faults: list[str]


class Record(msgspec.Struct):
    visits: list[Visit]
    rounds: dict[str, list[dict[str, float | None]]]


def bench(folder: Path, *arguments: str) -> tuple[int, Record, str]:
    """A run of the command: its exit code, its record, and what it said on standard error."""
    record = folder / "record.json"
    command = our_module("benchmarks.proxies", "--rounds", "1", "--grace", "60", "--json", str(record), *arguments)
    done = subprocess.run(command, env=our_environment(), capture_output=True, text=True, timeout=300, check=False)
    assert record.exists(), done.stderr
    return done.returncode, msgspec.json.decode(record.read_bytes(), type=Record), done.stderr


@pytest.mark.slow
def test_in_a_short_round_every_answer_comes_whole_as_it_was_sent_and_nobody_waits(tmp_path: Path) -> None:
    scenarios = ["lat1", "unary1k", "unary64k", "burst", "paced500", "abort"]
    code, record, said = bench(tmp_path, *ROOM, "--seconds", "0.2", "--scenarios", ",".join(scenarios), "kvgate", "direct")
    assert code == 0, said
    assert [visit.proxy for visit in record.visits] == ["direct", "kvgate"]
    for visit in record.visits:
        assert not visit.faults
        assert [measured.scenario for measured in visit.measured] == scenarios
        for measured in visit.measured:
            assert measured.errors == 0, measured.first_errors
            assert measured.verbatim == measured.ok
            assert (measured.ok > 0) == (measured.scenario != "abort")
    missing = [name for name, value in record.rounds["kvgate"][0].items() if value is None]
    of_others = [Figure.PACED_CHUNK, Figure.HALF_LAG_P50, Figure.HALF_LAG_P99, Figure.STREAM_KIB, Figure.BASE_MIB]
    assert missing == of_others


def test_a_run_in_which_somebody_would_have_waited_is_void(tmp_path: Path) -> None:
    few_blocks = ("--setting", "KVGATE_KV_BLOCKS=8")
    code, record, said = bench(tmp_path, *few_blocks, "--seconds", "0.1", "--scenarios", "unary1k", "kvgate")
    assert code == 1
    faults = record.visits[0].faults
    assert any(fault.endswith("requests were declined: queue_full") for fault in faults), faults
    assert all(f"VOID: kvgate: {fault}" in said for fault in faults)


def test_the_metrics_tell_who_was_declined_who_waited_in_vain_and_whom_admission_never_saw() -> None:
    metrics = Metrics("1")

    def seen() -> list[str]:
        return faults(Scrape.parse(metrics.exposition().decode()))

    metrics.expect(pools=["a"], lanes=["standard"], models=["mock"])
    metrics.granted("mock", 64)
    metrics.waited("standard", WaitEnded.GRANTED, [0.0])
    metrics.requests_ended("mock", Outcome.COMPLETED, "t", [1.0])
    assert seen() == []
    metrics.rejected("a", "standard", RejectReason.QUEUE_FULL)
    metrics.waited("standard", WaitEnded.REFUSED, [0.0])
    metrics.refused_at_door("data", "full")
    metrics.requests_ended("mock", Outcome.COMPLETED, "t", [1.0])
    assert seen() == [
        "1 requests were declined: queue_full",
        "1 connections were refused: full",
        "1 waits ended as refused",
        "2 requests were answered, of which admission granted 1",
    ]


def test_proxies_that_are_not_installed_are_named_with_what_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("KVGATE_BENCH_HOME", raising=False)
    assert main(["--rounds", "0", "nginx", "smg", "vllm-router"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in said] == [
        "nginx is not installed",
        "smg is not installed",
        "vllm-router is not installed",
    ]
    for line, installer in zip(said, ("apt-get install nginx", "smg==1.13.0", "vllm-router==0.1.17"), strict=True):
        assert line.endswith(installer)


STREAM = StreamPlan(chunks=128)
EVENTS = [chunk(number, STREAM) for number in range(STREAM.chunks)]
END = ending(STREAM, with_usage=True)


@pytest.mark.parametrize(
    ("scenario", "body", "is_whole", "is_verbatim"),
    [
        ("unary1k", ANSWER, True, True),
        ("unary1k", ANSWER.replace(b'","', b'", "'), True, False),
        ("unary1k", ANSWER[:-1], False, False),
        ("burst", b"".join(EVENTS) + END, True, True),
        ("burst", b"".join(EVENTS).replace(b'"index":0', b'"index": 0') + END, True, False),
        ("burst", b"".join(EVENTS), False, False),
        ("burst", b"".join(EVENTS[1:]) + END, False, False),
        ("burst", b"".join([EVENTS[1], EVENTS[0], *EVENTS[2:]]) + END, False, False),
    ],
)
def test_clients_tell_whole_answers_from_cut_ones_and_verbatim_from_rewritten(
    scenario: str, body: bytes, is_whole: bool, is_verbatim: bool
) -> None:
    findings = Findings(SCENARIOS[scenario], port=1, seconds=0)
    findings.answered(200, body)
    assert (findings.ok, findings.verbatim, findings.errors) == (int(is_whole), int(is_verbatim), int(not is_whole))


def test_an_answer_other_than_200_is_no_answer() -> None:
    findings = Findings(SCENARIOS["unary1k"], port=1, seconds=0)
    findings.answered(429, ANSWER)
    assert (findings.ok, findings.errors) == (0, 1)


@pytest.mark.parametrize("body_bytes", [1024, 65_536])
def test_a_request_is_about_as_large_as_it_shall_be_and_tells_how_its_stream_goes(body_bytes: int) -> None:
    plan = StreamPlan(40, gap_ms=20, is_stamped=True)
    body = request_body(body_bytes, plan)
    assert body_bytes - 64 <= len(body) <= body_bytes
    assert StreamPlan.read(body) == plan


def test_a_chunk_costs_what_its_stream_costs_beyond_a_plain_request() -> None:
    measured = [
        Measured(scenario="unary1k", ok=1000, proxy_cpu_s=0.1, wall_s=2.0),
        Measured(scenario="burst", ok=10, chunks=1280, proxy_cpu_s=0.01),
        Measured(scenario="unary64k", ok=10, errors=2, proxy_cpu_s=1.0),
        Measured(scenario="lat1", ok=10, latency_us=Quantiles(300.0, 900.0)),
        Measured(
            scenario="idle2000",
            connections=2000,
            ok=2000,
            resident_before_bytes=1 << 20,
            resident_most_bytes=(1 << 20) + 2000 * 4096,
        ),
    ]
    direct = [Measured(scenario="lat1", ok=10, latency_us=Quantiles(100.0, 200.0))]
    figures = figures_of(measured, direct)
    assert figures[Figure.REQUEST_1K] == pytest.approx(100.0)
    assert figures[Figure.BURST_CHUNK] == pytest.approx((1000.0 - 100.0) / 128)
    assert figures[Figure.REQUEST_64K] is None  # one in six failed
    assert (figures[Figure.LATENCY_P50], figures[Figure.LATENCY_P99]) == (200.0, 700.0)
    assert (figures[Figure.STREAM_KIB], figures[Figure.BASE_MIB]) == (4.0, 1.0)


def test_a_crowd_is_as_large_as_it_shall_be_or_as_open_files_allow_two_for_each_stream() -> None:
    assert CROWD not in USUAL
    assert SCENARIOS[CROWD].within(1 << 20).connections == 10_000
    assert SCENARIOS[CROWD].within(4_512).connections == 2_000
    assert SCENARIOS["lat1"].within(4_512) == SCENARIOS["lat1"]


def test_what_a_crowd_took_is_told_by_proxy() -> None:
    measured = Measured(
        scenario=CROWD,
        connections=1000,
        most_open=990,
        ok=999,
        errors=1,
        wall_s=40.0,
        proxy_cpu_s=12.0,
        resident_before_bytes=50 << 20,
        resident_most_bytes=70 << 20,
        ttft_us=Quantiles(1_010_000.0, 1_200_000.0),
        lag_us=Quantiles(500.0, 9_000.0),
    )
    rows = crowd_table({"kvgate": measured, "direct": Measured(scenario=CROWD)}).splitlines()
    assert rows[2:] == [
        "| kvgate | 990 | 999 | 1 | 20.5 | 70.0 | 0.30 | 0.50 | 9.00 | 200 |",
        "| direct | 0 | 0 | 0 | - | - | - | - | - | - |",
    ]


def test_ratios_are_paired_by_round_and_what_is_missing_pairs_with_nothing() -> None:
    ours = [{Figure.REQUEST_1K: value} for value in (10.0, 40.0, None)]
    theirs = [{Figure.REQUEST_1K: value} for value in (10.0, 20.0, 5.0)]
    assert paired_ratio(ours, theirs, Figure.REQUEST_1K) == 1.5
    assert paired_ratio(ours, [{}, {}, {}], Figure.REQUEST_1K) is None
