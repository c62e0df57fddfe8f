"""A request's body: read whole, bounded in bytes and in time, and all bodies together bounded in bytes."""

import asyncio
from collections.abc import Callable

from gateway.batched import in_task
from gateway.core.errors import InvalidRequest, Rejected
from gateway.core.outcomes import RejectReason
from gateway.relay.downstream import Client, Headers, too_large
from gateway.relay.headers import header_value


class BodyRoom:
    """The room for bodies of all requests in hand (bytes). A line of a thousand large prompts must not fill the memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0

    def open(self) -> "BodySpace":
        return BodySpace(self)

    def take(self, size_bytes: int) -> None:
        """Raises Rejected if there is no room for so much more. What was taken is given back once, by who took it."""
        if self.taken_bytes + size_bytes > self.limit_bytes:
            raise Rejected(
                f"the bodies of all requests in hand would take more than {self.limit_bytes} bytes (KVGATE_MAX_BODIES)",
                reason=RejectReason.QUEUE_FULL,
                retry_after_s=None,
            )
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes


class BodySpace:
    """What one request takes of the room, from its first byte to its end."""

    __slots__ = ("_room", "_taken_bytes")

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Raises Rejected if there is no room for so much more."""
        self._room.take(size_bytes)
        self._taken_bytes += size_bytes

    def close(self) -> None:
        """The body is needed no more. May be called twice."""
        self._room.give_back(self._taken_bytes)
        self._taken_bytes = 0


async def read_upload(
    client: Client, headers: Headers, take: Callable[[int], None], *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The body, once it has come. Raises InvalidRequest if it is too large, which a stated length tells before a byte is read,
    or too late; Rejected if there is no room for it, as `take` says, which is told the bytes of each part."""
    stated_bytes = client.stated_bytes
    if stated_bytes is None:
        length = header_value(headers, b"content-length")
        stated_bytes = int(length) if length is not None and length.isdigit() else 0
    if stated_bytes > limit_bytes:
        raise too_large(limit_bytes)
    await in_task()
    try:
        async with asyncio.timeout(timeout_s):
            return await client.read_body(limit_bytes, take)
    except TimeoutError:
        raise InvalidRequest("the request body did not arrive in time", reason=RejectReason.UPLOAD_TIMEOUT) from None
