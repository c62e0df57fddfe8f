"""One request and its answer on a connection: uvicorn's cycle, and what it does not do.

HTTP/1.0 gets its answer without chunks and sees when it broke off, a body that turns out broken is the application's to
answer, 100 is said to nobody who has not waited for it, and how the connection ends is left to the protocol.
"""

import asyncio
import socket
import struct
from typing import Final, Self
from urllib.parse import unquote

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent, HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.core.errors import InvalidRequest
from gateway.relay.headers import date_header
from gateway.web.request_head import path_and_query

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def http_scope(method: bytes, path: bytes, query: bytes, *, version: str, headers: list[tuple[bytes, bytes]]) -> HTTPScope:
    """The ASGI scope of a request, but for what it says of the connection. path: percent-encoded."""
    plain = path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "server": None,
        "client": None,
        "scheme": "http",
        "root_path": "",
        "headers": headers,
        "state": {},
        "method": method.decode("ascii"),
        "path": unquote(plain) if "%" in plain else plain,
        "raw_path": path,
        "query_string": query,
    }


class Cycle(RequestResponseCycle):
    """One request and its answer.

    is_last: the connection ends with this answer. fault: what is wrong with the request's body, raised by `receive`.
    """

    is_last = False
    fault: InvalidRequest | None = None
    _ends_with_connection = False

    def take_body(self, data: bytes) -> None:
        """More of the body has come."""
        self.body += data
        self.message_event.set()

    @property
    def unread_bytes(self) -> int:
        """Of the body, that nobody has asked for yet."""
        return len(self.body)

    def end_body(self) -> None:
        """The body is whole."""
        self.more_body = False
        self.message_event.set()

    def leave(self) -> None:
        """The client has gone."""
        self.disconnected = True
        self.message_event.set()

    def break_body(self, why: str) -> None:
        """The body will never be whole."""
        self.fault = InvalidRequest(why)
        self.keep_alive = False
        self.message_event.set()

    def break_off(self) -> None:
        """End the answer at once, so that nobody can take it for whole."""
        if self._ends_with_connection:
            # To an HTTP/1.0 client the tidy end of the connection is the tidy end of the answer.
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    @classmethod
    def on(cls, connection: HttpToolsProtocol, version: str, expectation: bytes | None) -> Self | None:
        """That of a request whose head a connection has read; None if its target is refused. version: of HTTP."""
        parser = connection.parser
        method = parser.get_method()
        target = path_and_query(method, connection.url)
        if target is None:
            return None
        scope = connection.scope = http_scope(method, *target, version=version, headers=connection.headers)
        scope["server"], scope["client"], scope["scheme"] = connection.server, connection.client, connection.scheme or "http"
        scope["state"] = connection.app_state.copy()
        return cls(
            scope=scope,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expectation is not None and version == "1.1",
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            on_response=connection.on_response_complete,
        )

    async def receive(self) -> ASGIReceiveEvent:
        if self.waiting_for_100_continue and (self.body or not self.more_body):
            self.waiting_for_100_continue = False  # it did not wait
        message = await super().receive()
        if self.fault is not None and not self.disconnected and not self.response_complete:
            raise self.fault
        return message

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            if self.more_body:
                self.keep_alive = False  # what is still to come of the body cannot be told from a next request
            headers = message.get("headers", ())
            if not any(name.lower() == b"date" for name, _ in headers):
                message["headers"] = [*headers, date_header()]  # uvicorn's own would stand beside an engine's
            if self.scope["http_version"] == "1.0" and not any(name.lower() == b"content-length" for name, _ in headers):
                self._ends_with_connection = True
                self.chunked_encoding = False
        elif message["type"] == "http.response.body" and self.response_started:
            if self._ends_with_connection:
                self.expected_content_length = len(message.get("body", b""))
            if not message.get("more_body", False) and not self.keep_alive:
                # How the connection ends is the protocol's affair: the client may still be sending.
                self.is_last = self.keep_alive = True
        await super().send(message)
