"""Log lines, as text and as JSON."""

import fcntl
import io
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import msgspec
import pytest

from gateway import logs


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """configure() is for a whole process: what it changes is put back."""
    root = logging.getLogger()
    names = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access", "httpx", "httpcore", "asyncio")
    before = [
        (logger, logger.level, logger.handlers[:], logger.filters[:]) for logger in (root, *map(logging.getLogger, names))
    ]
    yield
    logging.captureWarnings(False)
    logging.getLogger("uvicorn.access").disabled = False
    for logger, level, handlers, filters in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.filters[:] = filters


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def configured(log_format: str, level: str = "info", out: io.StringIO | None = None) -> io.StringIO:
    stream = out if out is not None else io.StringIO()
    logs.configure(level, log_format, stream)
    return stream


def test_a_json_line_has_time_level_logger_event_and_the_fields() -> None:
    out = configured("json")
    logging.getLogger("kvgate.web").info("request ended", extra={"fields": {"outcome": "completed", "blocks": 7, "event": "x"}})
    line = json.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "logger": "kvgate.web", "event": "request ended", "outcome": "completed", "blocks": 7}


def test_a_text_line_can_be_read_by_a_person() -> None:
    out = configured("text")
    logging.getLogger("kvgate").warning(
        "backend %s is away", "a", extra={"fields": {"url": "http://a", "why": "reset by peer"}}
    )
    assert out.getvalue().split(" ", 1)[1] == 'warning backend a is away url=http://a why="reset by peer"\n'


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_forge_a_line(log_format: str) -> None:
    out = configured(log_format)
    logging.getLogger("kvgate").info("model %s", "a\n2026 error", extra={"fields": {"model": "b\r\nc\u2028d\x1b[0m"}})
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()


def test_the_form_follows_the_terminal_unless_it_is_chosen() -> None:
    for log_format, out, as_json in [("auto", io.StringIO(), True), ("auto", Terminal(), False), ("json", Terminal(), True)]:
        configured(log_format, out=out)
        logging.getLogger("kvgate").info("here")
        assert out.getvalue().startswith("{") is as_json


def test_an_exception_keeps_its_traceback_within_the_json_line() -> None:
    out = configured("json")
    try:
        raise LookupError("gone")
    except LookupError:
        logging.getLogger("kvgate").exception("a bug")
    assert "LookupError: gone" in json.loads(out.getvalue())["exception"]


def test_a_level_hides_what_lies_below_it() -> None:
    out = configured("json", level="warning")
    logging.getLogger("kvgate").info("small")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["Invalid HTTP request received."]


@pytest.mark.parametrize(
    "event", ["ASGI callable returned without completing response.", "ASGI callable returned without starting response."]
)
def test_an_answer_broken_off_on_purpose_is_no_error_of_the_server(event: str) -> None:
    out = configured("json")
    logging.getLogger("uvicorn.error").error(event)
    assert out.getvalue() == ""
    out = configured("json", level="debug")
    logging.getLogger("uvicorn.error").error(event)
    assert json.loads(out.getvalue())["level"] == "debug"


def test_what_others_say_about_every_request_is_left_out() -> None:
    out = configured("json")
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("httpx").info("HTTP Request")
    logging.getLogger("uvicorn.error").info("Started server process")
    assert out.getvalue() == ""
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    assert json.loads(out.getvalue())["level"] == "error"


def test_configuring_twice_writes_every_line_once() -> None:
    configured("json")
    out = configured("json")
    logging.getLogger("kvgate").info("here")
    assert len(out.getvalue().splitlines()) == 1


# What is logged of every request


class Fields(msgspec.Struct, omit_defaults=True):
    outcome: str
    error: str | None = None
    blocks: int | None = None


def as_they_are(fields: Fields) -> Fields:
    return fields


EVENT = logs.FrequentEvent("kvgate.test.frequent", "request", as_they_are)


def test_a_frequent_event_is_a_line_like_any_other() -> None:
    """In both forms, and without what is None."""
    out = configured("json")
    fields = Fields("completed", blocks=7)
    EVENT.log(logging.INFO, fields)
    logging.getLogger("kvgate.test.frequent").info("request", extra={"fields": {"outcome": "completed", "blocks": 7}})
    one, other = map(json.loads, out.getvalue().splitlines())
    assert one.pop("time")[:10] == other.pop("time")[:10]
    assert list(one.items()) == list(other.items())
    out = configured("text")
    EVENT.log(logging.ERROR, fields)
    assert out.getvalue().split(" ", 1)[1] == "error   request outcome=completed blocks=7\n"


@pytest.mark.parametrize("text", ["日本", "a\n2026 error", "b\r\nc\u2028d\x1b[0m", "half an emoji \ud83d", '"quoted"', "\x85"])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_text_in_a_frequent_event_breaks_its_line(log_format: str, text: str) -> None:
    out = configured(log_format)
    EVENT.log(logging.INFO, Fields("completed", error=text))
    (line,) = out.getvalue().splitlines()
    assert line.isascii() or log_format == "text"
    assert "\x1b" not in line
    assert log_format == "text" or json.loads(line)["error"] == text


def test_a_frequent_event_obeys_its_logger_s_level() -> None:
    out = configured("json", level="warning")
    EVENT.log(logging.INFO, Fields("completed"))
    assert out.getvalue() == ""
    EVENT.log(logging.ERROR, Fields("completed"))
    assert json.loads(out.getvalue())["level"] == "error"


def test_whoever_else_listens_hears_a_frequent_event_as_a_whole_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvgate.test.frequent")
    EVENT.log(logging.INFO, Fields("completed"))
    (record,) = caplog.records
    assert (record.getMessage(), record.levelname, record.exc_info) == ("request", "INFO", None)
    assert abs(record.created - time.time()) < 60
    assert set(vars(logging.makeLogRecord({}))) <= set(vars(record))
    assert logs.fields_of(record) == {"outcome": "completed"}


def a_pipe() -> tuple[int, int]:
    """Both ends of a pipe that holds little."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    return read_end, write_end


def test_nobody_waits_for_a_pipe_that_nobody_reads_and_what_was_lost_is_said() -> None:
    read_end, write_end = a_pipe()
    writer = logs.Writer(write_end, waiting=100)
    writer.setFormatter(logs.JsonLines())
    logger = logging.getLogger("kvgate.test.blocked")
    logger.addHandler(writer)
    logger.propagate = False
    began = time.monotonic()
    for number in range(1000):
        logger.error("line %d", number, extra={"fields": {"padding": "x" * 100}})
    assert time.monotonic() - began < 10  # the pipe is never read meanwhile: a writer that waited would wait for ever
    dropped = writer.dropped
    assert 0 < dropped < 1000
    lines: list[bytes] = []

    def read() -> None:
        with os.fdopen(read_end, "rb") as reader:
            lines.extend(reader)

    reading = threading.Thread(target=read)
    reading.start()
    writer.flush()
    logger.removeHandler(writer)
    os.close(write_end)
    reading.join(10)
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "line 0"
    said = [event for event in events if "dropped" in event]
    assert said[0].startswith(f"{dropped} log lines were dropped")
    assert len(events) - len(said) == 1000 - dropped


def test_a_flush_waits_for_what_was_logged_before_it() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "w") as out:
        logs.configure("info", "json", out)
        for number in range(20):
            logging.getLogger("kvgate").info("line %d", number)
        for handler in logging.getLogger().handlers:
            handler.flush()
        os.set_blocking(read_end, False)
        assert [json.loads(line)["event"] for line in reader.read().splitlines()] == [f"line {number}" for number in range(20)]


def test_many_lines_are_few_writes_in_their_order() -> None:
    read_end, write_end = os.pipe()
    writer = logs.Writer(write_end)
    writer.setFormatter(logs.JsonLines())
    with mock.patch.object(os, "write", side_effect=os.write) as write:
        for number in range(300):
            writer.handle(logging.LogRecord("kvgate", logging.INFO, __file__, 1, "line %d", (number,), None))
        writer.flush()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as reader:
        assert [json.loads(line)["event"] for line in reader] == [f"line {number}" for number in range(300)]
    assert write.call_count < 30


def test_while_lines_keep_coming_whoever_logs_wakes_nobody() -> None:
    """To wake the thread for each line cost more than the line."""
    with open(os.devnull, "w") as out:
        writer = logs.Writer(out.fileno())
        writer.setFormatter(logs.JsonLines())
        writer.handle(logging.LogRecord("kvgate", logging.INFO, __file__, 1, "first", (), None))
        with mock.patch.object(writer._some, "set", side_effect=writer._some.set) as woken:
            for number in range(1000):
                writer.handle(logging.LogRecord("kvgate", logging.INFO, __file__, 1, "line %d", (number,), None))
        writer.flush()
    assert woken.call_count < 100


def test_lines_that_nobody_can_take_any_more_are_counted_each() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    writer = logs.Writer(write_end)
    writer.setFormatter(logs.JsonLines())
    for number in range(10):
        writer.handle(logging.LogRecord("kvgate", logging.INFO, __file__, 1, "line %d", (number,), None))
    writer.flush()
    assert writer.dropped >= 10
    # Its end stays open: the thread still says that lines were lost, and must not say it to who has the number next.


def test_a_record_that_cannot_be_written_as_a_line_is_not_lost_without_a_word() -> None:
    read_end, write_end = os.pipe()
    writer = logs.Writer(write_end)
    writer.setFormatter(logs.TextLines())
    writer.handle(logging.LogRecord("kvgate", logging.INFO, __file__, 1, "%d", ("no number",), None))
    writer.handle(logging.LogRecord("kvgate", logging.INFO, __file__, 1, "half an emoji \ud83d", None, None))
    writer.flush()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as reader:
        first, second = reader.read().splitlines()
    assert b"cannot be written" in first
    assert b"ud83d" in second


@contextmanager
def piped(log_format: str = "json") -> Iterator[io.TextIOWrapper]:
    """What comes of logging into a pipe, which nobody else hears then."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as reader, os.fdopen(write_end, "w") as out:
        logs.configure("info", log_format, out)
        yield reader


def flushed(reader: io.TextIOWrapper) -> list[str]:
    for handler in logging.getLogger().handlers:
        handler.flush()
    os.set_blocking(reader.fileno(), False)
    return reader.read().splitlines()


@pytest.mark.parametrize(
    ("log_format", "instant"), [("json", '{"time":"2027-01-15T08:00:00.250Z"'), ("text", "2027-01-15T08:00:00.250Z")]
)
def test_where_only_a_writer_listens_a_frequent_event_is_no_record_on_its_way(log_format: str, instant: str) -> None:
    """And its line is the one that its record would have become."""
    with piped(log_format) as reader, mock.patch.object(time, "time", return_value=1_800_000_000.25):
        with mock.patch.object(logs.Writer, "handle", side_effect=AssertionError("a record was made")):
            EVENT.log(logging.INFO, Fields("completed", blocks=7))
        logging.getLogger("kvgate.test.frequent").info("request", extra={"fields": Fields("completed", blocks=7)})
        one, other = flushed(reader)
    assert one == other
    assert one.startswith(instant)


def test_whoever_comes_to_listen_beside_the_writer_hears_of_frequent_events() -> None:
    heard: list[logging.LogRecord] = []
    listener = logging.NullHandler()
    with piped() as reader, mock.patch.object(listener, "handle", side_effect=heard.append):
        EVENT.log(logging.INFO, Fields("first"))
        for logger in map(logging.getLogger, ("kvgate.test.frequent", "kvgate", "")):
            logger.addHandler(listener)
            EVENT.log(logging.INFO, Fields("second"))
            logger.removeHandler(listener)
        EVENT.log(logging.INFO, Fields("third"))
        written = [json.loads(line)["outcome"] for line in flushed(reader)]
    assert [logs.fields_of(record)["outcome"] for record in heard] == ["second"] * 3
    assert written == ["first", *["second"] * 3, "third"]


def test_a_filter_of_its_logger_is_asked_about_a_frequent_event() -> None:
    with piped() as reader:
        logger = logging.getLogger("kvgate.test.frequent")
        logger.addFilter(lambda record: "kept" in str(logs.fields_of(record)))
        EVENT.log(logging.INFO, Fields("kept"))
        EVENT.log(logging.INFO, Fields("dropped"))
        logger.filters.clear()
        assert [json.loads(line)["outcome"] for line in flushed(reader)] == ["kept"]


def test_a_frequent_event_that_is_no_plain_json_is_a_line_all_the_same() -> None:
    """Its line is made where no caller would see an error, and the thread goes on."""
    with piped() as reader:
        for value in ("日本", "half an emoji \ud83d", 1 << 70, object()):
            EVENT.log(logging.INFO, Fields("completed", error=value))  # type: ignore[arg-type]
        EVENT.log(logging.INFO, Fields("last"))
        lines = [json.loads(line) for line in flushed(reader)]
    assert [line.get("error") for line in lines][:3] == ["日本", "half an emoji \ud83d", 1 << 70]
    assert lines[-1]["outcome"] == "last"


def test_where_only_a_writer_listens_its_thread_makes_fields_of_the_facts() -> None:
    """In both forms; where anybody else listens they are made at once."""
    made_by: list[str] = []

    def fields(outcome: str) -> Fields:
        made_by.append(threading.current_thread().name)
        return Fields(outcome)

    event = logs.FrequentEvent("kvgate.test.frequent", "request", fields)
    for log_format in ("json", "text"):
        with piped(log_format) as reader:
            event.log(logging.INFO, "completed")
            (line,) = flushed(reader)
        assert "completed" in line
    assert made_by == ["log writer", "log writer"]
    out = configured("json")
    event.log(logging.INFO, "completed")
    assert json.loads(out.getvalue())["outcome"] == "completed"
    assert made_by[2:] == [threading.current_thread().name]


def test_facts_of_which_no_fields_can_be_made_are_not_lost_without_a_word_and_stop_nobody() -> None:
    def fields(outcome: str) -> Fields:
        return Fields({"good": "completed"}[outcome])

    event = logs.FrequentEvent("kvgate.test.frequent", "request", fields)
    with piped() as reader:
        for outcome in ("good", "bad", "good"):
            event.log(logging.INFO, outcome)
        first, second, third = flushed(reader)
    assert "kvgate.test.frequent logged as request cannot be written" in second
    assert json.loads(first)["outcome"] == json.loads(third)["outcome"] == "completed"


def test_lines_of_one_instant_differ_in_level_event_and_fields() -> None:
    """Of these lines much is made once. One that cannot be made in place leaves nothing behind among the others."""
    other = logs.FrequentEvent("kvgate.test.frequent", "another", as_they_are)
    said = ((EVENT, logging.INFO, "a"), (other, logging.INFO, "日本"), (EVENT, logging.ERROR, "b"), (EVENT, logging.INFO, "c"))
    with piped() as reader, mock.patch.object(time, "time", return_value=1_800_000_000.25):
        for event, level, text in said:
            event.log(level, Fields("completed", error=text))
        lines = [json.loads(line) for line in flushed(reader)]
    assert {line["time"] for line in lines} == {"2027-01-15T08:00:00.250Z"}
    assert [(line["level"], line["event"], line["error"]) for line in lines] == [
        *(("info", "request", "a"), ("info", "another", "日本"), ("error", "request", "b"), ("info", "request", "c")),
    ]


def test_a_frequent_event_has_the_instant_at_which_it_was_logged() -> None:
    with piped() as reader:
        for instant in (1_800_000_000.0, 1_800_000_001.999):
            with mock.patch.object(time, "time", return_value=instant):
                EVENT.log(logging.INFO, Fields("completed"))
        times = [json.loads(line)["time"] for line in flushed(reader)]
    assert times == ["2027-01-15T08:00:00.000Z", "2027-01-15T08:00:01.999Z"]
