"""Waiting words: a stream that has waited in line for long is answered early, so that its client, and every proxy on the way,
can tell waiting from hanging.

After `after_s` in line the head goes out, status 200, and from then on now and then where the request stands, in comments or
pings of its dialect. What that costs: whatever happens later can be told only within the stream, and an SDK does not retry
it. So it is off unless the operator asks for it, and only streams are answered so.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.clock import Clock
from gateway.core.decisions import Standing
from gateway.dialects.dialect import Dialect
from gateway.relay.downstream import Downstream, Headers
from gateway.relay.headers import answer_headers

# Shorter than the idle limits of usual proxies, of which 30 s is the least.
PERIOD_S: Final = 5.0

_STREAM_HEAD: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]


class WaitingWords:
    """What one request is told while it waits, from its joining the line until `stop`.

    own_headers: what every answer carries, asked for when the head goes out. standing: where the request stands, None if it
    waits no more. The line's owner may write to the client only after `stop`.
    """

    def __init__(
        self,
        client: Downstream,
        dialect: Dialect,
        clock: Clock,
        *,
        after_s: float,
        own_headers: Callable[[], Headers],
        standing: Callable[[], Standing | None],
    ) -> None:
        self.have_begun = False
        self._client = client
        self._dialect = dialect
        self._clock = clock
        self._after_s = after_s
        self._own_headers = own_headers
        self._standing = standing
        self._is_stopped = False
        self._task = asyncio.create_task(self._speak(), name="waiting words")

    async def _speak(self) -> None:
        await self._clock.sleep_until(self._clock.now() + self._after_s)
        await self._client.write_head(
            200, answer_headers(_STREAM_HEAD, self._own_headers(), is_event_stream=True, length_changes=True)
        )
        # A write that is cut off while it waits for the client has written nothing: so this is true just when the head is out.
        self.have_begun = True
        while (standing := self._standing()) is not None:
            await self._client.write_body(self._dialect.waiting_event(in_words(standing)))
            await self._clock.sleep_until(self._clock.now() + PERIOD_S)

    def stop(self) -> None:
        """Nothing more is said. Plain, idempotent; the first time it raises what went wrong, if anything did."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if not self._task.done():
            self._task.cancel()
        elif not self._task.cancelled():
            self._task.result()


def in_words(standing: Standing) -> str:
    """One line, for whoever watches the stream."""
    about = "" if standing.wait_s is None else f", about {standing.wait_s:.0f} s"
    return f"kvgate: waiting for KV cache, {standing.ahead} ahead{about}"
