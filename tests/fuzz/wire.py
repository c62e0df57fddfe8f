"""An upstream connection without a network: bytes are put into it by hand, and what becomes of it is remembered."""

import asyncio
from collections.abc import Iterable

from gateway.core.names import BackendName
from gateway.relay.known_answer import KnownAnswer
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_connection import UpstreamConnection
from gateway.relay.upstream_request import write_request

BACKEND = BackendName("fake")


class NoTransport(asyncio.Transport):
    """Goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class Keeper:
    """Stands where the pool stands."""

    def __init__(self) -> None:
        self.answers = KnownAnswer()
        self.is_kept = False
        self.is_lost = False

    def settled(self, connection: UpstreamConnection) -> None:
        assert not self.is_lost
        assert connection.is_usable
        self.is_kept = True

    def lost(self, connection: UpstreamConnection) -> None:
        self.is_lost = True

    def resend(self, exchange: UpstreamExchange) -> None:
        raise AssertionError("a fresh connection is never retried")


class Wire:
    """One request on one fresh connection."""

    def __init__(self, method: bytes = b"POST") -> None:
        self.keeper = Keeper()
        self.transport = NoTransport()
        self.connection = UpstreamConnection(self.keeper, BACKEND, default_idle_limit_s=3.0, retry_window_s=1.0)
        self.connection.connection_made(self.transport)
        self.ends = 0
        self.exchange = UpstreamExchange(
            BACKEND, write_request(method, b"/", [(b"host", b"fake")], b"{}"), read_ahead_bytes=1 << 30
        )
        self.exchange.on_end(self._ended)
        self.connection.send(self.exchange)

    def _ended(self) -> None:
        self.ends += 1

    def feed(self, pieces: Iterable[bytes]) -> None:
        """What arrives. After we have closed, nothing does."""
        for piece in pieces:
            if self.transport.is_closed:
                return
            self.connection.data_received(piece)

    def end(self, *, by_reset: bool = False) -> None:
        """The engine closes, in an orderly way or by a reset; then the connection is gone."""
        if not self.transport.is_closed and not by_reset:
            self.connection.eof_received()
        self.connection.connection_lost(ConnectionResetError() if by_reset else None)
