"""Short ways to say what tests of the upstream client do all the time."""

from collections.abc import Callable

import pytest

from gateway.core.errors import UpstreamFailed
from gateway.relay.upstream import UpstreamExchange, UpstreamHead
from gateway.relay.upstream_pool import UpstreamPool

PoolMaker = Callable[..., UpstreamPool]  # what the fixture `make_pool` gives


async def post(pool: UpstreamPool, tag: str = "", body: bytes = b"{}", *, method: bytes = b"POST") -> UpstreamExchange:
    """Send a request tagged `tag`."""
    return await pool.send(method, b"/v1/chat/completions", [(b"host", b"fake"), (b"x-tag", tag.encode())], body)


async def rest_of(exchange: UpstreamExchange) -> bytes:
    """The body from here to its clean end."""
    parts = []
    while data := await exchange.read():
        parts.append(data)
    return b"".join(parts)


async def whole(exchange: UpstreamExchange) -> tuple[UpstreamHead, bytes]:
    """Head and body."""
    head = await exchange.head()
    return head, await rest_of(exchange)


async def failure_of(exchange: UpstreamExchange) -> UpstreamFailed:
    """How the exchange breaks; a test's failure if it does not."""
    with pytest.raises(UpstreamFailed) as failed:
        await whole(exchange)
    assert exchange.failure is failed.value
    return failed.value
