"""The door of one port: who may come in, how much may be sent before anything is answered, and how long we wait for it.

A door keeps the connections of its port, counts them, and watches their clocks: one sweep for all of them, no timer and no
task for each. What it turns away gets one clear answer and is counted by its reason. The two ports have a door each, so
that a crowd before the inference routes never keeps an operator from `/health` and `/metrics`.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from gateway.metrics import Metrics

# Whoever is told that the connection ends gets this long to read it, and to end it first: closed with bytes unread, the
# kernel would answer with a reset, and the peer might never see our last words.
LINGER_S: Final = 2.0
# More than so many are not waited for: what comes then is closed at once, however it may look to the client.
MAX_TURNED_AWAY: Final = 256


class DoorReason(StrEnum):
    """Why a connection was turned away or ended at the door. The value is the error's `code` and the metric's `reason`."""

    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_FROM_ADDRESS = "too_many_connections_from_address"
    TOO_MANY_PIPELINED = "too_many_pipelined_requests"
    HEADER_TIMEOUT = "header_timeout"
    HEADERS_TOO_LARGE = "headers_too_large"
    TOO_MANY_HEADERS = "too_many_headers"
    URL_TOO_LONG = "url_too_long"
    MALFORMED = "malformed_http"
    HOST = "host_header"
    VERSION = "http_version"
    TRANSFER_CODING = "transfer_coding"
    EXPECTATION = "expectation"


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What one connection may ask of us, and how many there may be.

    header_bytes: all fields of a head. url_bytes: the request's target. header_s: from the connection, or from a head's
    first byte, to its end. idle_s: between two requests. pipelined: requests taken behind one that is not answered yet.
    connections: in all, per_address: from one address; None: as many as come.
    """

    header_bytes: int
    headers: int
    url_bytes: int
    header_s: float
    idle_s: float
    pipelined: int
    connections: int | None = None
    per_address: int | None = None


class Guest(Protocol):
    """A connection, as its door sees it."""

    address: str | None

    def head_is_late(self) -> None: ...

    def has_idled(self) -> None: ...

    def has_lingered(self) -> None: ...


class Waiting:
    """Connections that wait for the same thing equally long, in the order in which they began to: the first is due first."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[Guest, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, guest: Guest) -> None:
        """It waits from now on, whatever it waited for before."""
        self._since.pop(guest, None)
        self._since[guest] = time.monotonic()

    def end(self, guest: Guest) -> None:
        self._since.pop(guest, None)

    def take_late(self, now: float) -> list[Guest]:
        """Those who have waited for the whole limit; they wait no more."""
        late: list[Guest] = []
        for guest, since in self._since.items():
            if now - since < self._limit_s:
                break
            late.append(guest)
        for guest in late:
            del self._since[guest]
        return late


class Door:
    """port: the label of its metrics. A connection is in at most one of `heads`, `idle` and `lingering` at a time."""

    def __init__(self, port: str, limits: DoorLimits, metrics: Metrics, jitter: random.Random) -> None:
        self.port = port
        self.limits = limits
        self.jitter = jitter
        self.heads = Waiting(limits.header_s)
        self.idle = Waiting(limits.idle_s)
        self.lingering = Waiting(LINGER_S)
        self._metrics = metrics
        self._inside: set[Guest] = set()
        self._turned_away: set[Guest] = set()
        self._by_address: Counter[str] = Counter()
        self._period_s = min(max(min(limits.header_s, limits.idle_s, LINGER_S) / 4, 0.02), 1.0)
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Those that were let in and are open."""
        return len(self._inside)

    def come(self, guest: Guest) -> DoorReason | None:
        """A connection was made. None: it is in. Otherwise why not, counted; it is told so, or closed if `is_crowded`."""
        self._see_to_sweep()
        limits = self.limits
        if limits.connections is not None and len(self._inside) >= limits.connections:
            reason = DoorReason.TOO_MANY_CONNECTIONS
        elif (
            limits.per_address is not None
            and guest.address is not None
            and self._by_address[guest.address] >= limits.per_address
        ):
            reason = DoorReason.TOO_MANY_FROM_ADDRESS
        else:
            self._inside.add(guest)
            if guest.address is not None and limits.per_address is not None:
                self._by_address[guest.address] += 1
            return None
        self._turned_away.add(guest)
        self.refused(reason)
        return reason

    @property
    def is_crowded(self) -> bool:
        """So many were turned away and have not left that no more can be told why."""
        return len(self._turned_away) > MAX_TURNED_AWAY

    def leave(self, guest: Guest) -> None:
        """The connection is gone. May be told twice."""
        for waiting in (self.heads, self.idle, self.lingering):
            waiting.end(guest)
        self._turned_away.discard(guest)
        if guest in self._inside:
            self._inside.discard(guest)
            address = guest.address
            if address is not None and address in self._by_address:
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

    def refused(self, reason: DoorReason) -> None:
        self._metrics.refused_at_door(self.port, reason.value)

    def sweep(self, now: float) -> None:
        """End the waits that have lasted too long."""
        for guest in self.heads.take_late(now):
            guest.head_is_late()
        for guest in self.idle.take_late(now):
            guest.has_idled()
        for guest in self.lingering.take_late(now):
            guest.has_lingered()

    def _see_to_sweep(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._period_s, self._sweep_again)

    def _sweep_again(self) -> None:
        """The one timer of this port, and none while nobody is there."""
        self._sweep = None
        self.sweep(time.monotonic())
        if self._inside or self._turned_away:
            self._see_to_sweep()

    def __repr__(self) -> str:
        return (
            f"<door of the {self.port} port: {self.connections} connections, {len(self.heads)} in a head, "
            f"{len(self.idle)} idle, {len(self.lingering)} leaving>"
        )
