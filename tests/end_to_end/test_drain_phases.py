"""At the end of a drain nobody is left without an answer, whatever their request was waiting for.

Found by the storm (tests/chaos): what was still being counted when the drain ended was cut by the server underneath, with
a bare 500 and a traceback for each in the log.
"""

import asyncio
import socket

import pytest

from support.bench import CHAT, COMPLETIONS, block_body, chat_body
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeExchange, FakeUpstream, eventually, head, send_raw
from support.gateway_process import CASE_SETTINGS, GatewayProcess, running_gateway
from support.http_client import Answer, Connection, open_post

SETTINGS = {**CASE_SETTINGS, "KVGATE_DRAIN_TIMEOUT": "0.3s", "KVGATE_CONNECT_TIMEOUT": "30s"}


class CountsForEver(FakeEngine):
    """Like vLLM, but asked for a count it says nothing."""

    async def __call__(self, exchange: FakeExchange) -> None:
        if exchange.request.target == b"/tokenize":
            await exchange.body()
            await asyncio.Event().wait()
        await super().__call__(exchange)


def deaf_socket(port: int) -> list[socket.socket]:
    """Something at that port that neither accepts nor refuses."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deaf.bind(("127.0.0.1", port))
    deaf.listen(0)
    fillers = [socket.socket() for _ in range(2)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(deaf.getsockname())
    return [deaf, *fillers]


async def told_at_the_end(gateway: GatewayProcess, client: Connection) -> Answer:
    """The client's answer when the gateway has been told to end. That it ends well is checked by `stop`."""
    answer, ended = await asyncio.gather(client.answer(), gateway.stop(within_s=10))
    assert ended.code == 0
    (line,) = [event for event in gateway.log_events if event.get("outcome")]
    assert (line["outcome"], line["status"]) == ("refused_draining", 503)
    return answer


@pytest.mark.parametrize("phase", ["uploading", "counting", "connecting"])
async def test_a_request_that_has_no_answer_when_the_drain_ends_is_refused_like_one_that_comes_then(phase: str) -> None:
    engine = CountsForEver()
    async with FakeUpstream(default=engine) as fake, running_gateway([fake.url], SETTINGS, watched=False) as gateway:
        deaf: list[socket.socket] = []
        match phase:
            case "uploading":
                client = await Connection.open(gateway.url)
                whole = client.request_bytes("POST", COMPLETIONS, b"{" + b" " * 1_000)
                await client.send_raw(whole[:-500])
            case "counting":
                client = await open_post(
                    gateway.url, CHAT, chat_body(500, messages=[{"role": "user", "content": "word " * 200}])
                )
                await eventually(lambda: any(request.target == b"/tokenize" for request in fake.requests))
            case _:
                await fake.stop()
                deaf = deaf_socket(fake.port)
                client = await open_post(gateway.url, COMPLETIONS, block_body(4))
        try:
            async with client:
                await asyncio.sleep(0)
                await _until_it_is_there(gateway)
                answer = await told_at_the_end(gateway, client)
        finally:
            for each in deaf:
                each.close()
    assert (answer.status, answer.error["code"]) == (503, "draining")
    assert answer.is_tidy
    assert answer.head.get("retry-after") is not None
    assert answer.head.get("x-kvgate-request-id") is not None


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_uncounted_call_has_the_grace_of_the_drain_and_then_an_honest_end(has_begun: bool) -> None:
    engine = CountsForEver()
    async with FakeUpstream(default=engine) as fake, running_gateway([fake.url], SETTINGS, watched=False) as gateway:
        if has_begun:
            fake.script("begun", send_raw(head(200, [(b"content-length", b"10")]) + b"half", then="hang"))
        client = await open_post(gateway.url, "/tokenize", {"prompt": "hi"}, {"x-tag": "begun"} if has_begun else {})
        async with client:
            await eventually(lambda: any(request.target == b"/tokenize" for request in fake.requests))
            if has_begun:
                await client.head()
                assert await client.read() == b"half"
            stopping = asyncio.create_task(gateway.stop(within_s=10))
            answer = await (client.rest() if has_begun else client.answer())
            ended = await stopping
    assert ended.code == 0
    if has_begun:
        assert (answer.body, answer.is_tidy) == (b"half", False)
    else:
        assert (answer.status, answer.error["code"]) == (503, "draining")


async def _until_it_is_there(gateway: GatewayProcess) -> None:
    async with asyncio.timeout(5):
        while True:
            state = await gateway.state()
            if state.received == 1 and state.reading + state.in_flight == 1:
                return
            await asyncio.sleep(0.01)
