"""`kvgate replay` as a person and as a program call it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.replay.profiles import simulator
from gateway.replay.setting import Site
from support.replays import bench_trace, setting, write_log

TRACES = Path(__file__).parents[1] / "benchmarks" / "policies" / "traces"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVGATE_RESERVE", "KVGATE_KV_BLOCKS", "KVGATE_COMMITMENT"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def replayed(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A minute in which more is asked for than a small engine has."""
    path = tmp_path / "trace.csv"
    rows = [f"{0.1 * number:.1f},{200 + number % 7 * 150},{50 + number % 11 * 40},t{number % 3}" for number in range(300)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,tenant", *rows]))
    return path


SMALL = ("--engine", "simulator:2", "--patience", "5s", "--max-context", "2048")


@pytest.mark.parametrize("name", ["azure_conv", "claude_code_sessions", "servegen_r1"])
def test_public_traces_at_three_reserves_and_two_policies(name: str, tmp_path: Path) -> None:
    """The first requests of each, on the default engine, with figures to look at."""
    path = tmp_path / f"{name}.csv"
    requests = 150
    with path.open("w") as file:
        print("session,think_s,arrival_s,input_tokens,output_tokens,tenant", file=file)
        for _, row in bench_trace(name, requests).rows() if name != "claude_code_sessions" else _all_rows(name, requests):
            think_s = "" if row.think_s is None else row.think_s
            print(row.session, think_s, row.at, row.prompt_tokens, row.output_tokens, row.tenant, sep=",", file=file)
    choice = ("--reserve", "2%,20%,60%", "--policy", "fifo,size", "--commitment", "strict", "--patience", "20s", "--load", "3")
    found = replayed(path, *choice)

    rows = found["results"]
    assert [(row["setting"]["policy"], row["setting"]["reserve"]) for row in rows] == [
        (policy, reserve) for policy in ("fifo", "size") for reserve in ("2%", "20%", "60%")
    ]
    for row in rows:
        print(name, row["setting"], row["completed"], row["refused"], row["timed_out"], row["queue_wait_s"], row["held_share"])
        assert row["completed"] + row["refused"] + row["timed_out"] == row["requests"] == requests
    for policy in (rows[:3], rows[3:]):
        assert policy[0]["completed"] >= policy[2]["completed"]


def _all_rows(name: str, requests: int) -> list[tuple[int, Any]]:
    whole = bench_trace(name, requests)
    return [(index, whole.row(index)) for index in range(len(whole))]


def test_the_table_has_a_row_for_each_setting_and_says_what_was_assumed(trace: Path) -> None:
    result = run(trace, *SMALL, "--reserve", "0,10%,50%", "--commitment", "strict", "--caps", "1.5x")
    assert result.exit_code == 0, result.stderr
    assert "in every row: backends 1, policy fifo, commitment strict, caps 1.5x" in result.stdout
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line[:1].isdigit()}
    assert set(rows) == {"0", "10%", "50%"}
    for words in ("held in vain", "end from the start", "waiting", "tenants, reserve 0", "assumed: callers that are refused"):
        assert words in result.stdout
    assert result.stderr == ""  # no bar where nobody looks


def test_json_has_everything_and_is_the_same_twice(trace: Path) -> None:
    arguments = (
        trace,
        *SMALL,
        "--reserve",
        "0,50%",
        "--caps",
        "as-sent,512",
        "--backends",
        "1,2",
        "--commitment",
        "strict,auto",
    )
    first, second = (run(*arguments, "--json") for _ in range(2))
    assert first.stdout == second.stdout
    found = json.loads(first.stdout)
    assert found["trace"]["requests"] == 300
    assert len(found["results"]) == 16
    row = found["results"][0]
    assert {"p50", "p90", "p95", "p99"} == set(row["queue_wait_s"]) == set(row["ttft_s"])
    assert set(row["wasted_share_of_held"]) == {"cap_above_truth", "absent_cap", "end_from_start"}
    assert {tenant["tenant"] for tenant in row["tenants"]} == {"t0", "t1", "t2"}
    assert row["timeline"]


def test_settings_come_from_the_environment_where_no_flag_says_otherwise(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_RESERVE", "7%")
    monkeypatch.setenv("KVGATE_KV_BLOCKS", "600")
    monkeypatch.setenv("KVGATE_COMMITMENT", "strict")
    found = replayed(trace, "--engine", "simulator", "--max-context", "2048", "--policy", "size")
    assert found["engine"]["blocks"] == 600
    assert found["results"][0]["setting"] == {
        "reserve": "7%",
        "backends": 1,
        "policy": "size",
        "commitment": "strict",
        "caps": "as-sent",
    }


def test_a_log_is_laid_beside_what_its_own_setting_gives(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    site = Site(simulator(4.0), 8192, patience_s=10.0)
    told = write_log(log, bench_trace("azure_conv", 300), site, setting())
    completed = sum(fate.outcome == "completed" for fate in told)

    flags = ("--kv-blocks", "1024", "--seats", "256", "--step-tokens", "2048", "--max-context", "8192", "--patience", "10s")
    found = replayed(log, *flags, "--commitment", "strict")

    logged, row = found["as_logged"], found["results"][0]
    assert logged["completed"] == completed
    assert found["engine"]["profile"] == "fitted from the log"
    assert row["completed"] == pytest.approx(completed, rel=0.05)
    fit = found["engine"]["fit"]  # of an engine of 6.75 ms a step, 0.05 ms a sequence and 0.05 ms a prompt token
    assert [fit["step_ms"], fit["sequence_ms"], fit["prompt_token_ms"]] == pytest.approx([6.75, 0.05, 0.05], rel=0.1)
    assert row["ttft_s"]["p95"] == pytest.approx(logged["ttft_s"]["p95"], rel=0.1)
    # The line is not full yet: in a full one it hangs on a log's milliseconds who is refused, and with it the median.
    assert row["ttft_s"]["p50"] == pytest.approx(logged["ttft_s"]["p50"], rel=0.25)
    assert "as logged" in run(log, *flags).stdout


def test_a_log_is_replayed_on_as_many_engines_as_it_names(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    write_log(log, bench_trace("azure_conv", 200), Site(simulator(4.0), 8192), setting(backends=3))
    flags = ("--engine", "simulator:4", "--max-context", "8192")
    assert [row["setting"]["backends"] for row in replayed(log, *flags)["results"]] == [3]
    assert [row["setting"]["backends"] for row in replayed(log, *flags, "--backends", "1,2")["results"]] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reserve", "5%,lots"), "--reserve: 'lots' is not a reserve: write it as blocks (10)"),
        (("--reserve", ","), "--reserve is empty"),
        (("--reserve", "99999999"), "the reserve of 99999999 (99999999 blocks) leaves nothing of a budget of"),
        (("--backends", "0"), "--backends: '0' is not a whole number of at least 1"),
        (("--policy", "lifo"), "--policy: 'lifo' is not one of fifo"),
        (("--commitment", "none"), "--commitment: 'none' is not one of strict"),
        (("--caps", "0.5x"), "--caps: '0.5x' is no rule for caps: write as-sent, absent, a number, or 1.5x"),
        (("--engine", "abacus"), "'abacus' is no engine: there are h100-8b"),
        (("--speed", "warp=9"), "'warp=9' is no speed"),
        (("--kv-blocks", "few"), "--kv-blocks: 'few' is not a whole number of at least 1"),
        (("--patience", "long"), "--patience: 'long' is not a duration"),
        (("--load", "0"), "--load must be a number above 0, not 0"),
        (("--sessions", "0"), "--sessions must be at least 1, not 0"),
        (
            ("--plot", "no/such/folder/out.png"),
            "--plot: 'no/such/folder/out.png' cannot be written: it names a folder, or its folder is not there",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(arguments: tuple[str, ...], said: str, trace: Path) -> None:
    result = run(trace, *SMALL[:2], *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"kvgate: {said}")
    assert result.stderr.count("\n") == 1


def test_a_bad_line_is_said_with_file_and_number(trace: Path) -> None:
    trace.write_text(trace.read_text() + "\n30,1000,-7,t\n")
    result = run(trace)
    assert result.exit_code == 2
    assert result.stderr == f"kvgate: {trace}:302: output_tokens is '-7', which is no number of tokens\n"


def test_a_picture_is_drawn(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.svg"
    result = run(trace, *SMALL, "--reserve", "0,50%", "--plot", picture)
    assert result.exit_code == 0, result.stderr
    text = picture.read_text()
    assert text.startswith("<?xml")
    assert len(text) > 10_000


def test_a_picture_of_no_known_kind_is_refused_before_the_replay(trace: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run(trace, *SMALL, "--plot", "out.jpegg")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("kvgate: --plot out.jpegg: Format 'jpegg' is not supported")


def test_without_the_extra_a_picture_is_refused_in_words(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "gateway.cli.replay_picture", raising=False)
    result = run(trace, *SMALL, "--plot", tmp_path / "out.png")
    assert result.exit_code == 2
    assert result.stderr == "kvgate: a picture needs the extra `plot`: pip install 'kvgate[plot]'\n"
