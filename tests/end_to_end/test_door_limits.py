"""What is bounded before anything is kept: time, connections, requests behind one another, bodies; and the control routes."""

import asyncio
import json

import pytest

from support.bench import CHAT, COMPLETIONS, Bench, block_body, chat_body, running_bench
from support.fake_upstream import Header, chunk, eventually
from support.gates import held_head
from support.http_client import PATIENCE_S, Connection, ask
from support.raw_requests import refusals, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")
NOTICED_S = 1.0


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
