"""Which requests go from the connection straight to the relay, and which by way of ASGI."""

import asyncio
import random
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.batched import Batches
from gateway.dialects import DIALECTS
from gateway.metrics import Metrics
from gateway.web.door import Door, DoorLimits
from gateway.web.http_protocol import HttpProtocol
from gateway.web.inference import Inference
from gateway.web.inference_head import InferenceHead

LIMITS = DoorLimits(header_bytes=4096, headers=16, url_bytes=256, header_s=9.0, idle_s=9.0, pipelined=2)
CHAT = "/v1/chat/completions"


def request(
    target: str = CHAT, *, method: str = "POST", version: str = "1.1", headers: str = "", body: str = "{}", host: str = "x"
) -> bytes:
    head = f"{method} {target} HTTP/{version}\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return (head + body).encode()


class Straight(Inference):
    """Keeps what it is given, and answers nobody."""

    def __init__(self) -> None:
        self.batches = Batches()
        self.served: list[tuple[str, bytes]] = []

    async def serve_wire(self, head: InferenceHead, client: Any) -> None:
        self.served.append((head.dialect.path, head.query))


class Transport(asyncio.Transport):
    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...


async def ways(sent: bytes) -> tuple[list[tuple[str, bytes]], list[str]]:
    """What went straight on, with its query, and the paths that ASGI was asked for."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await asyncio.Event().wait()

    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none")
    config.load()
    config.loaded_app = app
    inference, state = Straight(), ServerState()
    protocol = HttpProtocol(Door("data", LIMITS, Metrics("test"), random.Random(1)), inference, config, state, {})
    protocol.connection_made(Transport())
    protocol.data_received(sent)
    for _ in range(3):
        await asyncio.sleep(0)
    for task in list(state.tasks):
        task.cancel()
    protocol.connection_lost(None)
    return inference.served, asked


@pytest.mark.parametrize("path", DIALECTS)
async def test_an_ordinary_request_goes_straight_on(path: str) -> None:
    assert await ways(request(path + "?beta=true")) == ([(path, b"beta=true")], [])


@pytest.mark.parametrize(
    "sent",
    [
        request(version="1.0"),
        request(headers="expect: 100-continue\r\n"),
        request(headers="connection: upgrade\r\nupgrade: h2c\r\n"),
        request("/v1/chat%2Fcompletions"),
        request("http://x" + CHAT),
        request(method="GET"),
        request("/health", method="GET"),
        request("/v1/unknown"),
    ],
)
async def test_everything_unusual_goes_by_way_of_asgi(sent: bytes) -> None:
    straight, asked = await ways(sent)
    assert straight == []
    assert len(asked) == 1


async def test_what_is_sent_before_the_answer_waits_for_it_and_goes_by_way_of_asgi() -> None:
    assert await ways(request() + request()) == ([(CHAT, b"")], [])
    assert await ways(request("/health", method="GET") + request()) == ([], ["/health"])
