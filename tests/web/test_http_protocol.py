"""What the protocol takes for granted of uvicorn. When one of these fails, uvicorn moved: read its changes, then mend ours."""

import asyncio
import inspect
import random
import tomllib
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.metrics import Metrics
from gateway.web.cycle import Cycle
from gateway.web.door import Door, DoorLimits
from gateway.web.http_protocol import HttpProtocol

LIMITS = DoorLimits(header_bytes=4096, headers=16, url_bytes=256, header_s=1.0, idle_s=1.0, pipelined=2)


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that is never asked."""


def test_the_minor_version_of_uvicorn_is_pinned_to_the_one_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (pin,) = [each for each in project["project"]["dependencies"] if each.startswith("uvicorn")]
    minor = ".".join(version("uvicorn").split(".")[:2])
    assert pin.startswith(f"uvicorn>={minor}"), "a new minor version: do the tests of this file and the cases S still hold?"


def test_every_method_that_is_overridden_is_still_uvicorns() -> None:
    ours = {name for name, value in vars(HttpProtocol).items() if inspect.isfunction(value)}
    called_by_uvicorn = {
        "connection_made",
        "connection_lost",
        "eof_received",
        "data_received",
        "on_message_begin",
        "on_url",
        "on_header",
        "on_headers_complete",
        "on_body",
        "on_message_complete",
        "on_response_complete",
        "shutdown",
    }
    assert called_by_uvicorn <= ours
    for name in called_by_uvicorn:
        assert callable(getattr(HttpToolsProtocol, name)), name
        theirs, mine = (inspect.signature(getattr(kind, name)) for kind in (HttpToolsProtocol, HttpProtocol))
        assert list(theirs.parameters) == list(mine.parameters), name
    # Nothing else of uvicorn's may be replaced by accident.
    assert {name for name in ours if hasattr(HttpToolsProtocol, name)} == called_by_uvicorn | {"__init__"}
    assert not {name for name in vars(HttpToolsProtocol) if name.startswith("on_")} - called_by_uvicorn


def test_a_cycle_is_made_and_works_as_uvicorns_is() -> None:
    assert list(inspect.signature(RequestResponseCycle.__init__).parameters)[1:] == [
        "scope",
        "transport",
        "flow",
        "logger",
        "access_logger",
        "access_log",
        "default_headers",
        "message_event",
        "expect_100_continue",
        "keep_alive",
        "on_response",
    ]
    made = vars(
        Cycle(**dict.fromkeys(list(inspect.signature(RequestResponseCycle.__init__).parameters)[1:], None))  # type: ignore[arg-type]
    )
    used = {"disconnected", "keep_alive", "waiting_for_100_continue", "body", "more_body", "response_started"}
    used |= {"response_complete", "chunked_encoding", "expected_content_length", "message_event", "transport", "scope"}
    assert used <= made.keys()
    overridden = {name for name in vars(Cycle) if hasattr(RequestResponseCycle, name) and not name.startswith("__")}
    assert overridden == {"receive", "send"}


def test_reading_is_paused_and_resumed_where_uvicorn_does() -> None:
    assert flow_control.HIGH_WATER_LIMIT == 65_536
    for name in ("pause_reading", "resume_reading", "pause_writing", "resume_writing", "drain"):
        assert callable(getattr(flow_control.FlowControl, name))
    source = inspect.getsource(RequestResponseCycle.send)
    # Ours rests on these: no chunks if it is told that there are none, one end, and the close left to the protocol.
    for line in ("if self.chunked_encoding is None", "if not self.keep_alive:\n", "self.on_response()", "self.flow.drain()"):
        assert line in source, line
    assert "on_response_complete" in inspect.getsource(httptools_impl.HttpToolsProtocol.on_headers_complete)


async def test_uvicorn_makes_its_connections_by_the_factory_that_it_is_given() -> None:
    door = Door("data", LIMITS, Metrics("test"), random.Random(1))
    config = Config(nothing, http=partial(HttpProtocol, door, None), lifespan="off", log_config=None, ws="none")  # type: ignore[arg-type]
    config.load()
    assert list(inspect.signature(HttpToolsProtocol.__init__).parameters)[1:] == [
        "config",
        "server_state",
        "app_state",
        "_loop",
    ]
    made = config.http_protocol_class(  # type: ignore[call-arg]
        config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    assert isinstance(made, HttpProtocol)
    needs = {"parser", "flow", "transport", "loop", "tasks", "connections", "server_state", "app", "scope", "headers", "url"}
    assert needs - {"url"} <= vars(made).keys()
    assert "http_protocol_class(" in inspect.getsource(uvicorn.Server.startup)
    assert "connection.shutdown()" in inspect.getsource(uvicorn.Server.shutdown)


OFFER = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\n"


def test_the_parser_stops_behind_a_head_that_offers_an_upgrade_and_says_where() -> None:
    class Callbacks:
        seen: list[str]

        def __init__(self) -> None:
            self.seen = []

        def on_headers_complete(self) -> None:
            self.seen.append("head")

        def on_body(self, body: bytes) -> None:
            self.seen.append("body")

        def on_message_complete(self) -> None:
            self.seen.append("end")

    callbacks = Callbacks()
    parser = httptools.HttpRequestParser(callbacks)
    with pytest.raises(httptools.HttpParserUpgrade) as stopped:
        parser.feed_data(OFFER + b"hello")
    assert stopped.value.args[0] == len(OFFER)
    assert callbacks.seen == ["head", "end"]  # an end that is none: the protocol does not believe it


def test_an_exception_in_a_callback_stops_the_parser_with_an_error_of_its_own() -> None:
    class Callbacks:
        def on_header(self, name: bytes, value: bytes) -> None:
            raise ValueError("enough")

    with pytest.raises(httptools.HttpParserError):
        httptools.HttpRequestParser(Callbacks()).feed_data(OFFER)
