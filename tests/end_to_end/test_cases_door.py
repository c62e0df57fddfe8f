"""Cases S: what comes in at the door, byte by byte, and what must never come through it."""

import asyncio
import json
import re
import socket

import pytest

from support.bench import CHAT, COMPLETIONS, Bench, block_body, chat_body, running_bench
from support.fake_upstream import Header, answer, chunk, eventually, head, send_raw
from support.gates import DONE, EVENT_STREAM, chat_event, held_head, held_stream, ticking_stream
from support.http_client import PATIENCE_S, Broken, Connection, ask

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")
NOTICED_S = 1.0


def request(
    line: str = f"POST {CHAT} HTTP/1.1",
    headers: tuple[bytes, ...] = (),
    body: bytes | None = None,
    *,
    host: str | None = "gate.example",
    tag: str = "",
    framed: bool = True,
) -> bytes:
    """The bytes of a request, exactly as told."""
    body = json.dumps(chat_body(16)).encode() if body is None else body
    fields = [line.encode("latin-1")]
    fields += [b"Host: " + host.encode()] if host is not None else []
    fields += [b"X-Tag: " + tag.encode()] if tag else []
    fields += [b"Content-Length: %d" % len(body)] if framed else []
    return b"\r\n".join([*fields, *headers]) + b"\r\n\r\n" + body


async def everything(bench: Bench, *pieces: bytes) -> bytes:
    """Send the pieces and read until the gateway closes."""
    async with await Connection.open(bench.gateway.url) as client:
        for piece in pieces:
            await client.send_raw(piece)
        async with asyncio.timeout(PATIENCE_S):
            return await client.reader.read()


def statuses_in(raw: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^HTTP/1\.1 (\d{3}) ", raw, re.MULTILINE)]


async def refusals(bench: Bench, port: str = "data") -> dict[str, float]:
    metrics = await bench.gateway.metrics()
    return {
        labels["reason"]: value
        for name, labels, value in metrics.samples
        if name == "kvgate_connections_refused_total" and labels["port"] == port
    }


async def refused_once_more(bench: Bench, before: dict[str, float], reason: str) -> None:
    after = await refusals(bench)
    assert after.get(reason, 0) - before.get(reason, 0) >= 1, after


# -- S-1


ODD_VALUES = {
    "UTF-8": "日本".encode(),
    "Latin-1": b"caf\xe9",
    "empty": b"",
    "tabs and blanks inside": b"a \t b",
    "16 kB": b"x" * 16_384,
}


@pytest.mark.parametrize("name", ODD_VALUES)
async def test_s1_header_bytes_beyond_ascii_go_on_as_they_came(bench: Bench, name: str) -> None:
    value, tag = ODD_VALUES[name], bench.tag("s1")
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(headers=(b"X-Title: " + value,), tag=tag))
        found = await client.answer()
    assert found.status == 200, found
    (seen,) = bench.fake.tagged(tag)
    assert seen.header("x-title") == value
    await bench.end_case()


@pytest.mark.parametrize("name", ODD_VALUES)
async def test_s1_header_bytes_of_the_engine_come_back_as_they_were_sent(bench: Bench, name: str) -> None:
    value, tag = ODD_VALUES[name], bench.tag("s1-back")
    bench.fake.script(tag, answer(200, b"{}", [JSON, (b"x-title", value)]))
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(tag=tag))
        raw = await client.reader.readuntil(b"\r\n\r\n")
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nx-title: " + value + b"\r\n" in raw
    await bench.end_case()


BROKEN_VALUES = {"NUL": b"a\0b", "CR": b"a\rX-Evil: b", "control": b"a\x01b", "bare LF": b"a\nX-Evil: b"}


@pytest.mark.parametrize("name", BROKEN_VALUES)
async def test_s1_bytes_that_break_a_line_are_refused(bench: Bench, name: str) -> None:
    before, tag = await refusals(bench), bench.tag("s1-broken")
    raw = await everything(bench, request(headers=(b"X-Title: " + BROKEN_VALUES[name],), tag=tag))
    assert statuses_in(raw) == [400]
    assert bench.arrivals(tag) == 0
    await refused_once_more(bench, before, "malformed_http")


@pytest.mark.parametrize("name", BROKEN_VALUES)
async def test_s1_an_answer_that_breaks_a_line_never_does_so_at_the_client(bench: Bench, name: str) -> None:
    tag = bench.tag("s1-split")
    bench.fake.script(tag, answer(200, b"{}", [JSON, (b"x-title", BROKEN_VALUES[name])]))
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(tag=tag))
        found = await client.answer()
    assert found.status in (200, 502)
    assert found.head.get("x-evil") is None
    await bench.end_case()


TOO_MUCH: dict[str, tuple[bytes, int, str]] = {
    "a value of 70 kB": (request(headers=(b"X-Long: " + b"x" * 70_000,)), 431, "headers_too_large"),
    "a value without end": (request().split(b"\r\n\r\n")[0] + b"\r\nX-Long: " + b"x" * 400_000, 431, "headers_too_large"),
    "small ones without end": (
        request().split(b"\r\n\r\n")[0] + b"".join(b"\r\nX-%d: y" % number for number in range(129)),
        431,
        "too_many_headers",
    ),
    "a long target": (request(f"GET /{'a' * 9_000} HTTP/1.1", body=b""), 414, "url_too_long"),
    "a long query": (request(f"POST {CHAT}?{'a' * 9_000} HTTP/1.1"), 414, "url_too_long"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_s1_a_head_beyond_the_limits_is_refused_by_name_and_closed(bench: Bench, name: str) -> None:
    sent, status, reason = TOO_MUCH[name]
    before = await refusals(bench)
    received = (await bench.gateway.state()).received
    raw = await everything(bench, sent)
    assert statuses_in(raw) == [status]
    told, _, body = raw.partition(b"\r\n\r\n")
    assert b"connection: close" in told
    assert json.loads(body)["error"]["code"] == reason
    await refused_once_more(bench, before, reason)
    assert (await bench.gateway.state()).received == received
    await bench.end_case()


# -- S-2


def hidden(tag: str) -> bytes:
    return request(tag=tag)


def smuggled(tag: str) -> dict[str, bytes]:
    """Requests that two readers would cut differently, each with a second request inside."""
    inner = hidden(tag)
    start = f"POST {CHAT} HTTP/1.1\r\nHost: gate.example\r\n".encode()

    def chunked(*, head: bytes = b"Transfer-Encoding: chunked\r\n", body: bytes) -> bytes:
        return start + head + b"\r\n" + body

    return {
        "length and chunks": start + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
        "chunks and length": start + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + inner,
        "two lengths": start + b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n{}" % (len(inner) + 2) + inner,
        "twice the same length": start + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + inner,
        "two lengths in one field": start + b"Content-Length: 2, 2\r\n\r\n{}" + inner,
        "a length with a sign": start + b"Content-Length: +2\r\n\r\n{}" + inner,
        "a space before the colon": start + b"Content-Length : 2\r\n\r\n{}" + inner,
        "a bare line feed": start + b"X-A: b\nContent-Length: 2\r\n\r\n{}" + inner,
        "only line feeds": (start + b"Content-Length: 2\r\n\r\n{}").replace(b"\r\n", b"\n") + inner,
        "a folded field": start + b"X-A: b\r\n Content-Length: 2\r\n\r\n" + inner,
        "a bad chunk end": chunked(body=b"2\r\n{}XX0\r\n\r\n" + inner),
        "a chunk size and a line feed": chunked(body=b"2\n{}\r\n0\r\n\r\n" + inner),
        "a chunk size that is none": chunked(body=b"0x2\r\n{}\r\n0\r\n\r\n" + inner),
        "an unknown coding": chunked(head=b"Transfer-Encoding: xchunked\r\n", body=b"0\r\n\r\n" + inner),
        "two codings": chunked(head=b"Transfer-Encoding: gzip, chunked\r\n", body=b"0\r\n\r\n" + inner),
        "chunked twice": chunked(head=b"Transfer-Encoding: chunked, chunked\r\n", body=b"0\r\n\r\n" + inner),
        "chunked in two fields": chunked(
            head=b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", body=b"0\r\n\r\n" + inner
        ),
        "chunks in HTTP/1.0": chunked(body=b"0\r\n\r\n" + inner).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        "two hosts": request(headers=(b"Host: other.example",)) + inner,
        "no host": request(host=None) + inner,
        "a host that is none": request(host="gate.example/../x") + inner,
        "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + inner,
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + inner,
        "a tunnel": request("CONNECT evil.example:443 HTTP/1.1", body=b"", framed=False) + inner,
    }


@pytest.mark.parametrize("name", smuggled(""))
async def test_s2_what_can_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(bench: Bench, name: str) -> None:
    tag, before = bench.tag("s2"), await bench.idle()
    raw = await everything(bench, smuggled(tag)[name])
    assert statuses_in(raw) == [400], raw
    assert b"connection: close" in raw
    after = await bench.idle()
    assert bench.arrivals(tag) == 0
    # Refused before it was a request of ours, or counted as an invalid one; never as anything else.
    more = after.received - before.received
    assert more == after.outcomes.get("refused_invalid_request", 0) - before.outcomes.get("refused_invalid_request", 0)
    await bench.end_case()


async def test_s2_a_trailer_never_becomes_a_header(bench: Bench) -> None:
    tag = bench.tag("s2-trailer")
    body = json.dumps(chat_body(16)).encode()
    sent = request(headers=(b"Transfer-Encoding: chunked",), body=b"", tag=tag, framed=False)
    sent += chunk(body) + b"0\r\nAuthorization: Bearer stolen\r\nX-Late: 1\r\n\r\n"
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(sent)
        assert (await client.answer()).status == 200
    (seen,) = bench.fake.tagged(tag)
    assert seen.header("authorization") is None
    assert seen.header("x-late") is None
    assert seen.body == body


async def test_s2_nonsense_behind_a_stream_does_not_come_between_its_bytes(bench: Bench) -> None:
    gate, tag = asyncio.Event(), bench.tag("s2-behind")
    bench.fake.script(tag, held_stream(gate))
    body = json.dumps(chat_body(16, stream=True)).encode()
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(body=body, tag=tag))
        await client.head()
        await client.read_until(b"before-0")
        await client.send_raw(b"\x00nonsense\r\n\r\n" + hidden(bench.tag("s2-hidden")))
        await asyncio.sleep(0.02)
        gate.set()
        streamed = await client.rest()
        assert streamed.is_tidy
        assert streamed.events[-1] == b"[DONE]"
        assert b"HTTP/1.1" not in streamed.body
        told = await client.answer()
        assert told.status == 400
        assert await client.reader.read() == b""
    await bench.end_case()


TARGETS = {
    "percent-encoded": (CHAT.replace("/chat", "%2Fchat"), 200),
    "letters encoded": ("/v1/ch%61t/completions", 200),
    "a fragment": (CHAT + "#x", 200),
    "absolute": (f"http://evil.example{CHAT}", 200),
    "absolute with a port and a user": (f"https://u:p@evil.example:8443{CHAT}", 200),
    "trailing slash": (CHAT + "/", 404),
    "two slashes": ("/" + CHAT, 404),
    "a host after two slashes": (f"//evil.example{CHAT}", 404),
    "upper case": (CHAT.upper(), 404),
    "dot segments": ("/v1/../v1/chat/completions", 404),
    "encoded dot segments": ("/v1/%2e%2e/v1/chat/completions", 404),
    "behind an open path": ("/tokenize/..%2fv1/chat/completions", 404),
    "a parameter": (CHAT + ";x=1", 404),
    "a NUL": (CHAT + "%00", 404),
    "encoded twice": (CHAT.replace("/chat", "%252Fchat"), 404),
    "another scheme": (f"ftp://evil.example{CHAT}", 400),
    "no path at all": ("v1/chat/completions", 400),
}


@pytest.mark.parametrize("name", TARGETS)
async def test_s2_no_form_of_the_target_passes_uncounted_or_goes_elsewhere(bench: Bench, name: str) -> None:
    target, status = TARGETS[name]
    tag, before = bench.tag("target"), await bench.idle()
    async with await Connection.open(bench.gateway.url) as client:
        await client.send_raw(request(f"POST {target} HTTP/1.1", tag=tag))
        found = await client.answer()
    assert found.status == status, found
    after = await bench.idle()
    assert bench.arrivals(tag) == after.received - before.received == (1 if status == 200 else 0)
    for seen in bench.fake.tagged(tag):
        assert seen.target == CHAT.encode()
        assert seen.header("host") == bench.fake.url.removeprefix("http://").encode()
    if status != 200:
        assert found.error["message"]
    await bench.end_case()


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


# -- Limits before buffering: time, connections, requests behind one another


async def test_limits_a_head_that_does_not_come_is_told_and_closed() -> None:
    async with running_bench(KVGATE_HEADER_TIMEOUT="300ms") as bench:
        drip = request().split(b"\r\n\r\n")[0]
        async with await Connection.open(bench.gateway.url) as client:
            for place in range(60):  # a byte at a time, so that something always comes
                try:
                    await client.send_raw(drip[place : place + 1])
                except ConnectionError:
                    break
                await asyncio.sleep(0.02)
            found = await client.answer()
            assert (found.status, found.error["code"]) == (408, "header_timeout")
        async with await Connection.open(bench.gateway.url) as silent, asyncio.timeout(PATIENCE_S):
            assert await silent.reader.read() == b""
        assert await refusals(bench) == {"header_timeout": 1}
        state = await bench.idle()
        assert state.received == 0
        await bench.end_case()


async def test_limits_the_head_clock_does_not_run_while_an_answer_is_under_way() -> None:
    async with running_bench(KVGATE_HEADER_TIMEOUT="200ms") as bench:
        gate, tag = asyncio.Event(), bench.tag("slow")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        async with await bench.open(CHAT, chat_body(16), tag=tag) as client:
            await eventually(lambda: bench.fake.open_requests(tag) == 1)
            next_request = request(tag=bench.tag("next"))
            await client.send_raw(next_request[:30])
            await asyncio.sleep(0.6)
            gate.set()
            assert (await client.answer()).status == 200
            await client.send_raw(next_request[30:])
            assert (await client.answer()).status == 200


async def test_limits_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    async with running_bench(KVGATE_IDLE_TIMEOUT="400ms") as bench:
        async with await Connection.open(bench.gateway.url) as client:
            for _ in range(4):
                assert (await client.ask("GET", "/health")).status == 200
                await asyncio.sleep(0.15)
            async with asyncio.timeout(PATIENCE_S):
                assert await client.reader.read() == b""
        assert await refusals(bench) == {}


async def test_limits_an_upload_that_does_not_come_is_told_and_closed() -> None:
    async with running_bench(KVGATE_UPLOAD_TIMEOUT="300ms") as bench:
        for target in (CHAT, "/tokenize", "/health"):
            async with await Connection.open(bench.gateway.url) as client:
                await client.send_raw(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
                found = await client.answer()
                assert (found.status, found.error["code"]) == (408, "upload_timeout"), target
                async with asyncio.timeout(PATIENCE_S):
                    assert await client.reader.read() == b""
        state = await bench.idle()
        assert state.outcomes == {"timeout_upload": 1}
        await bench.end_case()


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_limits_a_control_route_reads_no_large_body(bench: Bench, framing: str) -> None:
    body = b'{"reserve": "' + b"x" * 500_000 + b'"}'
    for url, line in ((bench.gateway.admin_url, "PUT /kvgate/reserve"), (bench.gateway.url, "POST /nowhere")):
        if framing == "length":
            sent = request(f"{line} HTTP/1.1", (b"Content-Type: application/json",), body)
        else:
            sent = request(f"{line} HTTP/1.1", (b"Transfer-Encoding: chunked",), b"", framed=False) + chunk(body) + chunk(b"")
        async with await Connection.open(url) as client:
            await client.send_raw(sent)
            found = await client.answer()
        assert (found.status, found.error["code"]) == (413, "body_too_large")


PIPELINED = 4


async def test_limits_requests_behind_one_another_are_served_in_order_up_to_a_depth() -> None:
    async with running_bench(KVGATE_MAX_PIPELINED=str(PIPELINED)) as bench:
        gate, tag = asyncio.Event(), bench.tag("piped")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        async with await Connection.open(bench.gateway.url) as client:
            bodies = [json.dumps(chat_body(16 + number)).encode() for number in range(PIPELINED + 4)]
            await client.send_raw(b"".join(request(body=body, tag=tag) for body in bodies))
            await eventually(lambda: bench.fake.open_requests(tag) == 1)
            assert (await bench.gateway.state()).received == 1
            gate.set()
            answers = [await client.answer() for _ in range(PIPELINED + 2)]
            assert [found.status for found in answers] == [200] * (PIPELINED + 1) + [503]
            assert answers[-1].error["code"] == "too_many_pipelined_requests"
            assert answers[-1].head.number("retry-after") >= 1
            assert await client.reader.read() == b""
        assert [json.loads(seen.body)["max_tokens"] for seen in bench.fake.tagged(tag)] == list(range(16, 17 + PIPELINED))
        assert await refusals(bench) == {"too_many_pipelined_requests": 1}
        await bench.end_case()


@pytest.mark.parametrize("behind", ["requests", "a large body", "half a head", "nonsense"])
async def test_limits_a_client_that_leaves_is_noticed_with_others_waiting_behind_its_request(bench: Bench, behind: str) -> None:
    gate, tag, never = asyncio.Event(), bench.tag("piped"), bench.tag("never")
    bench.fake.script(tag, held_head(gate, bench.engine.completion()))
    more = {
        "requests": request(tag=never) * 3,
        "a large body": request(body=b"x" * 300_000, tag=never),
        "half a head": request(tag=never)[:40],
        "nonsense": b"\0" * 500,
    }[behind]
    async with await bench.open(CHAT, chat_body(16), tag=tag) as client:
        await eventually(lambda: bench.fake.open_requests(tag) == 1)
        await client.send_raw(more)
        await asyncio.sleep(0.05)
        client.vanish()
        await eventually(lambda: bench.fake.open_requests(tag) == 0, within_s=NOTICED_S)
    state = await bench.idle()
    assert not state.faults()
    assert bench.arrivals(never) == 0
    gate.set()
    await bench.end_case()


async def test_limits_connections_in_all_are_bounded_and_the_admin_port_goes_on_answering() -> None:
    async with running_bench(KVGATE_MAX_CONNECTIONS="5") as bench:
        inside = [await Connection.open(bench.gateway.url) for _ in range(5)]
        for client in inside:
            assert (await client.ask("GET", "/health")).status == 200
        for _ in range(20):
            async with await Connection.open(bench.gateway.url) as late:
                await late.send("POST", CHAT, json.dumps(chat_body(16)).encode())
                told = await late.answer()
                assert (told.status, told.error["code"]) == (503, "too_many_connections")
                assert told.head.number("retry-after") >= 1
                assert await late.reader.read() == b""
        assert (await bench.gateway.probe("/health")).status == 200
        metrics = await bench.gateway.metrics()
        assert metrics.total("kvgate_connections", port="data") == 5
        assert await refusals(bench) == {"too_many_connections": 20}
        inside.pop().vanish()
        await eventually_served(bench)
        for client in inside:
            client.vanish()
        state = await bench.idle()
        assert state.received == 0
        await bench.end_case()


async def eventually_served(bench: Bench) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await ask(bench.gateway.url, "GET", "/health")).status != 200:
            await asyncio.sleep(0.01)


async def test_limits_connections_of_one_address_are_bounded_where_the_operator_wants_it() -> None:
    async with running_bench(KVGATE_MAX_CONNECTIONS_PER_ADDRESS="3") as bench:
        inside = [await Connection.open(bench.gateway.url) for _ in range(3)]
        for client in inside:
            assert (await client.ask("GET", "/health")).status == 200
        told = await ask(bench.gateway.url, "GET", "/health")
        assert (told.status, told.error["code"]) == (503, "too_many_connections_from_address")
        for client in inside:
            client.vanish()
        await eventually_served(bench)
        await bench.end_case()


async def test_limits_a_crowd_of_slow_heads_keeps_nobody_out() -> None:
    async with running_bench(KVGATE_HEADER_TIMEOUT="2s", KVGATE_MAX_CONNECTIONS="400") as bench:
        crowd = [await Connection.open(bench.gateway.url) for _ in range(300)]
        try:
            for client in crowd:
                await client.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: ")
            for _ in range(5):
                assert (await bench.std()).status == 200
            ended = await asyncio.gather(*(client.answer() for client in crowd))
            assert {found.status for found in ended} == {408}
        finally:
            for client in crowd:
                client.vanish()
        await bench.end_case()


async def test_the_same_door_stands_before_the_admin_port(bench: Bench) -> None:
    async with await Connection.open(bench.gateway.admin_url) as client:
        await client.send_raw(request("GET /health HTTP/1.1", body=b"", host=None, framed=False))
        assert (await client.answer()).error["code"] == "host_header"
    async with await Connection.open(bench.gateway.admin_url) as client:
        await client.send_raw(request("GET /health HTTP/1.1", (b"X: " + b"x" * 70_000,), b"", framed=False))
        assert (await client.answer()).status == 431
    assert {"host_header", "headers_too_large"} <= set(await refusals(bench, "admin"))


BAD_CHANGES = {
    "not a number": b'{"reserve": NaN}',
    "beyond all numbers": b'{"reserve": 1e400}',
    "half an emoji": b'{"reserve": "\\ud83d"}',
    "half an emoji as a name": b'{"reserve": "1%", "backend": "\\ud83d"}',
    "half an emoji as a key": b'{"\\ud83d": 1}',
    "an unknown key": b'{"reserve": "1%", "secret": "s3cr3t"}',
    "no JSON": b"{",
    "nested": b"[" * 60_000,
    "not UTF-8": b'{"reserve": "\xff"}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD_CHANGES)
async def test_a_control_route_answers_any_body_in_our_shape_and_repeats_none(bench: Bench, name: str) -> None:
    headers = {"content-type": "application/json"}
    found = await ask(bench.gateway.admin_url, "PUT", "/kvgate/reserve", BAD_CHANGES[name], headers)
    assert found.status in (400, 404), found
    assert found.error["message"]
    assert b"s3cr3t" not in found.body


async def test_limits_all_bodies_together_are_bounded() -> None:
    async with running_bench(KVGATE_MAX_BODIES="1MiB") as bench:
        gate, tag, late = asyncio.Event(), bench.tag("holds"), bench.tag("late")
        bench.fake.script(tag, held_head(gate, bench.engine.completion()))
        large = json.dumps(block_body(1, user="x" * 700_000)).encode()
        async with await Connection.open(bench.gateway.url) as first, await Connection.open(bench.gateway.url) as second:
            await first.send("POST", COMPLETIONS, large, {"x-tag": tag})
            await eventually(lambda: bench.fake.open_requests(tag) == 1)
            await second.send("POST", COMPLETIONS, large, {"x-tag": late})
            refused = await second.answer()
            assert (refused.status, refused.error["code"]) == (429, "queue_full")
            assert refused.head.number("retry-after") >= 1
            assert (await bench.post(COMPLETIONS, block_body(1))).status == 200  # small ones find room
            gate.set()
            assert (await first.answer()).status == 200
        assert bench.arrivals(late) == 0
        await bench.idle()
        async with await Connection.open(bench.gateway.url) as again:
            assert (await again.ask("POST", COMPLETIONS, large)).status == 200
        for _ in range(3):  # room that is left by whoever leaves in the middle is room again
            async with await Connection.open(bench.gateway.url) as leaves:
                await leaves.send_raw(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n".encode())
                await leaves.send_raw(b"x" * 800_000)
                await bench.state_where(lambda state: state.reading == 1, "it is being read")
                leaves.vanish()
            await bench.idle()
        async with await Connection.open(bench.gateway.url) as again:
            assert (await again.ask("POST", COMPLETIONS, large)).status == 200
        await bench.end_case()
