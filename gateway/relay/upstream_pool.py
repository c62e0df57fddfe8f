"""The warm connections to one backend, and the way a request gets onto one.

The pool promises:
* the connection that was used last is used first, so that the few that are needed stay warm and the rest go cold.
* none is handed out after it lay idle for longer than its limit, nor after the engine closed it.
* a request is sent twice only if a connection that had been used or had lain idle died at once and before any byte of an
  answer, and then once, on a fresh connection. What a fresh connection was given is never sent again: nothing is generated
  twice.
* where many are busy some lie ready, an eighth as many: they are opened ahead while requests come, and go cold when none do.
  None is opened ahead to an engine that serves nothing new, nor beyond its seats: some give every connection a thread.
* a first wave is no storm: how many are opened at the same time is bounded, see `upstream_openings`.
* nothing in the environment redirects it: no proxy, no netrc, no certificate variables. It knows a host and a port.
"""

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.known_answer import KnownAnswer
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_address import UpstreamAddress
from gateway.relay.upstream_connection import UpstreamConnection
from gateway.relay.upstream_openings import UpstreamOpenings
from gateway.relay.upstream_request import WireRequest, write_request

# Shorter than uvicorn's keep-alive of 5 s, the shortest that the engines use.
IDLE_LIMIT_S = 3.0
READ_AHEAD_BYTES = 256 * 1024
# A connection closed for idleness is found dead within a round trip; one that dies later may have begun to generate.
RETRY_WINDOW_S = 1.0
# So many lie ready at most: no burst that one machine relays needs more before others have opened.
_MOST_READY: Final = 32
_READY_SHIFT: Final = 3  # one ready for each eight that are busy; none before that
_NO_CEILING: Final = 1 << 30


class UpstreamPool:
    """tls: None for plain HTTP. server_hostname: the name in the certificate, None for `host`.

    max_idle: how many connections are kept warm at most. How many are in use is for admission to say, not for the pool.
    requests, fresh_requests: how many were sent, and how many of them on a connection that had to be opened.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        backend: BackendName,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect_timeout_s: float = 5.0,
        idle_limit_s: float = IDLE_LIMIT_S,
        max_idle: int = 256,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        retry_window_s: float = RETRY_WINDOW_S,
    ) -> None:
        self._backend = backend
        self._is_tls = tls is not None
        self._address = UpstreamAddress(host, port, tls=tls, server_hostname=server_hostname or host, limit_s=connect_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._idle_limit_s = idle_limit_s
        self._max_idle = max_idle
        self._read_ahead_bytes = read_ahead_bytes
        self._retry_window_s = retry_window_s
        self._ceiling = _NO_CEILING
        self.requests = 0
        self.fresh_requests = 0
        self.openings = UpstreamOpenings(
            self._open, spare=self._keep_spare, too_late=self._too_late, limit_s=connect_timeout_s, name=f"connect to {backend}"
        )
        self._idle: OrderedDict[UpstreamConnection, None] = OrderedDict()  # the one to be used next comes last
        self._busy: dict[UpstreamConnection, UpstreamExchange] = {}
        self._resends: dict[asyncio.Task[None], UpstreamExchange] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.answers = KnownAnswer()

    @property
    def open_connections(self) -> int:
        """Idle ones and those that carry an exchange."""
        return len(self._idle) + len(self._busy)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    async def send(self, method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> UpstreamExchange:
        """Send a request; waits only where no connection is free, until one is or has been opened, never for the answer.

        headers: all but those that frame, see `write_request`, which also says what else may be raised.
        Raises UpstreamFailed (CONNECT, CONNECT_TIMEOUT) if nothing could be sent. Cancelled, it has sent nothing.
        """
        return await self.send_written(write_request(method, target, headers, body))

    async def send_written(self, request: WireRequest) -> UpstreamExchange:
        """As `send`, of a request that is written already."""
        return self._send_on(self._take_idle() or await self._connect(), request)

    def send_at_once(self, request: WireRequest) -> UpstreamExchange | None:
        """As `send_written`, if a connection is free; None if one must be waited for: then nothing was done."""
        connection = self._take_idle()
        return None if connection is None else self._send_on(connection, request)

    def _send_on(self, connection: UpstreamConnection, request: WireRequest) -> UpstreamExchange:
        exchange = UpstreamExchange(self._backend, request, read_ahead_bytes=self._read_ahead_bytes)
        self._busy[connection] = exchange
        self.requests += 1
        connection.send(exchange)
        if len(self._idle) < len(self._busy) >> _READY_SHIFT:
            self._open_ahead()
        return exchange

    def backend_changed(self, *, is_serving: bool, seats: int | None) -> None:
        """What bounds opening ahead: whether the engine serves, and how many connections it has places for, None if many."""
        self._ceiling = 0 if not is_serving else _NO_CEILING if seats is None else seats

    def close(self) -> None:
        """Cut every exchange and close every connection; from now on nothing can be sent. Plain, idempotent."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        closed = UpstreamFailed(self._backend, UpstreamStage.CONNECT, "the gateway has closed its connections")
        self._address.close()
        self.openings.close(closed)
        for connection in list(self._idle):
            connection.close()
        for task, exchange in list(self._resends.items()):
            task.cancel()
            exchange.abort(closed)
        for exchange in list(self._busy.values()):
            exchange.abort(None)

    # Idle connections.

    def _take_idle(self) -> UpstreamConnection | None:
        now = time.monotonic()
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_usable and now - connection.idle_since < connection.idle_limit_s:
                return connection
            connection.close()
        return None

    def settled(self, connection: UpstreamConnection) -> None:
        del self._busy[connection]
        if not (self.openings.waiting and self.openings.give(connection)):
            self._keep(connection)

    def _keep(self, connection: UpstreamConnection) -> None:
        """Let it lie idle."""
        if self._is_closed:
            connection.close()
            return
        connection.is_fresh = False
        connection.idle_since = time.monotonic()
        self._idle[connection] = None
        if len(self._idle) > self._max_idle:
            next(iter(self._idle)).close()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_limit_s, self._close_cold)

    def _keep_spare(self, connection: UpstreamConnection) -> None:
        """Nobody waits for it. It is used after those that are warm."""
        if not connection.is_usable:
            connection.close()
            return
        self._keep(connection)
        if connection in self._idle:
            self._idle.move_to_end(connection, last=False)

    def lost(self, connection: UpstreamConnection) -> None:
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def _close_cold(self) -> None:
        """One timer for the whole pool, and none while nothing is idle."""
        now = time.monotonic()
        for connection in [each for each in self._idle if now - each.idle_since >= each.idle_limit_s]:
            connection.close()
        self._sweep = None
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_limit_s, self._close_cold)

    # Fresh connections.

    def _open_ahead(self) -> None:
        """Too few lie ready for how many are busy."""
        busy = len(self._busy)
        ready = min(busy >> _READY_SHIFT, _MOST_READY, self._max_idle, self._ceiling - busy)
        if ready > len(self._idle):
            self.openings.open_ahead(ready - len(self._idle))

    async def _connect(self, *, is_sent_again: bool = False) -> UpstreamConnection:
        """Wait for a connection. is_sent_again: for a fresh one."""
        since = asyncio.get_running_loop().time()
        is_first = False
        while True:
            self._refuse_if_closed()
            connection = await self.openings.wait(since=since, is_sent_again=is_sent_again, is_first=is_first)
            if connection.is_usable and not self._is_closed:
                self.fresh_requests += connection.is_fresh
                return connection
            connection.close()
            if connection.is_fresh and not self._is_closed:
                raise self._unreachable("the connection was closed as soon as it was open")
            is_first = True

    async def _open(self) -> UpstreamConnection:
        """Open one. Raises UpstreamFailed; the limit in time is set by who calls."""
        connection = UpstreamConnection(
            self, self._backend, default_idle_limit_s=self._idle_limit_s, retry_window_s=self._retry_window_s
        )
        try:
            await self._address.connect(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError):
                raise self._unreachable(f"TLS: {error}") from error
            if isinstance(error, (OSError, UnicodeError)):  # the latter: a host name that no resolver takes
                raise self._unreachable(str(error) or type(error).__name__) from error
            raise
        return connection

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise self._unreachable("the gateway has closed its connections")

    def _too_late(self) -> UpstreamFailed:
        what = "accept" if not self._is_tls else "accept and finish the TLS handshake"
        detail = f"{self._address} did not {what} within {self._connect_timeout_s:g} s"
        return UpstreamFailed(self._backend, UpstreamStage.CONNECT_TIMEOUT, detail)

    def _unreachable(self, detail: str) -> UpstreamFailed:
        return UpstreamFailed(self._backend, UpstreamStage.CONNECT, f"{self._address}: {detail}")

    # The one safe retry.

    def resend(self, exchange: UpstreamExchange) -> None:
        task = asyncio.get_running_loop().create_task(self._send_again(exchange), name=f"resend to {self._backend}")
        self._resends[task] = exchange
        task.add_done_callback(self._resends.pop)

    async def _send_again(self, exchange: UpstreamExchange) -> None:
        try:
            connection = await self._connect(is_sent_again=True)
        except UpstreamFailed as failure:
            exchange.end(failure)
            return
        except BaseException:
            exchange.abort(None)  # whoever waits for it must not wait for ever
            raise
        if exchange.is_ended:  # given up meanwhile
            connection.close()
            return
        self._busy[connection] = exchange
        self.requests += 1
        connection.send(exchange)
