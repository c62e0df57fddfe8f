"""A backend as callers' requests reach it: its path, its name, and whose key goes along."""

import pytest

from gateway.core.names import BackendName
from gateway.relay.upstream_pool import UpstreamPool
from gateway.web.upstream import Upstream
from support.fake_upstream import FakeUpstream, answer


async def sent(
    fake: FakeUpstream, path: bytes, query: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = (), *, base: bytes = b""
) -> tuple[bytes, dict[bytes, bytes]]:
    """What arrives: target and headers."""
    pool = UpstreamPool(fake.host, fake.port, backend=BackendName("a"))
    upstream = Upstream(pool, host=b"engine:8000", base_path=base, bearer="ours")
    try:
        exchange = await upstream.send(b"POST", path, query, [(b"host", b"gateway"), *headers], b"{}")
        await exchange.head()
        request = fake.requests[-1]
        return request.target, dict(request.headers)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("base", "path", "query", "target"),
    [
        (b"", b"/tokenize", b"", b"/tokenize"),
        (b"/prefix", b"/v1/chat/completions", b"a=1&b=%20", b"/prefix/v1/chat/completions?a=1&b=%20"),
        (b"/pr%C3%A9fix", b"/t%6Fkenize", b"", b"/pr%C3%A9fix/t%6Fkenize"),
    ],
)
async def test_the_path_goes_on_as_it_was_written_behind_the_base(
    base: bytes, path: bytes, query: bytes, target: bytes
) -> None:
    async with FakeUpstream(default=answer()) as fake:
        arrived, headers = await sent(fake, path, query, base=base)
    assert arrived == target
    assert headers[b"host"] == b"engine:8000"


@pytest.mark.parametrize(
    ("headers", "authorization"),
    [
        ((), b"Bearer ours"),
        (((b"authorization", b"Bearer theirs"),), b"Bearer theirs"),
        (((b"x-api-key", b"theirs"),), None),
    ],
)
async def test_the_backends_key_is_only_for_callers_without_one(
    headers: tuple[tuple[bytes, bytes], ...], authorization: bytes | None
) -> None:
    async with FakeUpstream(default=answer()) as fake:
        _, arrived = await sent(fake, b"/version", headers=headers)
    assert arrived.get(b"authorization") == authorization


async def test_which_of_several_engines_is_meant_is_ours_to_say() -> None:
    async with FakeUpstream(default=answer()) as fake:
        pool = UpstreamPool(fake.host, fake.port, backend=BackendName("a.1"))
        upstream = Upstream(pool, host=b"engine", base_path=b"", bearer=None, pinned=((b"X-data-parallel-rank", b"1"),))
        given = [(b"host", b"gateway"), (b"x-data-parallel-rank", b"0"), (b"x-other", b"stays")]
        exchange = await upstream.send(b"POST", b"/v1/completions", b"", given, b"{}")
        await exchange.head()
        pool.close()
    ranks = [value for name, value in fake.requests[-1].headers if name.lower() == b"x-data-parallel-rank"]
    assert ranks == [b"1"]
    assert (b"x-other", b"stays") in fake.requests[-1].headers
