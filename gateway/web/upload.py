"""A request's body: read whole, bounded in bytes and in time."""

import asyncio

from gateway.core.errors import InvalidRequest
from gateway.core.outcomes import RejectReason
from gateway.relay.downstream import AsgiDownstream, Headers
from gateway.relay.headers import header_value


async def read_upload(client: AsgiDownstream, headers: Headers, *, limit_bytes: int, timeout_s: float) -> bytes:
    """The body. Raises InvalidRequest if it is too large, which a stated length tells before a byte is read, or too late."""
    length = header_value(headers, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit_bytes:
        raise InvalidRequest(
            f"the request body is larger than {limit_bytes} bytes",
            reason=RejectReason.BODY_TOO_LARGE,
            facts={"limit_bytes": limit_bytes},
        )
    try:
        async with asyncio.timeout(timeout_s):
            return await client.read_body(limit_bytes)
    except TimeoutError:
        raise InvalidRequest("the request body did not arrive in time", reason=RejectReason.UPLOAD_TIMEOUT) from None
