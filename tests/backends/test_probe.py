"""Our own questions to a backend: what goes out, what comes back, what is never shown."""

import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.backends.probe import NeedsKey, Prober
from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from support.scripted_engine import NO_TLS, Scripted, ScriptedEngine

NAME = BackendName("a")


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    prober = Prober(tls=NO_TLS)
    yield prober
    await prober.close()


async def test_the_key_goes_out_as_a_bearer_token_and_is_in_no_repr(engine: ScriptedEngine, prober: Prober) -> None:
    engine.json("/v1/models", {})
    probe = prober.probe(NAME, engine.url, key="s3cret")
    await probe.get("/v1/models")
    assert engine.seen[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(probe)


async def test_without_a_key_no_credentials_go_out(engine: ScriptedEngine, prober: Prober) -> None:
    await prober.probe(NAME, engine.url).get("/x")
    assert "authorization" not in engine.seen[0].headers


async def test_u_4_proxies_and_credentials_of_the_environment_are_ignored(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password something\n")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
    engine.json("/v1/models", {"data": []})
    prober = Prober(tls=NO_TLS)
    answer = await prober.probe(NAME, engine.url).get("/v1/models")
    await prober.close()
    assert answer.ok
    assert "authorization" not in engine.seen[0].headers


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_without_a_key_is_its_own_answer(status: int, engine: ScriptedEngine, prober: Prober) -> None:
    engine.json("/v1/models", {}, status=status)
    with pytest.raises(NeedsKey):
        await prober.probe(NAME, engine.url).get("/v1/models")


async def test_a_refused_connection_says_so_and_names_no_url(engine: ScriptedEngine, prober: Prober) -> None:
    await engine.go_away()
    with pytest.raises(UpstreamFailed) as caught:
        await prober.probe(NAME, engine.url).get("/v1/models")
    assert caught.value.stage is UpstreamStage.CONNECT
    assert str(caught.value) == "a: connect: connection refused"


RAW = {
    "nonsense": b"220 mail.example ESMTP\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "half a body": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
    "bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "not really gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd",
}


@pytest.mark.parametrize("raw", RAW)
async def test_a_broken_answer_is_an_upstream_failure(raw: str, engine: ScriptedEngine, prober: Prober) -> None:
    engine.answers["/v1/models"] = Scripted(raw=RAW[raw])
    with pytest.raises(UpstreamFailed):
        await prober.probe(NAME, engine.url).get("/v1/models")


async def test_whatever_the_http_client_raises_is_an_upstream_failure(engine: ScriptedEngine, prober: Prober) -> None:
    # Seen under uvloop: a connection that was reset as soon as it was open. The watch over the backend logged a traceback.
    def reset(_: httpx.Request) -> httpx.Response:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    prober._client._transport = httpx.MockTransport(reset)
    with pytest.raises(UpstreamFailed) as caught:
        await prober.probe(NAME, engine.url).get("/v1/models")
    assert caught.value.stage is UpstreamStage.HEAD


async def test_a_redirect_is_not_followed(engine: ScriptedEngine, prober: Prober) -> None:
    engine.text("/v1/models", "", status=302, location=f"{engine.url}/elsewhere")
    assert (await prober.probe(NAME, engine.url).get("/v1/models")).status == 302
    assert not engine.asked("/elsewhere")


async def test_questions_leave_no_line_in_the_log(
    engine: ScriptedEngine, prober: Prober, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await prober.probe(NAME, engine.url).get("/v1/models")
    assert not caplog.records


async def test_https_trusts_what_it_was_given_to_trust(engine: ScriptedEngine) -> None:
    prober = Prober(tls=ssl.create_default_context(), limit_s=0.2)
    with pytest.raises(UpstreamFailed):  # plain HTTP behind an https address: a failure like any other
        await prober.probe(NAME, engine.url.replace("http", "https")).get("/v1/models")
    await prober.close()
