"""A start that cannot go well says so in one clear line; one that may yet go well waits, and says for what."""

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest

from support.bench import CHAT, MODEL, chat_body
from support.fake_engine import JSON, FakeEngine
from support.fake_upstream import FakeExchange, FakeUpstream, answer, eventually
from support.gateway_process import Exit, GatewayProcess, refused_start, running_gateway, speaks_of
from support.http_client import post


def the_line(ended: Exit, *words: str) -> str:
    """The only line that has these words."""
    lines = [line for line in ended.lines if speaks_of(line, *words)]
    assert len(lines) == 1, f"{words} should be in one line of:\n{ended.output}"
    return lines[0]


def says(gateway: GatewayProcess, *words: str) -> bool:
    return any(speaks_of(line, *words) for line in gateway.output)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


# -- it may yet go well


async def test_an_unreachable_backend_is_waited_for_and_served_when_it_appears() -> None:
    fake = FakeUpstream(default=FakeEngine())
    await fake.start()
    await fake.stop()  # the port is known, and nobody listens on it
    async with running_gateway([fake.url], wait_ready=False) as gateway:
        for on_data_port in (False, True):
            assert (await gateway.probe("/ready", on_data_port=on_data_port)).status == 503
            assert (await gateway.probe("/health", on_data_port=on_data_port)).status == 200
        await eventually(lambda: says(gateway, str(fake.port), "wait"), within_s=20)
        early = await post(gateway.url, CHAT, chat_body(16), {"x-stainless-timeout": "0.3"})
        assert early.status in (429, 503), early
        try:
            await fake.start()
            await gateway.ready()
            assert (await post(gateway.url, CHAT, chat_body(16))).status == 200
            # A later outage leaves it ready: saturation and sickness of others are no reason to be taken out.
            await fake.stop()
            async with asyncio.timeout(40):
                while (await gateway.state()).backend["healthy"]:
                    await asyncio.sleep(0.05)
            assert (await gateway.probe("/ready")).status == 200
        finally:
            await fake.stop()
        waits = [line for line in gateway.output if speaks_of(line, str(fake.port), "wait")]
        assert len(waits) <= 2, "it was said over and over"


async def models_only(exchange: FakeExchange) -> None:
    """A server that serves, and tells nothing about its memory."""
    if exchange.request.target == b"/v1/models":
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "x"}]}
        await answer(200, json.dumps(models).encode(), [JSON])(exchange)
    elif exchange.request.target == b"/v1/chat/completions":
        await FakeEngine()(exchange)
    else:
        await answer(404, b'{"detail":"Not Found"}', [JSON])(exchange)


async def test_a_backend_that_tells_no_capacity_gets_no_grants_and_the_two_settings_are_named() -> None:
    async with FakeUpstream(default=models_only) as fake, running_gateway([fake.url], wait_ready=False) as gateway:
        named = ("KVGATE_KV_BLOCKS", "KVGATE_BLOCK_TOKENS")
        await eventually(lambda: says(gateway, *named), within_s=20)
        assert len([line for line in gateway.output if speaks_of(line, *named)]) == 1
        assert (await gateway.probe("/ready")).status == 503
        refused = await post(gateway.url, CHAT, chat_body(16), {"x-stainless-timeout": "0.3", "x-tag": "early"})
        assert refused.status in (429, 503), refused
        assert fake.tagged("early") == []


async def test_the_two_settings_make_it_serve() -> None:
    given = {"KVGATE_KV_BLOCKS": "64", "KVGATE_BLOCK_TOKENS": "16", "KVGATE_MAX_CONTEXT": "1024", "KVGATE_RESERVE": "0"}
    async with FakeUpstream(default=models_only) as fake, running_gateway([fake.url], given) as gateway:
        served = await post(gateway.url, CHAT, chat_body(16))
        assert served.status == 200
        backend = (await gateway.state()).backend
        assert (backend["budget_blocks"], backend["block_tokens"], backend["max_context"]) == (64, 16, 1024)


# -- it cannot go well


RESERVES = {
    "of the operator's own budget": {"KVGATE_KV_BLOCKS": "32", "KVGATE_RESERVE": "32"},
    "of the discovered budget": {"KVGATE_RESERVE": "64"},
}


@pytest.mark.parametrize("name", RESERVES)
async def test_a_reserve_of_the_whole_budget_ends_the_start(name: str) -> None:
    async with FakeUpstream(default=FakeEngine()) as fake:
        ended = await refused_start([fake.url], RESERVES[name])
    blocks = "32" if "KVGATE_KV_BLOCKS" in RESERVES[name] else "64"
    the_line(ended, "KVGATE_RESERVE", blocks)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("KVGATE_QUEUE_TIMOUT", "KVGATE_QUEUE_TIMEOUT"),
        ("KVGATE_BACKEND", "KVGATE_BACKENDS"),
        ("KVGATE_RESERVED", "KVGATE_RESERVE"),
        ("KVGATE_KVBLOCKS", "KVGATE_KV_BLOCKS"),
    ],
)
async def test_an_unknown_setting_ends_the_start_and_is_told_the_nearest_right_one(wrong: str, right: str) -> None:
    ended = await refused_start(["http://127.0.0.1:9"], {wrong: "60"})
    assert len(ended.lines) == 1, ended.output
    the_line(ended, wrong, right)


WRONG_VALUES = {
    "a duration": ("KVGATE_QUEUE_TIMEOUT", "soon"),
    "a reserve": ("KVGATE_RESERVE", "150%"),
    "an engine": ("KVGATE_ENGINE", "vlmm"),
    "a mode": ("KVGATE_MODE", "enforced"),
    "a share": ("KVGATE_SHARE", "2"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
async def test_a_value_that_cannot_be_read_ends_the_start(name: str) -> None:
    variable, value = WRONG_VALUES[name]
    ended = await refused_start(["http://127.0.0.1:9"], {variable: value})
    assert len(ended.lines) == 1, ended.output
    the_line(ended, variable)


async def test_a_start_without_a_backend_names_the_one_thing_that_one_must_set() -> None:
    ended = await refused_start([], {})
    the_line(ended, "KVGATE_BACKENDS")


@pytest.mark.parametrize("variable", ["KVGATE_PORT", "KVGATE_ADMIN_PORT"])
async def test_a_port_in_use_ends_the_start(variable: str, taken_port: int) -> None:
    async with FakeUpstream(default=FakeEngine()) as fake:
        ended = await refused_start([fake.url], {variable: str(taken_port)})
    the_line(ended, str(taken_port), "in use")
