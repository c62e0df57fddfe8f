"""A gateway before an engine behind TLS: served with its authority, and otherwise one line that says why not."""

from pathlib import Path

import pytest
import trustme

from support.certificates import UNTRUSTED, engine_with, issue
from support.fake_upstream import eventually
from support.gateway_process import CASE_SETTINGS, running_gateway, start_gateway
from support.http_client import post


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


async def test_the_gateway_serves_an_engine_behind_tls_with_its_authority_in_the_setting(
    authority: trustme.CA, ca_file: Path
) -> None:
    async with engine_with(issue(authority, "127.0.0.1")) as engine:
        settings = {**CASE_SETTINGS, "KVGATE_CA_FILE": str(ca_file)}
        async with running_gateway([engine.url], settings) as gateway:
            body = {"model": "fake-model", "prompt": [1], "max_tokens": 3}
            for _ in range(3):
                assert (await post(gateway.url, "/v1/completions", body)).status == 200
            streamed = await post(gateway.url, "/v1/completions", {**body, "stream": True})
            assert streamed.events[-1] == b"[DONE]"
            connections = {request.connection for request in engine.requests if request.target == b"/v1/completions"}
            assert len(connections) == 1


@pytest.mark.parametrize("wrong", ["another authority", "another name", "expired"])
async def test_the_gateway_says_in_one_line_why_it_does_not_trust_an_engine(
    wrong: str, authority: trustme.CA, ca_file: Path
) -> None:
    untrusted = UNTRUSTED[wrong]
    async with engine_with(untrusted.issue(authority)) as engine:
        gateway = await start_gateway([engine.url], {**CASE_SETTINGS, "KVGATE_CA_FILE": str(ca_file)})
        try:
            await gateway.listening()
            await eventually(lambda: "waits for it" in gateway.text, within_s=20)
            ready = await gateway.probe("/ready")
            assert ready.status == 503
            refused = await post(gateway.url, "/v1/completions", {"model": "fake-model", "prompt": [1], "max_tokens": 3})
            assert refused.status == 503
            assert refused.error["code"] == "no_backend"
            ended = await gateway.stop()
        finally:
            await gateway.kill()
    (line,) = [line for line in ended.lines if "waits for it" in line]
    assert "certificate verify failed" in line
    assert any(word.lower() in line.lower() for word in untrusted.words.split("|"))
    assert engine.requests == []
