"""Cases S-3 to S-7: browsers, old and careful clients, half-closed ones, and headers that must not travel."""

import asyncio
import json
import re
import socket

import pytest

from support.bench import CHAT, COMPLETIONS, Bench, block_body, chat_body, running_bench
from support.fake_upstream import Header, answer, chunk, eventually, head, send_raw
from support.gates import DONE, EVENT_STREAM, chat_event, held_head, ticking_stream
from support.http_client import Broken, Connection, ask
from support.raw_requests import everything, request, statuses_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")
NOTICED_S = 1.0


# -- S-3


async def test_s3_a_preflight_is_answered_here_and_holds_nothing(bench: Bench) -> None:
    tag, before = bench.tag("s3"), await bench.idle()
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "x-tag": tag}
    for target in (CHAT, COMPLETIONS, "/v1/models", "/tokenize", "/health"):
        found = await ask(bench.gateway.url, "OPTIONS", target, headers=asks)
        assert found.status == 204, target
        assert found.body == b""
        assert found.head.get("allow")
        assert found.head.get("access-control-allow-origin") is None
    assert (await ask(bench.gateway.url, "OPTIONS", "/nowhere", headers=asks)).status in (404, 405)
    assert (await bench.idle()).received == before.received
    assert bench.arrivals(tag) == 0


async def test_s3_head_is_get_without_the_body(bench: Bench) -> None:
    asks = [(bench.gateway.url, path) for path in ("/health", "/ready", "/v1/models")]
    asks += [(bench.gateway.admin_url, path) for path in ("/health", "/ready", "/metrics", "/kvgate/state")]
    for url, path in asks:
        async with await Connection.open(url) as client:
            await client.send("HEAD", path)
            raw = await client.reader.readuntil(b"\r\n\r\n")
            assert raw.startswith(b"HTTP/1.1 200 "), (path, raw)
            assert await client.is_silent()
            await client.send("GET", path)  # and the connection is good for another
            assert (await client.answer()).status == 200


async def test_s3_no_redirect_is_made_from_the_callers_host(bench: Bench) -> None:
    for method, path in (("POST", CHAT + "/"), ("GET", "/health/"), ("GET", "/v1/models/"), ("POST", "/v1/completions/")):
        found = await ask(bench.gateway.url, method, path, b"{}" if method == "POST" else None, {"Host": "evil.example"})
        assert found.status in (400, 404), path
        assert found.head.get("location") is None
    assert (await ask(bench.gateway.admin_url, "GET", "/metrics/")).status == 404


async def test_s3_another_method_is_refused_in_our_shape(bench: Bench) -> None:
    for method, path in (("GET", CHAT), ("DELETE", "/health"), ("PUT", COMPLETIONS)):
        found = await ask(bench.gateway.url, method, path)
        assert found.status == 405
        assert found.error["code"] == "method_not_allowed"
        assert found.head.get("allow")


# -- S-4


H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("cut", ["one segment", "two segments", "in the body", "byte by byte"])
async def test_s4_an_offer_of_h2c_is_declined_with_the_whole_body(bench: Bench, framing: str, cut: str) -> None:
    tag, next_tag = bench.tag("s4"), bench.tag("s4-next")
    body = json.dumps(chat_body(16, user="x" * 50)).encode()
    if framing == "length":
        sent = request(headers=H2C, body=body, tag=tag)
    else:
        sent = request(headers=(*H2C, b"Transfer-Encoding: chunked"), body=b"", tag=tag, framed=False)
        sent += chunk(body[:20]) + chunk(body[20:]) + chunk(b"")
    edge = sent.index(b"\r\n\r\n") + 4
    match cut:
        case "one segment":
            pieces = [sent]
        case "two segments":
            pieces = [sent[:edge], sent[edge:]]
        case "in the body":
            pieces = [sent[: edge + 9], sent[edge + 9 :]]
        case _:
            pieces = [sent[place : place + 1] for place in range(len(sent))]
    async with await Connection.open(bench.gateway.url) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            await client.send_raw(piece)
            await asyncio.sleep(0)
        found = await client.answer()
        assert found.status == 200, found
        await client.send_raw(request(tag=next_tag))
        assert (await client.answer()).status == 200
    (seen,) = bench.fake.tagged(tag)
    assert seen.body == body
    assert seen.header("upgrade") is None
    assert seen.header("http2-settings") is None
    assert bench.arrivals(next_tag) == 1
    await bench.end_case()


async def test_s4_an_offer_with_the_next_request_right_behind_it_serves_both(bench: Bench) -> None:
    tag = bench.tag("s4-both")
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(headers=H2C, tag=tag) + request(headers=H2C, tag=tag) + request(tag=tag))
        assert [(await client.answer()).status for _ in range(3)] == [200] * 3
    assert bench.arrivals(tag) == 3


async def test_s4_a_websocket_is_not_spoken_here(bench: Bench) -> None:
    wants = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    assert (await ask(bench.gateway.url, "GET", CHAT, headers=wants)).status == 405


# -- S-5


async def test_s5_an_http_1_0_client_gets_a_stream_without_chunk_sizes_and_its_end(bench: Bench) -> None:
    tag, next_tag = bench.tag("s5"), bench.tag("s5-next")
    body = json.dumps(chat_body(16, stream=True)).encode()
    old = request(f"POST {CHAT} HTTP/1.0", (b"Connection: keep-alive",), body, host=None, tag=tag)
    raw = await everything(bench, old + request(tag=next_tag))
    told, _, streamed = raw.partition(b"\r\n\r\n")
    assert statuses_in(raw) == [200]
    assert b"transfer-encoding" not in told.lower()
    assert b"connection: close" in told
    assert streamed.startswith(b"data: {")
    assert streamed.endswith(DONE)
    assert re.search(rb"^[0-9a-f]+\r$", streamed, re.MULTILINE) is None
    assert bench.arrivals(next_tag) == 0
    await bench.end_case()


async def test_s5_an_answer_to_http_1_0_that_breaks_does_not_end_tidily(bench: Bench) -> None:
    tag = bench.tag("s5-broken")
    bench.fake.script(tag, send_raw(head(200, [JSON, EVENT_STREAM[1]]), chunk(b'{"id": 1'), then="reset", gap_s=0.05))
    with pytest.raises(ConnectionError):
        await everything(bench, request(f"POST {CHAT} HTTP/1.0", tag=tag))
    await bench.end_case()


async def test_s5_an_http_1_0_client_gets_a_plain_answer_with_its_length(bench: Bench) -> None:
    raw = await everything(bench, request(f"POST {CHAT} HTTP/1.0", host=None))
    assert statuses_in(raw) == [200]
    told, _, body = raw.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", told)
    assert length is None or int(length[1]) == len(body)
    assert json.loads(body)["usage"]


async def test_s5_a_large_upload_waits_for_100_and_the_expectation_goes_no_further(bench: Bench) -> None:
    tag = bench.tag("s5-expect")
    body = json.dumps(block_body(4, user="x" * 500_000)).encode()
    whole = request(f"POST {COMPLETIONS} HTTP/1.1", (b"Expect: 100-continue",), body, tag=tag)
    edge = whole.index(b"\r\n\r\n") + 4
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(whole[:edge])
        assert (await client._read_head()).status == 100
        await client.send_raw(whole[edge:])
        found = await client._read_head()
        assert found.status == 200
    (seen,) = bench.fake.tagged(tag)
    assert seen.header("expect") is None
    assert seen.body == body
    await bench.end_case()


async def test_s5_no_100_comes_before_a_refusal_that_needs_no_body(bench: Bench) -> None:
    async with await Connection.open(bench.gateway.url) as client:
        big = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {1 << 30}\r\n\r\n".encode()
        await client.send_raw(big)
        assert (await client._read_head()).status == 413
    raw = await everything(bench, request(headers=(b"Expect: a-miracle",)))
    assert statuses_in(raw) == [417]
    await bench.end_case()


async def test_s5_no_100_comes_before_a_full_line_says_so() -> None:
    async with running_bench(KVGATE_QUEUE_REQUESTS="1") as bench:
        gate, tag = asyncio.Event(), bench.tag("holds")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        async with await bench.take(64, tag) as holder, await bench.wait_in_line(64, tag) as waits:
            whole = request(headers=(b"Expect: 100-continue",), tag=bench.tag("late"))
            async with await Connection.open(bench.gateway.url) as client:
                await client.send_raw(whole[: whole.index(b"\r\n\r\n") + 4])
                found = await client._read_head()
                assert found.status == 429
                assert found.number("retry-after") >= 1
            gate.set()
            assert [(await holder.answer()).status, (await waits.answer()).status] == [200, 200]
        state = await bench.idle()
        assert state.outcomes["refused_queue_full"] == 1
        await bench.end_case()


async def test_s5_no_100_is_sent_to_who_has_not_waited_for_it(bench: Bench) -> None:
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(headers=(b"Expect: 100-continue",)))
        assert (await client._read_head()).status == 200


async def test_s5_a_413_reaches_a_client_that_is_still_sending() -> None:
    async with running_bench(KVGATE_MAX_BODY="1MiB") as bench:
        for framing in ("length", "chunked"):
            body = b"x" * (4 << 20)
            if framing == "length":
                sent = request(body=body)
            else:
                sent = request(headers=(b"Transfer-Encoding: chunked",), body=b"", framed=False) + chunk(body)
            raw = await everything(bench, sent)
            assert statuses_in(raw) == [413], framing
        state = await bench.idle()
        assert state.outcomes == {"refused_body_too_large": 2}
        await bench.end_case()


# -- S-6


@pytest.mark.parametrize("phase", ["queued", "waiting", "streaming"])
async def test_s6_a_client_that_shuts_its_sending_side_is_dropped_cleanly(bench: Bench, phase: str) -> None:
    """Documented in README under Security: it counts as gone, as it does to vLLM and Dynamo."""
    gate, tag, holder_tag = asyncio.Event(), bench.tag(f"s6-{phase}"), bench.tag("s6-holder")
    bench.fake.script(holder_tag, held_head(gate, bench.engine.completion()))
    before = (await bench.idle()).outcomes
    if phase == "queued":
        async with await bench.take(64, holder_tag) as holder, await bench.wait_in_line(4, tag) as client:
            client.half_close()
            await bench.state_where(lambda state: state.queued == 0, "the place is free", within_s=NOTICED_S)
            gate.set()
            assert (await holder.answer()).status == 200
        assert bench.arrivals(tag) == 0
    else:
        bench.fake.script(tag, held_head(gate, answer()) if phase == "waiting" else ticking_stream())
        async with await bench.open(CHAT, chat_body(16, stream=phase == "streaming"), tag=tag) as client:
            await eventually(lambda: bench.fake.open_requests(tag) == 1)
            if phase == "streaming":
                await client.head()
                await client.read()
            client.half_close()
            await eventually(lambda: bench.fake.open_requests(tag) == 0, within_s=NOTICED_S)
            await bench.state_where(lambda state: state.is_idle, "nothing is held", within_s=NOTICED_S)
            if phase == "streaming":
                assert not (await client.rest()).is_tidy
            else:
                with pytest.raises(Broken):
                    await client.head()
    after = (await bench.idle()).outcomes
    assert after.get(f"client_gone_{phase}", 0) - before.get(f"client_gone_{phase}", 0) == 1
    await bench.end_case()


# -- S-7


HOP = {
    "connection": "close, X-Hop, x-other",
    "x-hop": "1",
    "X-OTHER": "2",
    "keep-alive": "timeout=5",
    "te": "trailers",
    "trailer": "X-Sum",
    "proxy-connection": "keep-alive",
    "proxy-authorization": "Basic eA==",
    "proxy-authenticate": "Basic",
}


@pytest.mark.parametrize("stream", [False, True])
async def test_s7_what_belongs_to_one_hop_crosses_in_neither_direction(bench: Bench, stream: bool) -> None:
    tag = bench.tag("s7")
    back = [(name.encode(), value.encode()) for name, value in HOP.items() if name != "connection"]
    cookies = [(b"set-cookie", b"a=1; Path=/"), (b"Set-Cookie", b"b=2")]
    extra = [*back, (b"connection", b"X-Hop, x-other"), *cookies, (b"date", b"Tue, 01 Dec 2026 00:00:00 GMT")]
    body = chat_event("x ", "stop") + DONE if stream else b"{}"
    kind = EVENT_STREAM[0] if stream else JSON
    bench.fake.script(tag, answer(200, body, [kind, *extra]))
    async with await bench.open(CHAT, chat_body(16, stream=stream), tag=tag, headers={**HOP, "x-stays": "3"}) as client:
        found = await client.answer()
    assert found.status == 200
    names = {name for name, _ in found.head.headers}
    assert not names & {name.lower() for name in HOP if name != "connection"}
    assert found.head.all("set-cookie") == ["a=1; Path=/", "b=2"]
    assert found.head.all("date") == ["Tue, 01 Dec 2026 00:00:00 GMT"]
    assert found.head.get("connection") == "close"  # ours, because the client asked for it
    (seen,) = bench.fake.tagged(tag)
    assert not {name.lower() for name, _ in seen.headers} & {name.lower().encode() for name in HOP}
    assert seen.header("x-stays") == b"3"
    await bench.end_case()


async def test_s7_an_answer_without_a_date_gets_one(bench: Bench) -> None:
    found = await bench.std()
    assert len(found.head.all("date")) == 1
