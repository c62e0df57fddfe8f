"""A head that is known is served as the parser would have it; whatever differs by a byte, the parser reads itself.

Every test drives two connections with the same reads: one that keeps heads, and one that keeps none.
"""

import asyncio
import itertools
import random
import re
from collections.abc import Iterable
from typing import Any, Final

import pytest
import uvicorn
from anthropic import AsyncAnthropic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from uvicorn.server import ServerState

from gateway.batched import Batches
from gateway.core.errors import InvalidRequest
from gateway.metrics import Metrics
from gateway.relay.known_head import MOST_BYTES, known_head
from gateway.web.door import Door, DoorLimits, DoorReason
from gateway.web.http_protocol import HttpProtocol
from gateway.web.inference import Inference
from gateway.web.inference_head import InferenceHead
from gateway.web.upload import BodyRoom, read_upload

LIMITS: Final = DoorLimits(header_bytes=8192, headers=32, url_bytes=256, header_s=9.0, idle_s=9.0, pipelined=2)
LINE: Final = b"POST /v1/chat/completions HTTP/1.1"
FIELDS: Final = (b"host: x", b"Authorization: Bearer k", b"x-stainless-timeout: 60", b"content-length: %d", b"accept: */*")


def request(body: bytes = b"{}", *, line: bytes = LINE, fields: Iterable[bytes] = FIELDS, length: bytes | None = None) -> bytes:
    head = b"\r\n".join((line, *fields)) + b"\r\n\r\n"
    return head.replace(b"%d", b"%d" % len(body) if length is None else length) + body


class Reading(Inference):
    """Reads each body, keeps what came, and tells the client how much that was. gate: what its answers wait for."""

    def __init__(self) -> None:
        self.batches = Batches()
        self.served: list[tuple[Any, ...]] = []
        self.heads: list[InferenceHead] = []
        self.gate: asyncio.Event | None = None
        self.limit_bytes = 1 << 20
        self.space = BodyRoom(1 << 30).open()

    async def serve_wire(self, head: InferenceHead, client: Any) -> None:
        self.heads.append(head)
        client.on_gone(client.task.cancel)
        try:
            try:
                body = await read_upload(client, head.headers, self.space.take, limit_bytes=self.limit_bytes, timeout_s=9.0)
            except InvalidRequest as fault:
                body = str(fault).encode()
            told = (head.target, head.asked, head.patience_s, head.credentials, head.onward_lines(frozenset()))
            self.served.append((*told, body, client.keep_alive))
            if self.gate is not None:
                await self.gate.wait()
            answer = b'{"bytes":%d}' % len(body)
            framing = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
            await client.write_head(200, [(b"date", b"now"), *framing], goes_on=True)
            await client.write_body(answer)
            await client.finish()
        except asyncio.CancelledError:
            self.served.append(("gone",))
        finally:
            client.close()


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes | str] = []
        self.is_over = False

    def write(self, data: Any) -> None:
        self.seen.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.seen.append("close")
        self.is_over = True

    def abort(self) -> None:
        self.seen.append("abort")
        self.is_over = True

    def write_eof(self) -> None:
        self.seen.append("eof")

    def pause_reading(self) -> None:
        self.seen.append("pause")

    def resume_reading(self) -> None:
        self.seen.append("resume")

    def get_write_buffer_size(self) -> int:
        return 0


class Feeding(HttpProtocol):
    """fed: how many reads the parser saw."""

    fed = 0

    def _feed(self, data: bytes) -> bytes:
        self.fed += 1
        return super()._feed(data)


class Refusing(Door):
    """reasons: of all that it refused."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reasons: list[DoorReason] = []

    def refused(self, reason: DoorReason) -> None:
        self.reasons.append(reason)
        super().refused(reason)


def _dateless(seen: bytes | str) -> bytes | str:
    """Two connections may answer in different seconds."""
    return re.sub(rb"\r\ndate: [^\r]+", b"", seen) if isinstance(seen, bytes) else seen


class Connection:
    """One connection of a client."""

    def __init__(self, limits: DoorLimits = LIMITS, *, keeps_heads: bool = True, is_made: bool = True) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            self.asked.append((scope["method"], scope["path"], scope["query_string"], scope["headers"], message.get("body")))
            await send({"type": "http.response.start", "status": 204, "headers": [(b"date", b"now")]})
            await send({"type": "http.response.body", "body": b""})

        config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none")
        config.load()
        config.loaded_app = app
        self.asked: list[Any] = []
        self.door = Refusing("data", limits, Metrics("test"), random.Random(1))
        self.inference, self.state, self.transport = Reading(), ServerState(), Transport()
        self.protocol = Feeding(self.door, self.inference, config, self.state, {})
        if not keeps_heads:
            self.protocol._unseen = 1 << 30
        if is_made:
            self.protocol.connection_made(self.transport)

    async def read(self, data: bytes) -> None:
        if not self.transport.is_over:
            self.protocol.data_received(data)
        for _ in range(6):
            await asyncio.sleep(0)

    @property
    def facts(self) -> tuple[Any, ...]:
        """Everything that anybody may see of it."""
        door = self.door
        waiting = (len(door.heads), len(door.idle), len(door.lingering))
        is_deaf, quiet = self.protocol._is_deaf, self.protocol._quiet_bytes
        seen, state = [_dateless(each) for each in self.transport.seen], self.state
        counted = (state.total_requests, len(state.tasks), list(door.reasons))
        return (waiting, is_deaf, quiet, seen, counted, list(self.inference.served), list(self.asked))

    async def leave(self) -> None:
        self.protocol.connection_lost(None)
        for task in list(self.state.tasks):
            task.cancel()
        await asyncio.sleep(0)


async def check(*reads: bytes, limits: DoorLimits = LIMITS, body_bytes: int = 1 << 20) -> int:
    """Both connections show the same after each read. Returns how many reads the parser was spared. body_bytes: at most."""
    keeping, forgetful = Connection(limits), Connection(limits, keeps_heads=False)
    keeping.inference.limit_bytes = forgetful.inference.limit_bytes = body_bytes
    try:
        for data in reads:
            await keeping.read(data)
            await forgetful.read(data)
            assert keeping.facts == forgetful.facts
        return forgetful.protocol.fed - keeping.protocol.fed
    finally:
        await keeping.leave()
        await forgetful.leave()


FIRST: Final = request()


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"x" * 1000, b"POST / HTTP/1.1\r\n\r\n", b"\r\n", b"\r\n\r\n" + FIRST])
async def test_the_same_head_with_any_body_is_not_read_again(body: bytes) -> None:
    assert await check(FIRST, request(body), request(body)) == 2


async def test_a_head_that_came_in_one_read_is_known_however_its_body_came() -> None:
    assert await check(FIRST[:-1], FIRST[-1:], request(b"[]")) == 1


async def test_a_length_with_leading_zeros_is_for_the_parser() -> None:
    assert await check(FIRST, request(length=b"002")) == 0


async def test_what_follows_from_a_head_is_shared_by_all_requests_that_bring_it() -> None:
    connection = Connection()
    for body in (b"{}", b"[]", b"[1]"):
        await connection.read(request(body))
    assert len(connection.inference.heads) == 3
    assert len(set(map(id, connection.inference.heads))) == 1
    await connection.leave()


async def test_the_sdks_of_openai_and_anthropic_send_the_same_head_again() -> None:
    connections: list[Connection] = []

    def connected() -> HttpProtocol:
        connections.append(Connection(is_made=False))
        return connections[-1].protocol

    async with await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as by_openai,
            AsyncAnthropic(base_url=url, api_key="k") as other,
        ):
            for text in ("one", "two", "three"):
                await by_openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}])
                await other.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": text}])
    assert len(connections) == 2
    for connection in connections:
        assert len(connection.inference.served) == 3
        assert len(set(map(id, connection.inference.heads))) == 1


NEAR: Final = {
    "another order": request(fields=FIELDS[::-1]),
    "another case of a name": request(fields=[field.replace(b"host", b"Host") for field in FIELDS]),
    "another case of a value": request(fields=[field.replace(b"Bearer k", b"Bearer K") for field in FIELDS]),
    "another blank": request(fields=[field.replace(b": ", b":") for field in FIELDS]),
    "a blank behind the length": request(length=b"2 "),
    "a blank before the length": request(length=b" 2"),
    "one header more": request(fields=[*FIELDS, b"x-more: 1"]),
    "one header less": request(fields=FIELDS[:-1]),
    "another target": request(line=LINE.replace(b"completions", b"completions?a=1")),
    "another route": request(line=LINE.replace(b"chat/", b"")),
    "two lengths": request(fields=[*FIELDS, b"content-length: 2"]),
    "a coding beside the length": request(fields=[*FIELDS, b"transfer-encoding: chunked"]),
    "a coding instead of the length": request(b"2\r\n{}\r\n0\r\n\r\n", fields=[*FIELDS[:3], b"transfer-encoding: chunked"]),
    "a folded length": request(length=b"\r\n 2"),
    "a folded header": request(fields=[*FIELDS[:-1], b"accept: */*\r\n folded"]),
    "a bare line feed": FIRST.replace(b"\r\n", b"\n"),
    "a bare line feed behind the length": FIRST.replace(b"length: 2\r\n", b"length: 2\n"),
    "a bare carriage return behind the length": FIRST.replace(b"length: 2\r\n", b"length: 2\r"),
    "a signed length": request(length=b"+2"),
    "a length below nothing": request(length=b"-2"),
    "a length with an underscore": request(length=b"0_2"),
    "a hexadecimal length": request(length=b"0x2"),
    "a list of lengths": request(length=b"2, 2"),
    "no length": request(length=b""),
    "a length in other digits": request(length="\u0662".encode()),
    "a length of many digits": request(length=b"0" * 15 + b"2"),
    "an enormous length": request(length=b"9" * 30),
    "a length of nothing": request(b""),
    "a body that is longer": request(length=b"1"),
    "a second request behind it": FIRST + FIRST,
    "half a request behind it": FIRST + FIRST[:40],
    "a line end before it": b"\r\n" + FIRST,
    "a line end behind it": FIRST + b"\r\n",
    "HTTP/1.0": request(line=LINE.replace(b"1.1", b"1.0")),
    "an expectation": request(fields=[*FIELDS, b"expect: 100-continue"]),
    "the last one": request(fields=[*FIELDS, b"connection: close"]),
    "an offer of an upgrade": request(fields=[*FIELDS, b"connection: upgrade", b"upgrade: h2c"]),
    "another method": request(line=LINE.replace(b"POST", b"PUT")),
    "no HTTP": b"\x16\x03\x01",
}


@pytest.mark.parametrize("name", NEAR)
async def test_what_is_nearly_the_same_is_for_the_parser(name: str) -> None:
    assert await check(FIRST, NEAR[name]) == 0
    await check(FIRST, NEAR[name], FIRST, NEAR[name], FIRST)


@pytest.mark.parametrize("name", NEAR)
async def test_an_unusual_head_is_no_reason_to_read_an_ordinary_one_otherwise(name: str) -> None:
    await check(NEAR[name], FIRST, FIRST, NEAR[name], NEAR[name])


@pytest.mark.parametrize("name", ["HTTP/1.0", "an expectation", "the last one", "an offer of an upgrade", "another method"])
async def test_what_is_not_served_past_asgi_on_a_connection_that_goes_on_is_never_known(name: str) -> None:
    assert await check(NEAR[name], NEAR[name], NEAR[name]) == 0


HEAD_BYTES: Final = len(FIRST) - 2


@pytest.mark.parametrize("cut", range(1, HEAD_BYTES))
async def test_a_head_in_two_reads_is_for_the_parser(cut: int) -> None:
    assert await check(FIRST, FIRST[:cut], FIRST[cut:], FIRST) == 1


async def test_a_body_may_come_in_parts_behind_its_head_or_later() -> None:
    sent = request(b"x" * 300)
    for cuts in ([HEAD_BYTES + 2], [HEAD_BYTES + 2, HEAD_BYTES + 3], [HEAD_BYTES + 100, HEAD_BYTES + 101, HEAD_BYTES + 301]):
        assert sent[: HEAD_BYTES + 2].endswith(b"\r\n\r\n")
        assert await check(FIRST, *pieces(sent, cuts), FIRST) == len(cuts) + 2


async def test_what_comes_behind_a_body_is_for_the_parser() -> None:
    sent = request(b"x" * 300)
    for behind in (FIRST, FIRST[:10], b"\r\n", b"no HTTP\r\n"):
        assert await check(FIRST, sent[:-1], sent[-1:] + behind, b"more", FIRST) >= 1


async def test_a_length_beyond_what_may_be_read_refuses_before_the_body() -> None:
    """By the length that the request states, not by that of the first with this head."""
    for keeps_heads in (True, False):
        connection = Connection(keeps_heads=keeps_heads)
        await connection.read(FIRST)
        connection.inference.limit_bytes = 500
        await connection.read(request(b"x" * 501)[:-500])
        assert connection.inference.served[-1][-2] == b"the request body is larger than 500 bytes"
        await connection.leave()


async def test_a_length_that_was_refused_is_not_that_of_the_next_request_with_this_head() -> None:
    assert await check(request(b"x" * 21), FIRST, request(b"x" * 21), FIRST, body_bytes=20) == 3


async def test_who_leaves_in_the_middle_of_a_body_is_gone() -> None:
    for keeps_heads in (True, False):
        connection = Connection(keeps_heads=keeps_heads)
        await connection.read(FIRST)
        await connection.read(request(b"x" * 300)[:-1])
        await connection.leave()
        assert connection.inference.served[1:] == [("gone",)]


async def test_a_body_that_comes_faster_than_it_is_read_pauses_reading() -> None:
    connection = Connection()
    await connection.read(FIRST)
    connection.protocol.data_received(request(b"x" * 600_000)[:300_000])
    assert connection.transport.seen[-1] == "pause"
    await connection.leave()
    assert await check(FIRST, request(b"x" * 600_000)[:300_000], b"x" * 10) == 2


async def test_what_comes_during_an_answer_is_for_the_parser() -> None:
    connection = Connection()
    await connection.read(FIRST)
    gate = connection.inference.gate = asyncio.Event()
    await connection.read(FIRST)
    assert connection.protocol.fed == 1
    await connection.read(FIRST)
    assert connection.protocol.fed == 2
    gate.set()
    await connection.read(b"")
    assert (len(connection.inference.served), len(connection.asked)) == (2, 1)
    await connection.leave()


async def test_who_leaves_or_is_told_that_this_is_the_last_answer_is_treated_as_ever() -> None:
    for end in ("connection_lost", "shutdown", "eof_received"):
        facts = []
        for keeps_heads in (True, False):
            connection = Connection(keeps_heads=keeps_heads)
            await connection.read(FIRST)
            gate = connection.inference.gate = asyncio.Event()
            await connection.read(FIRST)
            getattr(connection.protocol, end)(*([None] if end == "connection_lost" else []))
            gate.set()
            for _ in range(6):
                await asyncio.sleep(0)
            facts.append(connection.facts)
            assert connection.protocol.fed == (1 if keeps_heads else 2)
            if end != "connection_lost":
                await connection.leave()
        assert facts[0] == facts[1]


async def test_a_head_as_large_as_the_door_lets_in_is_known_only_if_a_longer_length_would_pass_too() -> None:
    size = sum(len(field.replace(b"%d", b"2")) + 2 for field in FIELDS)
    for spare, spared in ((14, 0), (15, 1)):
        assert await check(FIRST, FIRST, limits=DoorLimits(size + spare, 16, 256, 9.0, 9.0, 2)) == spared
    assert await check(FIRST, request(b"x" * 1000), FIRST, limits=DoorLimits(size, 16, 256, 9.0, 9.0, 2)) == 0


async def test_a_client_that_says_something_new_each_time_is_not_looked_at_for_ever() -> None:
    connection = Connection()
    for number in range(40):
        await connection.read(request(fields=[*FIELDS, b"x-id: %d" % number]))
    known = connection.protocol._known
    await connection.read(request(fields=[*FIELDS, b"x-id: 41"]))
    assert connection.protocol._known is known
    assert connection.protocol.fed == 41
    await connection.leave()


async def test_a_large_head_is_not_kept() -> None:
    padding = MOST_BYTES - len(request(b"", fields=[*FIELDS, b"x: "]))
    for size, spared in ((padding - 1, 1), (padding + 10, 0)):
        sent = request(fields=[*FIELDS, b"x: " + b"y" * size])
        assert await check(sent, sent) == spared


def test_only_what_the_parser_said_of_a_head_is_believed() -> None:
    found = Inference.find(b"/v1/chat/completions")
    assert found is not None
    inference = InferenceHead(*found, [(b"host", b"x"), (b"content-length", b"2")])
    plain = request(fields=[b"host: x", b"content-length: 2"])
    line = b"POST " + inference.target + b" HTTP/1.1"
    known = known_head(plain, line, inference.headers, inference)
    assert known is not None
    assert (known.body_of(plain), known.part_of(plain)) == (b"{}", (b"{}", 2))
    assert (known.body_of(plain[:-2]), known.part_of(plain[:-2])) == (None, (b"", 2))
    assert known.part_of(plain + b"x") == known.part_of(plain[:-3]) == (b"", 0)
    assert known.body_of(plain + b"x") is known.body_of(b"") is None
    for other in (
        b"\r\n" + plain,
        plain.replace(b"host: x", b"host: y"),
        plain.replace(b"POST ", b"POST  "),
        plain.replace(b"\r\n\r\n", b"\r\n"),
        plain.replace(b"length: 2", b"length: 2 "),
        request(fields=[b"content-length: 2", b"host: x"]),
        request(fields=[b"host: x"]),
        b"",
    ):
        assert known_head(other, line, inference.headers, inference) is None


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(at) if start < end]


ANY: Final = st.one_of(
    st.just(FIRST),
    st.binary(max_size=40).map(request),
    st.sampled_from(
        [request(b"[1]"), request(b"{}", fields=FIELDS[:-1]), b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", *NEAR.values()]
    ),
)


@given(
    st.lists(st.tuples(ANY, st.lists(st.integers(0, 400), max_size=2), st.booleans()), max_size=8), st.sampled_from([20, 999])
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_sequence_of_reads_shows_whether_heads_are_kept(sent: list[tuple[bytes, list[int], bool]], body_bytes: int) -> None:
    """The boolean: the message comes together with what came before it."""
    reads: list[bytes] = []
    for data, cuts, is_joined in sent:
        first, *others = pieces(data, cuts)
        if is_joined and reads:
            reads[-1] += first
        else:
            reads.append(first)
        reads += others
    asyncio.run(_check(reads, body_bytes))


async def _check(reads: list[bytes], body_bytes: int) -> None:
    await check(*reads, body_bytes=body_bytes)
