"""Hostile bytes on real connections to a running gateway: each is answered in HTTP or closed, and nothing of it stays."""

import asyncio
import json
import random
from typing import Any

import httptools
import pytest
import uvloop

from chaos.gateways import InProcess
from fuzz.mutation import cuts, mutate
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeExchange, FakeUpstream, eventually, head
from support.http_client import ask, post

CLIENTS = 40
PATIENCE_S = 30.0

CHAT = b'{"model":"fake-model","messages":[{"role":"user","content":"hi"}],"max_tokens":4}'
STREAM = b'{"model":"fake-model","prompt":[1,2,3],"max_tokens":3,"stream":true}'


LENGTH = b"Content-Length: %d" % len(STREAM)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(STREAM), STREAM)


def request(start: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([start, b"Host: gateway", *fields, b"", body])


SAMPLES = [
    request(
        b"POST /v1/chat/completions HTTP/1.1", b"Content-Type: application/json", b"Content-Length: %d" % len(CHAT), body=CHAT
    ),
    request(b"POST /v1/completions HTTP/1.1", LENGTH, b"Connection: close", body=STREAM),
    request(
        b"POST /v1/completions HTTP/1.1", b"Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(STREAM), STREAM)
    ),
    request(b"POST /v1/completions HTTP/1.1", b"Expect: 100-continue", LENGTH, body=STREAM),
    request(b"POST /v1/completions HTTP/1.0", LENGTH, body=STREAM),
    request(b"GET /v1/models HTTP/1.1", b"Accept: */*"),
    request(b"GET /health HTTP/1.1") + request(b"GET /ready HTTP/1.1", b"X-A: 1"),
    request(b"POST /tokenize HTTP/1.1", b"Content-Length: 14", body=b'{"prompt":"a"}'),
    request(b"GET http://elsewhere/v1/models HTTP/1.1", b"Upgrade: h2c", b"Connection: Upgrade"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]
WORDS = (
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Host: other\r\n",
    b"X-Long: " + b"v" * 9_000 + b"\r\n",
    b"X: y\r\n" * 200,
    b"x-stainless-timeout: 0.01\r\n",
    b"//elsewhere/",
    b"/../",
    b"%00",
    b" HTTP/1.1\r\n",
)
SETTINGS = {
    "KVGATE_COMMITMENT": "strict",  # what the account beside the book knows
    "KVGATE_RESERVE": "0",
    "KVGATE_HEADER_TIMEOUT": "0.5s",
    "KVGATE_UPLOAD_TIMEOUT": "0.5s",
    "KVGATE_IDLE_TIMEOUT": "0.5s",
    "KVGATE_QUEUE_TIMEOUT": "1s",
    "KVGATE_DRAIN_TIMEOUT": "1s",
}


class Tolerant(FakeEngine):
    """What is opened without being counted goes on as it is: an engine refuses what it cannot read."""

    async def __call__(self, exchange: FakeExchange) -> None:
        try:
            await super().__call__(exchange)
        except (ValueError, KeyError, TypeError, AttributeError):
            exchange.keep_alive = False
            await exchange.send(head(400, [(b"content-length", b"0")]))


ENGINE_PATHS = (b"/v1/", b"/tokenize", b"/detokenize", b"/version", b"/metrics", b"/health", b"/props", b"/openapi.json")


class Reader:
    """Parses what the gateway sends, any number of answers."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bodies: list[bytes] = []
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body


async def send(port: int, data: bytes, dice: random.Random) -> Reader:
    """One connection: the bytes in pieces, then silence or an end of ours, until the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen = Reader()
    try:
        for piece in cuts(dice, data):
            if writer.is_closing():
                break
            writer.write(piece)
            if dice.random() < 0.3:
                await asyncio.sleep(0)
        if dice.random() < 0.5:
            await asyncio.sleep(dice.random() * 0.02)
            if dice.random() < 0.5 and not writer.is_closing():
                writer.write_eof()
            else:
                writer.transport.abort()
                return seen
        async with asyncio.timeout(PATIENCE_S):
            while some := await reader.read(1 << 16):
                seen.feed(some)
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return seen


def check(seen: Reader, data: bytes) -> None:
    for status, body in zip(seen.statuses, seen.bodies, strict=False):
        assert status != 500, (data, body)
        if status >= 400 and body.endswith(b"}"):
            assert json.loads(body), (data, body)


@pytest.mark.slow
def test_hostile_bytes_are_answered_or_closed_and_leave_nothing(fuzz_inputs: int) -> None:
    findings: list[str] = []
    answered: list[int] = []

    async def client(gateway: InProcess, numbers: range) -> None:
        for number in numbers:
            dice = random.Random(f"socket/{number}")
            data = mutate(dice, SAMPLES, WORDS)
            try:
                seen = await send(gateway.port, data, dice)
                check(seen, data)
            except (AssertionError, TimeoutError, httptools.HttpParserError) as error:
                findings.append(f"input {number}: {type(error).__name__} {error}: {data[:600]!r}")
            answered.extend(seen.statuses)

    async def run() -> None:
        inputs = max(200, fuzz_inputs // 20)
        async with FakeUpstream(default=Tolerant()) as fake:
            gateway = InProcess(SETTINGS, findings.append)
            await gateway.start(fake.url)
            async with asyncio.timeout(30):
                while True:
                    try:
                        if (await ask(gateway.admin_url, "GET", "/ready")).status == 200:
                            break
                    except OSError:
                        pass
                    await asyncio.sleep(0.02)
            for start in range(0, inputs, 4_000):
                end = min(start + 4_000, inputs)
                await asyncio.gather(*(client(gateway, range(start + each, end, CLIENTS)) for each in range(CLIENTS)))
                # Nothing got to the engine but requests of ours, with one host, on paths that are open.
                for each in fake.requests:
                    assert each.target.startswith(ENGINE_PATHS), each.raw_head
                    assert [value for name, value in each.headers if name.lower() == b"host"] == [fake.url[7:].encode()]
                fake.requests.clear()
            url = f"http://127.0.0.1:{gateway.port}"
            answer = await post(url, "/v1/completions", {"model": "fake-model", "prompt": [1], "max_tokens": 2})
            assert answer.status == 200
            await eventually(lambda: fake.open_requests() == 0)
            state = (await ask(gateway.admin_url, "GET", "/kvgate/state")).json()
            assert state["in_flight"] == state["reading"] == state["queue"]["requests"] == 0, state
            assert state["received"] == sum(state["outcomes"].values())
            assert "gateway_error" not in state["outcomes"]
            gateway.check_idle()
            await gateway.drain()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert findings == []
    assert {200, 400} <= set(answered)
