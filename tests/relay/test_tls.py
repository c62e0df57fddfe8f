"""Engines behind TLS: whom kvgate trusts, what it says of those whom it does not, and that a connection is used again."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.backends.probe import Prober
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.relay.upstream_pool import UpstreamPool
from gateway.tls import client_context
from support.certificates import UNTRUSTED, engine_with, issue, serving
from support.fake_upstream import FakeUpstream, answer, eventually, stream
from support.relay_calls import failure_of, whole
from support.relay_calls import post as send

NAME = BackendName("fake")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def pool_for(engine: FakeUpstream, ca_file: Path | None, name: str | None = None) -> UpstreamPool:
    return UpstreamPool(engine.host, engine.port, backend=NAME, tls=client_context(ca_file), server_hostname=name)


# Trust.


async def test_an_engine_whose_authority_is_given_is_trusted_by_name_and_by_address(
    authority: trustme.CA, ca_file: Path
) -> None:
    async with engine_with(issue(authority, "127.0.0.1", "localhost")) as engine:
        engine.script("ok", answer())
        for name in ("127.0.0.1", "localhost"):
            pool = pool_for(engine, ca_file, name)
            assert (await whole(await send(pool, "ok")))[1] == b"ok"
            pool.close()


@pytest.mark.parametrize("wrong", UNTRUSTED)
async def test_an_engine_that_cannot_prove_who_it_is_is_refused_in_words(
    wrong: str, authority: trustme.CA, ca_file: Path
) -> None:
    untrusted = UNTRUSTED[wrong]
    async with engine_with(untrusted.issue(authority)) as engine:
        pool = pool_for(engine, ca_file)
        with pytest.raises(UpstreamFailed, match=untrusted.words) as refused:
            await send(pool)
        assert refused.value.stage is UpstreamStage.CONNECT
        assert pool.open_connections == 0
        assert engine.requests == []

        prober = Prober(tls=client_context(ca_file))
        with pytest.raises(UpstreamFailed, match=untrusted.words) as failed:
            await prober.probe(NAME, engine.url).get("/v1/models")
        assert failed.value.stage is UpstreamStage.CONNECT
        await prober.close()
        await eventually(lambda: engine.connections_open == 0)


async def test_without_an_authority_of_its_own_a_private_engine_is_refused(authority: trustme.CA) -> None:
    async with engine_with(issue(authority, "127.0.0.1")) as engine:
        with pytest.raises(UpstreamFailed, match="certificate verify failed"):
            await send(pool_for(engine, None))


async def test_an_old_tls_is_refused(authority: trustme.CA, ca_file: Path) -> None:
    context = serving(issue(authority, "127.0.0.1"))
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with FakeUpstream(default=answer(), tls=context) as engine:
        with pytest.raises(UpstreamFailed) as refused:
            await send(pool_for(engine, ca_file))
        assert refused.value.stage is UpstreamStage.CONNECT
        assert engine.requests == []


# Carrying requests.


async def test_a_connection_over_tls_is_used_again_and_its_breaks_are_the_same(authority: trustme.CA, ca_file: Path) -> None:
    async with engine_with(issue(authority, "127.0.0.1")) as engine:
        engine.script("ok", answer(framing="chunked"))
        engine.script("cut", stream(2, then="close"))
        engine.script("reset", stream(2, then="reset"))
        engine.script("large", answer(body=b"x" * 1_000_000))
        pool = pool_for(engine, ca_file)
        for number in range(20):
            exchange = await send(pool, "ok", b"y" * 100_000)
            assert (await whole(exchange))[1] == b"ok"
            assert exchange.reused is (number > 0)
        assert (await whole(await send(pool, "large")))[1] == b"x" * 1_000_000
        assert engine.connections_seen == 1
        for tag in ("cut", "reset"):
            assert (await failure_of(await send(pool, tag))).stage is UpstreamStage.BODY
        assert pool.open_connections == 0
        pool.close()


async def test_a_body_that_ends_with_the_connection_needs_an_orderly_end_of_tls(authority: trustme.CA, ca_file: Path) -> None:
    async with engine_with(issue(authority, "127.0.0.1")) as engine:
        engine.script("until the end", answer(body=b"all of it", framing="close"))
        pool = pool_for(engine, ca_file)
        assert (await whole(await send(pool, "until the end")))[1] == b"all of it"
        pool.close()


async def test_a_handshake_that_does_not_end_is_given_up_in_time(ca_file: Path) -> None:
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1")
    port = silent.sockets[0].getsockname()[1]
    pool = UpstreamPool("127.0.0.1", port, backend=NAME, tls=client_context(ca_file), connect_timeout_s=0.2)
    with pytest.raises(UpstreamFailed, match=r"finish the TLS handshake within 0\.2 s") as late:
        await send(pool)
    assert late.value.stage is UpstreamStage.CONNECT_TIMEOUT
    silent.close()
    for writer in held:
        writer.transport.abort()
