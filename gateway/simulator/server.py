"""The pretend engine on a socket: `Simulator`, which owns the listening socket, the server and the engine."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Self

import uvicorn

from gateway.simulator.app import App
from gateway.simulator.engine import Engine, EngineShape
from gateway.simulator.openai_requests import Served

MAX_CONNECTIONS = 2048


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: who runs the simulator decides what a signal means. It tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Simulator:
    """`async with Simulator() as simulator:` listens on loopback, by default on a free port, and tells its `url`."""

    def __init__(
        self, shape: EngineShape | None = None, *, served: Served | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """served.max_context and shape.max_context are the same number; given only a shape, the model takes its."""
        self.shape = shape or EngineShape()
        self.served = served or Served(max_context=self.shape.max_context)
        if self.served.max_context != self.shape.max_context:
            raise ValueError("the model and the engine differ in how long a context is")
        self.engine = Engine(self.shape)
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen and begin to run. Raises OSError if the port is taken."""
        # Named, or asyncio does not know it for TCP and leaves Nagle on: a short answer then waits 40 ms for an ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
        except OSError:
            listener.close()
            raise
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            App(self.engine, self.served),
            lifespan="off",
            access_log=False,
            log_config=None,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self.engine.start()
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="simulator-server")
        await self._server.listening.wait()

    async def stop(self) -> None:
        """End the engine, tell whoever still waits for it, and close the socket."""
        if self._server is None or self._serving is None:
            return
        await self.engine.stop()
        self._server.should_exit = True
        await asyncio.wait([self._serving])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
