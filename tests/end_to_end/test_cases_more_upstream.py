"""Cases U, the rest: connections that went stale, and an environment that would send us elsewhere."""

import asyncio
import random
from pathlib import Path

import pytest

from support.bench import CHAT, Bench, chat_body, running_bench
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeUpstream
from support.gateway_process import CASE_SETTINGS, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


# -- U-1


DROP_S = 0.05
POSTS = 100


@pytest.mark.parametrize("stream", [False, True])
async def test_u1_posts_around_the_moment_at_which_the_engine_drops_idle_connections_all_succeed(stream: bool) -> None:
    odds, engine = random.Random(1), FakeEngine()
    async with (
        FakeUpstream(default=engine, drop_idle_after_s=DROP_S) as fake,
        running_gateway([fake.url], CASE_SETTINGS) as gateway,
    ):
        bench = Bench(fake, engine, gateway)
        tag = bench.tag("u1")
        for _ in range(POSTS):
            found = await bench.post(CHAT, chat_body(16, stream=stream), tag=tag)
            assert found.status == 200, found
            assert found.is_tidy
            await asyncio.sleep(odds.uniform(DROP_S * 0.9, DROP_S * 1.1))
        state = await bench.idle()
        assert state.outcomes == {"completed": POSTS}
        whole = [seen for seen in fake.tagged(tag) if seen.end == "answered"]
        assert len(whole) == POSTS  # each was generated once
        await bench.end_case()


# -- U-4


async def test_u4_proxies_and_files_named_by_the_environment_are_ignored(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password s3cr3t\n")
    netrc.chmod(0o600)
    keys = tmp_path / "tls-keys"
    redirected = {
        **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), nowhere),
        "NETRC": str(netrc),
        "SSL_CERT_FILE": str(tmp_path / "nowhere.pem"),
        "SSL_CERT_DIR": str(tmp_path),
        "SSLKEYLOGFILE": str(keys),
        "REQUESTS_CA_BUNDLE": str(tmp_path / "nowhere.pem"),
    }
    async with running_bench(None, with_case_settings=True, watched=True, **redirected) as bench:
        tag = bench.tag("u4")
        assert (await bench.post(CHAT, chat_body(16), tag=tag)).status == 200
        for seen in bench.fake.requests:  # probes and counts among them
            assert seen.target.startswith(b"/")
            assert seen.header("authorization") is None
            assert seen.header("proxy-connection") is None
        await bench.end_case()
    assert not keys.exists()
