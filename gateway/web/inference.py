"""The inference routes as both fronts serve them: the protocol, for ordinary requests, and ASGI for all others."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from gateway.batched import BatchedTask, Batches
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Dialect
from gateway.relay.downstream import Client
from gateway.web.inference_head import InferenceHead
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_client
from gateway.web.turnstile import Turnstile
from gateway.web.wire_client import WireClient

_BY_TARGET: Final[Mapping[bytes, Dialect]] = {path.encode(): dialect for path, dialect in DIALECTS.items()}


class Inference:
    """POST on the routes of every dialect, of which a few begin a turn. batches: of those that are served without ASGI."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._turnstile = Turnstile()
        self.batches = Batches()

    @staticmethod
    def find(target: bytes) -> tuple[Dialect, bytes] | None:
        """The dialect and the query of a target as its request line has it; None if it is no such route, or written oddly."""
        path, _, query = target.partition(b"?")
        dialect = _BY_TARGET.get(path)
        return None if dialect is None else (dialect, query)

    async def serve(self, head: InferenceHead, client: Client) -> None:
        """Serve one call to its end."""
        if not self._turnstile.lets_pass():
            await self._turnstile.enter()
        task = asyncio.current_task()
        assert task is not None, "an ASGI server calls its application in a task"
        await serve_client(self._rooms, head, client, task)

    def begin(self, head: InferenceHead, client: WireClient, loop: asyncio.AbstractEventLoop, tasks: set[Any]) -> BatchedTask:
        """Have the client served from the next turn on, in a task that is among `tasks`, for who stops the server, until it is
        over."""
        task = self.batches.begin(self.serve_wire(head, client), loop, tasks.discard)
        tasks.add(task)
        return task

    async def serve_wire(self, head: InferenceHead, client: WireClient) -> None:
        """As `serve`, in the client's own task."""
        try:
            await serve_client(self._rooms, head, client, client.task)
        finally:
            client.close()
