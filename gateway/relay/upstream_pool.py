"""The warm connections to one backend, and the way a request gets onto one.

The pool promises:
* the connection that was used last is used first, so that the few that are needed stay warm and the rest go cold.
* none is handed out after it lay idle for longer than its limit, nor after the engine closed it.
* a request is sent twice only if a *reused* connection died at once and before any byte of an answer, and then once, on a
  fresh connection. What a fresh connection was given is never sent again: nothing is generated twice.
* nothing in the environment redirects it: no proxy, no netrc, no certificate variables. It knows a host and a port.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_connection import UpstreamConnection
from gateway.relay.upstream_request import WireRequest, write_request

# Shorter than uvicorn's keep-alive of 5 s, the shortest that the engines use.
IDLE_LIMIT_S = 3.0
READ_AHEAD_BYTES = 256 * 1024
# A connection closed for idleness is found dead within a round trip; one that dies later may have begun to generate.
RETRY_WINDOW_S = 1.0


class UpstreamPool:
    """tls: None for plain HTTP. server_hostname: the name in the certificate, None for `host`.

    max_idle: how many connections are kept warm at most. How many are in use is for admission to say, not for the pool.
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
        self._host = host
        self._port = port
        self._backend = backend
        self._tls = tls
        self._server_hostname = server_hostname
        self._connect_timeout_s = connect_timeout_s
        self._idle_limit_s = idle_limit_s
        self._max_idle = max_idle
        self._read_ahead_bytes = read_ahead_bytes
        self._retry_window_s = retry_window_s
        self._idle: dict[UpstreamConnection, None] = {}  # in the order of going idle
        self._busy: dict[UpstreamConnection, UpstreamExchange] = {}
        self._resends: dict[asyncio.Task[None], UpstreamExchange] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def open_connections(self) -> int:
        """Idle ones and those that carry an exchange."""
        return len(self._idle) + len(self._busy)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    async def send(self, method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> UpstreamExchange:
        """Send a request; waits only if a connection must be opened, never for the answer.

        headers: all but those that frame, see `write_request`, which also says what else may be raised.
        Raises UpstreamFailed (CONNECT, CONNECT_TIMEOUT) if nothing could be sent. Cancelled, it has sent nothing.
        """
        return await self.send_written(write_request(method, target, headers, body))

    async def send_written(self, request: WireRequest) -> UpstreamExchange:
        """As `send`, of a request that is written already."""
        exchange = UpstreamExchange(self._backend, request, read_ahead_bytes=self._read_ahead_bytes)
        connection = self._take_idle() or await self._connect()
        self._busy[connection] = exchange
        connection.send(exchange)
        return exchange

    def close(self) -> None:
        """Cut every exchange and close every connection; from now on nothing can be sent. Plain, idempotent."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        closed = UpstreamFailed(self._backend, UpstreamStage.CONNECT, "the gateway has closed its connections")
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
        if self._is_closed:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        self._idle[connection] = None
        if len(self._idle) > self._max_idle:
            next(iter(self._idle)).close()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_limit_s, self._close_cold)

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

    async def _connect(self) -> UpstreamConnection:
        self._refuse_if_closed()
        connection = UpstreamConnection(
            self, self._backend, default_idle_limit_s=self._idle_limit_s, retry_window_s=self._retry_window_s
        )
        try:
            await self._open(connection)
            self._refuse_if_closed()
            if not connection.is_usable:
                raise self._unreachable("the connection was closed as soon as it was open")
        except BaseException:
            connection.close()
            raise
        return connection

    async def _open(self, connection: UpstreamConnection) -> None:
        server_hostname = (self._server_hostname or self._host) if self._tls is not None else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, self._host, self._port, ssl=self._tls, server_hostname=server_hostname
                )
        except TimeoutError as error:
            what = "accept" if self._tls is None else "accept and finish the TLS handshake"
            detail = f"{self._host}:{self._port} did not {what} within {self._connect_timeout_s:g} s"
            raise UpstreamFailed(self._backend, UpstreamStage.CONNECT_TIMEOUT, detail) from error
        except ssl.SSLError as error:
            raise self._unreachable(f"TLS: {error}") from error
        except (OSError, UnicodeError) as error:  # the latter: a host name that no resolver takes
            raise self._unreachable(str(error) or type(error).__name__) from error

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise self._unreachable("the gateway has closed its connections")

    def _unreachable(self, detail: str) -> UpstreamFailed:
        return UpstreamFailed(self._backend, UpstreamStage.CONNECT, f"{self._host}:{self._port}: {detail}")

    # The one safe retry.

    def resend(self, exchange: UpstreamExchange) -> None:
        task = asyncio.get_running_loop().create_task(self._send_again(exchange), name=f"resend to {self._backend}")
        self._resends[task] = exchange
        task.add_done_callback(self._resends.pop)

    async def _send_again(self, exchange: UpstreamExchange) -> None:
        try:
            connection = await self._connect()
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
        connection.send(exchange)
