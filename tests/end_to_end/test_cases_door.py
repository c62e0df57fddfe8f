"""Cases S-1 and S-2: what comes in at the door, byte by byte, and what must never come through it."""

import asyncio
import json

import pytest

from support.bench import CHAT, Bench, chat_body
from support.fake_upstream import Header, answer, chunk
from support.gates import held_stream
from support.http_client import Connection
from support.raw_requests import everything, refusals, refused_once_more, request, statuses_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")


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
