"""Control routes take small bodies: each is read whole, within a bound and a time, before the application behind is called.

Frameworks read a body as long as it comes. Read here, it is bounded on every route, also on those that ignore it, and a
broken one is the caller's error.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.core.errors import GatewayError
from gateway.relay.downstream import AsgiDownstream, Message, Receive, Send
from gateway.web.plain_errors import write_error
from gateway.web.upload import BodyRoom, read_upload

LIMIT_BYTES: Final = 64 * 1024

App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


class SmallBodies:
    """An ASGI application in front of `app`. timeout_s: for the whole body. room: for the bodies of all its requests."""

    def __init__(self, app: App, *, room: BodyRoom, timeout_s: float, jitter: random.Random) -> None:
        self._app = app
        self._room = room
        self._timeout_s = timeout_s
        self._jitter = jitter

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = AsgiDownstream(receive, send)
        space = self._room.open()
        try:
            body = await read_upload(client, scope["headers"], space.take, limit_bytes=LIMIT_BYTES, timeout_s=self._timeout_s)
            if not client.gone:
                await self._app(scope, _read_already(body, receive), send)
        except GatewayError as error:
            await write_error(client, error, self._jitter, path=scope["path"])
        finally:
            space.close()


def _read_already(body: bytes, receive: Receive) -> Receive:
    """A `receive` that tells the body first, then what the server tells."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return first.pop() if first else await receive()

    return read
