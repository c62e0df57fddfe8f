"""Where a backend is: its host and port, and the addresses behind the host's name.

It promises:
* an address in figures is asked of nobody. A name is looked up once, however many ask at the same time, and what was found
  is kept for some seconds.
* of several addresses each is tried in turn, the one that took a connection last first; none but the last may use up the
  time that there is for all.
* what was found before fails nobody: if none of it takes a connection, it is forgotten and the name looked up once more.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

KEPT_S: Final = 15.0
LookUp = Callable[[str, int], Coroutine[Any, Any, list[str]]]


class UpstreamAddress:
    """tls: None for plain TCP. server_hostname: the name in the certificate. limit_s: the time for one connection.

    look_up: tells the addresses of a name, for a port. Raises OSError, or UnicodeError.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        server_hostname: str,
        limit_s: float,
        look_up: LookUp | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._server_hostname = server_hostname if tls is not None else None
        self._limit_s = limit_s
        self._look_up = look_up or _look_up
        self._in_figures = _is_in_figures(host)
        self._found: list[str] = []
        self._found_at = 0.0
        self._lookup: asyncio.Task[list[str]] | None = None

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect `protocol`. Raises OSError, ssl.SSLError among them, and UnicodeError for a name that no resolver takes."""
        if self._in_figures:
            await self._connect_to(self._host, protocol)
            return
        if self._found and asyncio.get_running_loop().time() - self._found_at < KEPT_S:
            try:
                await self._connect_to_any(self._found, protocol)
                return
            except ssl.SSLError:
                raise
            except OSError:
                self._found = []
        await self._connect_to_any(await self._addresses(), protocol)

    def close(self) -> None:
        """Look nothing up any more. Plain, idempotent."""
        if self._lookup is not None:
            self._lookup.cancel()

    async def _connect_to_any(self, addresses: list[str], protocol: asyncio.Protocol) -> None:
        failures: list[str] = []
        for number, address in enumerate(addresses):
            is_last = number == len(addresses) - 1
            try:
                async with asyncio.timeout(None if is_last else self._limit_s / len(addresses)):
                    await self._connect_to(address, protocol)
            except ssl.SSLError:
                raise  # who answers there is not who was meant
            except OSError as failure:  # TimeoutError is one
                failures.append(f"{address}: {str(failure) or 'does not accept'}")
            else:
                if number:
                    self._found = addresses[number:] + addresses[:number]
                return
        raise OSError(", ".join(failures))

    async def _connect_to(self, address: str, protocol: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(
            lambda: protocol, address, self._port, ssl=self._tls, server_hostname=self._server_hostname
        )

    async def _addresses(self) -> list[str]:
        if self._lookup is None:
            look_up = self._look_up(self._host, self._port)
            self._lookup = asyncio.get_running_loop().create_task(look_up, name=f"look up {self._host}")
            self._lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(self._lookup)

    def _looked_up(self, lookup: asyncio.Task[list[str]]) -> None:
        self._lookup = None
        # Asked for its exception, it does not complain where all who waited for it have gone.
        if not lookup.cancelled() and lookup.exception() is None:
            self._found = lookup.result()
            self._found_at = asyncio.get_running_loop().time()


async def _look_up(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_in_figures(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
