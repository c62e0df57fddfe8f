"""Secrets stand nowhere but where they are given and where they are used."""

import json
from pathlib import Path

import pytest

from support.bench import CHAT, COMPLETIONS, block_body, chat_body, running_bench
from support.fake_engine import FakeEngine
from support.fake_upstream import FakeUpstream, answer, close_before_head
from support.gateway_process import CASE_SETTINGS, running_gateway
from support.http_client import ask, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN, BACKEND, NAMED, USER_INFO, CALLER, PROMPT = (
    f"s3cr3t-{name}-s3cr3t" for name in ("admin", "backend", "named", "userinfo", "caller", "prompt")
)
ALL = (ADMIN, BACKEND, NAMED, USER_INFO, CALLER, PROMPT)


def arguments_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def assert_clean(where: str, text: str) -> None:
    for secret in ALL:
        assert secret not in text, f"{secret} in {where}"


async def test_no_secret_stands_in_log_state_metric_error_or_argument(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"a={NAMED}\n")
    async with FakeUpstream(default=FakeEngine()) as fake:
        address = fake.url.replace("http://", f"a=http://user:{USER_INFO}@")
        settings = CASE_SETTINGS | {
            "KVGATE_ADMIN_TOKEN": ADMIN,
            "KVGATE_BACKEND_KEY": BACKEND,
            "KVGATE_BACKEND_KEYS_FILE": str(keys),
            "KVGATE_LOG_LEVEL": "debug",
        }
        async with running_gateway([address], settings) as gateway:
            headers = {"Authorization": f"Bearer {CALLER}", "X-Api-Key": CALLER, "Cookie": CALLER}
            told: list[str] = []
            fake.script("fails", close_before_head())
            fake.script("nonsense", answer(500, b"no", []))
            for tag in ("", "fails", "nonsense"):
                for target, body in ((CHAT, chat_body(16, messages=[{"role": "user", "content": PROMPT}])), (COMPLETIONS, {})):
                    found = await post(gateway.url, target, body, {**headers, **({"x-tag": tag} if tag else {})})
                    told.append(str(found.head) + found.body.decode())
            wrong = [b"{" + PROMPT.encode(), json.dumps({"messages": PROMPT, "max_tokens": PROMPT}).encode()]
            for text in wrong:
                found = await ask(gateway.url, "POST", CHAT, text, headers)
                told.append(str(found.head) + found.body.decode())
            found = await ask(gateway.url, "POST", CHAT + "?key=" + CALLER, json.dumps(chat_body(16)).encode(), headers)
            told.append(str(found.head) + found.body.decode())
            for token in (ADMIN, CALLER):
                change = json.dumps({"reserve": "0"}).encode()
                sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                found = await ask(gateway.admin_url, "PUT", "/kvgate/reserve", change, sent)
                assert found.status == (200 if token == ADMIN else 401)
                told.append(str(found.head) + found.body.decode())
            asked = [await ask(gateway.admin_url, "GET", path) for path in ("/kvgate/state", "/metrics", "/openapi.json")]
            told += [found.body.decode() for found in asked]
            command = arguments_of(gateway.pid)
            used = {seen.header("authorization") for seen in fake.requests}
            assert f"Bearer {NAMED}".encode() in used  # where it is meant to be
            assert f"Bearer {CALLER}".encode() in used
            assert not any(USER_INFO.encode() in seen.raw_head for seen in fake.requests)
        assert_clean("an answer", "\n".join(told))
        assert_clean("the arguments", command)
        assert_clean("the log", gateway.text)


async def test_a_backends_key_is_used_only_where_the_caller_brought_none() -> None:
    async with running_bench(KVGATE_BACKEND_KEY=BACKEND) as bench:
        tags = bench.tag("none"), bench.tag("own")
        await bench.post(COMPLETIONS, block_body(1), tag=tags[0])
        await bench.post(COMPLETIONS, block_body(1), tag=tags[1], headers={"Authorization": f"Bearer {CALLER}"})
        seen = [bench.fake.tagged(tag)[0].header("authorization") for tag in tags]
        assert seen == [f"Bearer {BACKEND}".encode(), f"Bearer {CALLER}".encode()]
