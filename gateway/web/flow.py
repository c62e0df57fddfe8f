"""Who waits until a client takes more: uvicorn's flow control, with nothing kept for it while nobody waits."""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Of one connection. An event and its line of waiters would be most of what a connection keeps for this."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._writable: asyncio.Event | None = None

    async def drain(self) -> None:
        if self.write_paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None
