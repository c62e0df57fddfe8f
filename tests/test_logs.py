"""Log lines, as text and as JSON."""

import io
import json
import logging
from collections.abc import Iterator

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
