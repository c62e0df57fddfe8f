"""uvicorn as both ports use it: our protocol, no signals, no headers of its own."""

import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import uvicorn

from gateway.web.door import Door
from gateway.web.http_protocol import HttpProtocol
from gateway.web.inference import Inference

# libuv takes one newcomer in a turn of the loop from each listening socket. In a turn of some milliseconds, as they are under
# load, a wave of 500 would stand outside for seconds. Each socket more costs a lone newcomer 3 us.
TAKEN_PER_TURN: Final = 8
# After the drain only answers remain that were told to end; their connections get this long to take the last bytes.
LAST_BYTES_S: Final = 2


class Server(uvicorn.Server):
    """One port. Signals are the gateway's, which drains first. inference: what is taken past `app`, None: nothing is."""

    def __init__(self, app: Any, door: Door, *, inference: Inference | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(HttpProtocol, door, inference),  # type: ignore[arg-type]  # uvicorn only calls it
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=LAST_BYTES_S,
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Take newcomers from these, several in a turn of the loop."""
        await super().serve([each for one in sockets or () for each in (one, *(one.dup() for _ in range(TAKEN_PER_TURN - 1)))])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(setting: str, host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError with one sentence that names the address and the setting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} ({setting}): {error.strerror or error}") from error


def url_of(sock: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
