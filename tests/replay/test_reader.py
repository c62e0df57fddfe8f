"""Reading traces: both forms, gzipped or not, and everything that can be wrong with them: one line with a file and a number."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.replay.log_lines import LogLine
from gateway.replay.reader import TraceError, read_trace
from gateway.replay.trace import Trace
from gateway.web.request_line import RequestLine

HEAD = "arrival_s,input_tokens,output_tokens"

# As a gateway before the simulator wrote it.
LINE: dict[str, Any] = {
    "time": "2026-03-01T12:00:09.332Z",
    "level": "info",
    "logger": "kvgate.request",
    "event": "request",
    "request_id": "95923984-257",
    "dialect": "openai_chat",
    "outcome": "completed",
    "phase": "streaming",
    "status": 200,
    "model": "m",
    "tenant": "anonymous",
    "lane": "standard",
    "pool": "a",
    "backend": "a",
    "stream": True,
    "prompt_tokens_counted": 1052,
    "count": "exact",
    "cap_tokens": 429,
    "sequences": 1,
    "blocks": 93,
    "charged_blocks": 93,
    "released_blocks": 93,
    "prompt_tokens": 1052,
    "output_tokens": 400,
    "upload_ms": 0.1,
    "count_ms": 0.3,
    "queue_ms": 500,
    "head_ms": 1.2,
    "ttft_ms": 700.4,
    "upstream_ms": 3078.8,
    "total_ms": 4332.0,
}


def line(**changed: Any) -> str:
    """A line of a log with other values; None leaves a field out."""
    return json.dumps({name: value for name, value in {**LINE, **changed}.items() if value is not None})


def read(path: Path, *lines: str) -> Trace:
    path.write_text("\n".join(lines) + "\n")
    return read_trace([path])


def problem(path: Path, *lines: str) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, *lines)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path), "FILE")


def test_what_is_read_of_a_line_is_what_a_gateway_writes() -> None:
    assert set(LogLine.__struct_fields__) - {"time"} <= set(RequestLine.__struct_fields__)
    assert set(LINE) - {"time", "level", "logger", "event"} <= set(RequestLine.__struct_fields__)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_rows_of_a_csv_come_in_the_order_of_their_arrival(file: Path) -> None:
    trace = read(file, HEAD + ",tenant,colour", "2.5,100,10,a,red", "0.5,200,20,b,blue", "1,300,,a,")

    assert [trace.row(index).at for index in trace.order] == [0.0, 0.5, 2.0]
    assert [request.tenant for _, request in trace.rows()] == ["b", "a", "a"]
    assert trace.unknown_lengths == 1
    assert all(request.output_tokens for _, request in trace.rows())


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress])
def test_a_gzipped_file_is_read_whatever_it_is_called(pack: Any, file: Path) -> None:
    file.write_bytes(pack(f"{HEAD}\r\n0,1,2\r\n1,3,4\r\n".encode()))
    assert len(read_trace([file])) == 2


def test_turns_of_a_session_follow_each_other_and_need_no_arrival(file: Path) -> None:
    trace = read(
        file,
        "session,think_s,input_tokens,output_tokens,shared_tokens",
        *("a,0,100,10,0", "b,0,100,10,0", "a,2.5,120,10,96", "a,3,140,10,112"),
    )

    assert list(trace.order) == [0, 1]
    assert [trace.next_turn(index) for index in range(4)] == [2, None, 3, None]
    assert trace.think_s(2) == 2.5
    assert trace.row(2).shared_tokens == 96


def test_sessions_of_two_files_are_not_taken_for_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text("session,think_s,input_tokens,output_tokens\n0,0,10,10\n0,1,20,10\n")
    assert list(read_trace(paths).order) == [0, 2]


def test_a_request_of_a_log_came_its_whole_time_but_for_its_upload_before_its_line(file: Path) -> None:
    later = line(time="2026-03-01T12:00:08.000Z", total_ms=1100, upload_ms=100, stream=False, ttft_ms=None)
    trace = read(file, line(), later)

    assert [round(trace.row(index).at, 3) for index in trace.order] == [0.0, 2.0]
    request, recorded = trace.row(0), trace.recorded(0)
    assert (request.prompt_tokens, request.output_tokens, request.cap_tokens) == (1052, 400, 429)
    assert recorded is not None
    assert (recorded.outcome, recorded.waited_s, recorded.blocks) == ("completed", 0.5, 93)
    assert recorded.ttft_s == pytest.approx(0.7003)
    assert recorded.first_token_s == pytest.approx(0.2003)
    assert not trace.row(1).is_stream


def test_lines_that_are_no_requests_are_skipped_and_counted(file: Path) -> None:
    trace = read(
        file,
        '{"time": "2026-03-01T12:00:00Z", "logger": "kvgate", "event": "listening"}',
        "Traceback (most recent call last):",
        line(),
        line(outcome="refused_unauthorized", prompt_tokens_counted=None),
        line(outcome="engine_refused"),
        '{"time": "2026-03-01T12:00:09.3',
    )

    assert len(trace) == 1
    assert dict(trace.skipped) == {
        "lines of other loggers": 1,
        "lines that are not of a log in JSON": 2,
        "requests that were never weighed": 1,
        "requests that the engine itself refused": 1,
    }


def test_the_requests_of_one_pool_can_be_picked_from_a_log(file: Path) -> None:
    file.write_text("\n".join([line(), line(pool="b"), line(pool="b")]))
    trace = read_trace([file], pool="b")
    assert (len(trace), dict(trace.skipped)) == (2, {"requests of other pools": 1})
    with pytest.raises(TraceError, match=r"there is no request in it \(3 requests of other pools\)"):
        read_trace([file], pool="c")


def test_what_a_refused_request_would_have_become_is_drawn_evenly_from_those_like_it(file: Path) -> None:
    done = [line(output_tokens=100 + number, tenant="a") for number in range(100)]
    others = [line(output_tokens=900, tenant="b") for _ in range(20)]
    refused = [line(outcome="refused_queue_full", output_tokens=None, prompt_tokens=None, tenant="a") for _ in range(50)]
    trace = read(file, *done, *others, *refused)

    drawn = [trace.row(index).output_tokens or 0 for index in range(120, 170)]
    assert trace.unknown_lengths == 50
    assert min(drawn) < 105
    assert max(drawn) > 194
    assert sum(drawn) / 50 == pytest.approx(149.5, abs=3)
    assert all(100 <= tokens < 200 for tokens in drawn)


def test_an_answer_that_was_broken_off_would_have_become_longer(file: Path) -> None:
    trace = read(file, line(), line(outcome="client_gone_streaming", output_tokens=3))
    assert trace.row(1).output_tokens == 400


def test_a_bound_is_what_the_gateway_weighed_and_the_truth_is_what_the_engine_computes(file: Path) -> None:
    trace = read(file, line(prompt_tokens_counted=4000, count="bound"))
    request = trace.row(0)
    assert (request.prompt_tokens, request.counted_tokens, request.is_bound) == (1052, 4000, True)


def test_sequences_of_embeddings_are_prompts_of_their_own_and_those_of_a_chat_samples_of_one(file: Path) -> None:
    many = {"sequences": 4, "prompt_tokens_counted": 1000, "prompt_tokens": 1000}
    trace = read(file, line(dialect="openai_embeddings", **many), line(**many))
    assert [trace.row(index).prompt_tokens for index in (0, 1)] == [250, 1000]


def test_completions_without_a_cap_have_the_engines_own(file: Path) -> None:
    trace = read(file, line(dialect="openai_completions", cap_tokens=None, output_tokens=16))
    assert trace.row(0).cap_tokens == 16


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([""], "FILE: it is empty"),
        (["hello"], "FILE:1: this is neither a log of kvgate in its JSON form (KVGATE_LOG_FORMAT=json) nor a CSV"),
        ([HEAD], "FILE: there is no request in it"),
        (["input_tokens", "1"], "FILE:1: the column output_tokens is missing: there are input_tokens"),
        (["input_tokens,output_tokens", "1,1"], "FILE:1: the column arrival_s is missing, and there are no sessions"),
        ([HEAD + ",tenant,tenant", "0,1,1,a,b"], "FILE:1: two columns have one name"),
        ([HEAD, "0,1,1", "0,1"], "FILE:3: 2 fields under 3 names"),
        ([HEAD, "0,1,1", "", "0,-1,1"], "FILE:4: input_tokens is '-1', which is no number of tokens"),
        ([HEAD, "0,1.5,1"], "FILE:2: input_tokens is '1.5', which is no number of tokens"),
        ([HEAD, "0,1,1e99"], "FILE:2: output_tokens is '1e99', which is no number of tokens"),
        ([HEAD, "nan,1,1"], "FILE:2: arrival_s is 'nan', which is no number of seconds from 0 on"),
        ([HEAD, ",1,1"], "FILE:2: arrival_s is empty"),
        ([HEAD, "0,1,"], "FILE: no request in it was completed, so that nothing tells how long answers become"),
        ([HEAD + ",cap_tokens", "0,1,1,0"], "FILE:2: cap_tokens is 0: a cap is at least 1"),
        ([HEAD, '0,"1,1'], "FILE:2: this is no line of a CSV"),
        (['{"logger": "kvgate"}'], "FILE: there is no request in it (1 lines of other loggers)"),
        ([line(), line(cap_tokens="many")], "FILE:2: this line of a request makes no sense: Expected `int | null`, got `str`"),
        ([line(output_tokens=-5)], "FILE:1: this line of a request makes no sense: Expected `int` >= 0 - at `$.output_tokens`"),
        ([line(time="yesterday")], "FILE:1: this line of a request makes no sense: Invalid isoformat string: 'yesterday'"),
        ([line(outcome=None)], "FILE:1: this line of a request makes no sense: Object missing required field `outcome`"),
    ],
)
def test_what_makes_no_sense_is_said_with_its_file_and_line(lines: list[str], said: str, file: Path) -> None:
    assert problem(file, *lines).startswith(said)


def test_what_is_not_there_or_broken_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file or directory"):
        read_trace([tmp_path / "missing"])
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace([tmp_path])
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress("\n".join([HEAD, *["0,1,1"] * 1000]).encode())[:-20])
    with pytest.raises(TraceError, match="cannot be read: "):
        read_trace([broken])


def test_a_log_and_a_csv_are_not_replayed_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(line() + "\n")
    (tmp_path / "b").write_text(f"{HEAD}\n0,1,1\n")
    with pytest.raises(TraceError, match="cannot be replayed together"):
        read_trace([tmp_path / "a", tmp_path / "b"])


VALUES = st.sampled_from(["0", "1", "17", "-3", "1e5", "nan", "inf", "", " ", "x", '"', "9" * 30, "\x00", "0.5", "é"])
FIELDS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.lists(st.lists(VALUES, max_size=8).map(",".join), max_size=6).map(
            lambda rows: "\n".join([HEAD + ",session,think_s,cap_tokens", *rows]).encode("utf-8", "replace")
        ),
        st.lists(st.dictionaries(st.sampled_from(sorted(LINE)), FIELDS, max_size=4), min_size=1, max_size=4).map(
            lambda rows: "\n".join(line(**changed) for changed in rows).encode()
        ),
        st.binary(max_size=100).map(lambda data: b"\x1f\x8b" + data),
    )
)
def test_whatever_a_file_holds_it_is_a_trace_or_one_clear_line(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    said = ""
    try:
        trace = read_trace([path])
    except TraceError as error:
        said = str(error)
    if said:
        assert said.startswith(f"{path}:")
        assert "\n" not in said
    else:
        assert len(trace) >= 1
        assert all(request.prompt_tokens >= 1 and (request.output_tokens or 0) >= 1 for _, request in trace.rows())
