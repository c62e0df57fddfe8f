"""`/console` on the admin port: the page and its stream. Nothing on it comes from anywhere else, and it can send nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI, Response

from gateway.relay.downstream import Receive, Send, break_off
from gateway.relay.headers import header_value
from gateway.web.console.feed import Feed
from gateway.web.control_errors import error_response

# A viewer that takes nothing for so long is not there any more, whatever its connection says.
SEND_S: Final = 30.0
_RETRY_MS: Final = 2000

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}

_ASSETS: Final[Mapping[str, tuple[str, str]]] = {
    "/console": ("index.html", "text/html; charset=utf-8"),
    "/console/console.js": ("console.js", "text/javascript; charset=utf-8"),
    "/console/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_console(app: FastAPI, feed: Feed) -> None:
    """The page, its files, and `/console/events`."""
    for path, (name, media_type) in _ASSETS.items():
        body = (files("gateway.web.console") / name).read_bytes()
        app.add_api_route(
            path, _serving(body, media_type), methods=["GET", "HEAD"], tags=["console"], summary=f"The console: {name}"
        )

    @app.get("/console/events", tags=["console"], summary="A snapshot a second, as server-sent events")
    async def events() -> Response:
        return _Events(feed)


def _serving(body: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:
        return Response(body, media_type=media_type, headers=dict(HEADERS))

    return serve


class _Events(Response):
    """One viewer's stream, until it leaves or the feed ends."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        site = header_value(scope["headers"], b"sec-fetch-site")
        if site not in (None, b"same-origin", b"none"):
            # A page of elsewhere could not read it, and yet take the places of those who may.
            refused = error_response(403, "foreign_page", "this stream is for the console's own page")
            await refused(scope, receive, send)
            return
        viewer = self._feed.join()
        if viewer is None:
            refused = error_response(503, "too_many_viewers", "as many consoles are open as may be, or the gateway is stopping")
            await refused(scope, receive, send)
            return
        departure = asyncio.create_task(_departure(receive), name="console viewer")
        departure.add_done_callback(lambda _: viewer.close())
        try:
            headers = {**HEADERS, "content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
            head = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await _write(send, b"retry: %d\n\n" % _RETRY_MS)
            while (snapshot := await viewer.next()) is not None:
                await _write(send, b"data: %b\n\n" % snapshot)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            break_off(send)
        finally:
            self._feed.leave(viewer)
            departure.cancel()


async def _write(send: Send, data: bytes) -> None:
    async with asyncio.timeout(SEND_S):
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
