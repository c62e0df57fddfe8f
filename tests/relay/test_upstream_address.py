"""Where a backend is: what is asked of the resolver, and which of several addresses is taken."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from gateway.relay import upstream_address
from gateway.relay.upstream_address import UpstreamAddress
from support.fake_upstream import FakeUpstream, eventually

NOBODY = "127.0.0.2"  # loopback as well, but the fake listens on one address only


class Names:
    """A resolver that says what it is told to, and counts how often it was asked."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def look_up(self, host: str, port: int) -> list[str]:
        assert (host, port > 0) == ("engine.example", True)
        self.asked += 1
        await self.may_answer.wait()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def address_of(
    upstream: FakeUpstream,
    look_up: Callable[[str, int], Coroutine[Any, Any, list[str]]],
    *,
    host: str = "engine.example",
    limit_s: float = 5.0,
) -> UpstreamAddress:
    return UpstreamAddress(host, upstream.port, tls=None, server_hostname=host, limit_s=limit_s, look_up=look_up)


class Visitor(asyncio.Protocol):
    """Comes, and says whether it got in."""

    peer: tuple[str, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = transport.get_extra_info("peername")
        cast(asyncio.Transport, transport).abort()


async def visit(address: UpstreamAddress) -> str:
    visitor = Visitor()
    await address.connect(visitor)
    assert visitor.peer is not None
    return visitor.peer[0]


async def test_a_name_is_looked_up_once_for_all_who_ask_and_kept_for_a_while(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(["127.0.0.1"])
    address = address_of(upstream, names.look_up)
    names.may_answer.clear()
    visits = [asyncio.create_task(visit(address)) for _ in range(20)]
    await eventually(lambda: names.asked)
    names.may_answer.set()
    assert set(await asyncio.gather(*visits)) == {"127.0.0.1"}
    await visit(address)
    assert names.asked == 1
    monkeypatch.setattr(upstream_address, "KEPT_S", 0.0)
    await visit(address)
    assert names.asked == 2


async def test_an_address_in_figures_is_asked_of_nobody(upstream: FakeUpstream) -> None:
    names = Names(AssertionError("asked"))
    assert await visit(address_of(upstream, names.look_up, host="127.0.0.1")) == "127.0.0.1"
    assert names.asked == 0


async def test_the_next_address_is_tried_and_the_one_that_answered_comes_first_from_then_on(upstream: FakeUpstream) -> None:
    names = Names([NOBODY, "127.0.0.1"])
    address = address_of(upstream, names.look_up)
    assert await visit(address) == "127.0.0.1"
    await upstream.stop()
    with pytest.raises(OSError, match=rf"127\.0\.0\.1: .*{NOBODY}: "):
        await visit(address_of(upstream, Names(["127.0.0.1", NOBODY]).look_up))
    with pytest.raises(OSError, match=rf"{NOBODY}: .*127\.0\.0\.1: "):
        await visit(address)  # what was kept failed, so this is what the resolver said again
    assert names.asked == 2


async def test_an_engine_that_has_moved_is_found_before_what_was_kept_grows_old(upstream: FakeUpstream) -> None:
    names = Names(["127.0.0.1"], [NOBODY], ["127.0.0.1"])
    address = address_of(upstream, names.look_up)
    await visit(address)
    async with FakeUpstream(default=upstream.default, host=NOBODY, port=upstream.port):
        await upstream.stop()
        assert await visit(address) == NOBODY
    await upstream.start()
    assert await visit(address) == "127.0.0.1"
    assert names.asked == 3


async def test_an_address_that_swallows_everything_leaves_time_for_the_others(upstream: FakeUpstream) -> None:
    # An address for documentation: either nothing answers, or the machine says at once that it has no way there.
    names = Names(["192.0.2.1", "127.0.0.1"])
    async with asyncio.timeout(5):
        assert await visit(address_of(upstream, names.look_up, limit_s=0.2)) == "127.0.0.1"


async def test_a_name_that_is_not_known_fails_whoever_asked_and_is_asked_for_again(upstream: FakeUpstream) -> None:
    names = Names(OSError("no such name"), ["127.0.0.1"])
    address = address_of(upstream, names.look_up)
    for outcome in await asyncio.gather(*(visit(address) for _ in range(3)), return_exceptions=True):
        assert str(outcome) == "no such name"
    assert await visit(address) == "127.0.0.1"
    assert names.asked == 2


async def test_who_gives_up_while_a_name_is_looked_up_takes_it_from_nobody(upstream: FakeUpstream) -> None:
    names = Names(["127.0.0.1"])
    names.may_answer.clear()
    address = address_of(upstream, names.look_up)
    hasty, patient = asyncio.create_task(visit(address)), asyncio.create_task(visit(address))
    await eventually(lambda: names.asked)
    hasty.cancel()
    names.may_answer.set()
    assert await patient == "127.0.0.1"
    with pytest.raises(asyncio.CancelledError):
        await hasty


async def test_closing_ends_the_question(upstream: FakeUpstream) -> None:
    names = Names(["127.0.0.1"])
    names.may_answer.clear()
    address = address_of(upstream, names.look_up)
    call = asyncio.create_task(visit(address))
    await eventually(lambda: names.asked)
    address.close()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_certificate_of_somebody_else_is_not_asked_for_elsewhere(upstream: FakeUpstream) -> None:
    names = Names(["127.0.0.1", NOBODY])

    def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 No\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_plainly, "127.0.0.1") as plain:
        address = UpstreamAddress(
            "engine.example",
            plain.sockets[0].getsockname()[1],
            tls=ssl.create_default_context(),
            server_hostname="engine.example",
            limit_s=5.0,
            look_up=names.look_up,
        )
        with pytest.raises(ssl.SSLError):
            await visit(address)
