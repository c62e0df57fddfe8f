"""`kvgate check`: what it prints, and what it exits with."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.cli.check import _TRIAL_CHAT
from gateway.tokens.tokenizer import Tokenizer
from support.engine_scripts import script_llama_cpp, script_transformers, script_vllm
from support.scripted_engine import ScriptedEngine
from support.tiny_tokenizer import write_tokenizer


@contextmanager
def engine_with(script: Callable[[ScriptedEngine], None]) -> Iterator[str]:
    """A scripted engine on a loop of its own: the command runs one itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = ScriptedEngine()
    script(engine)
    asyncio.run_coroutine_threadsafe(engine.come_back(), loop).result(10)
    try:
        yield engine.url
    finally:
        asyncio.run_coroutine_threadsafe(engine.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def check(monkeypatch: pytest.MonkeyPatch, *arguments: str, **variables: str) -> Result:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return CliRunner().invoke(app, ["check", *arguments])


def test_a_backend_that_is_as_it_should_be_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_with(script_vllm) as url:
        result = check(monkeypatch, "--backends", f"a={url}")
    assert result.exit_code == 0, result.output
    for line in ("64 blocks (engine, used)", "plain: ceil((prompt + output - 1) / 32)", "nothing that the context of 1024"):
        assert line in result.output


def test_what_would_be_refused_is_said_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_with(lambda engine: script_vllm(engine, context=4096, cache_tokens=2080)) as url:
        result = check(monkeypatch, "--backends", url, "--json")
    (found,) = json.loads(result.output)
    assert (found["max_context"], found["largest_prompt_and_cap"]) == (4096, 64 * 32 + 1)
    assert (found["budgets"], found["problems"]) == ({"engine": 64}, [])


@pytest.mark.parametrize(
    ("script", "variables", "problem"),
    [
        (script_transformers, {}, "it answers, but tells no KV capacity: set KVGATE_KV_BLOCKS"),
        (script_vllm, {"KVGATE_KV_BLOCKS": "128"}, "KVGATE_KV_BLOCKS=128, but the engine says 64"),
        (script_vllm, {"KVGATE_RESERVE": "64"}, "leaves nothing of a budget of 64 blocks"),
        (script_vllm, {"KVGATE_RESERVE": "1GiB"}, "needs the bytes of one KV block"),
    ],
)
def test_what_would_go_wrong_in_production_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, script: Callable[[ScriptedEngine], None], variables: dict[str, str], problem: str
) -> None:
    with engine_with(script) as url:
        result = check(monkeypatch, "--backends", url, **variables)
    assert result.exit_code == 1
    assert problem in result.output
    assert "one problem: see above" in result.output


def test_a_backend_that_is_not_there_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check(monkeypatch, "--backends", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "connection refused" in result.output


def test_no_backend_or_a_wrong_setting_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch).exit_code == 2
    assert check(monkeypatch, "--backends", "http://127.0.0.1:9", KVGATE_TP="0").exit_code == 2


def test_nothing_is_sent_that_costs_kv_unless_a_probe_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ScriptedEngine] = []

    def script(engine: ScriptedEngine) -> None:
        script_llama_cpp(engine)
        engine.json("/v1/chat/completions", {"usage": {"prompt_tokens": 32}})
        seen.append(engine)

    with engine_with(script) as url:
        assert check(monkeypatch, "--backends", url).exit_code == 0
        assert all(request.method == "GET" for request in seen[0].seen)
        probed = check(monkeypatch, "--backends", url, "--probe")
    assert probed.exit_code == 0
    assert "prompt tokens of a short chat: predicted 32 = seen 32" in probed.output


def count_script(tokens: int) -> Callable[[ScriptedEngine], None]:
    def script(engine: ScriptedEngine) -> None:
        script_vllm(engine)
        engine.json("/tokenize", {"count": tokens})

    return script


def test_a_tokenizer_is_compared_with_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    tokens = Tokenizer(folder).count_chat({name: json.loads(raw) for name, raw in _TRIAL_CHAT.items()})
    with engine_with(count_script(tokens)) as url:
        assert check(monkeypatch, "--backends", url, KVGATE_TOKENIZER=str(folder)).exit_code == 0
    with engine_with(count_script(tokens + 1)) as url:
        result = check(monkeypatch, "--backends", url, KVGATE_TOKENIZER=str(folder))
    assert result.exit_code == 1
    assert f"KVGATE_TOKENIZER: it counts {tokens} tokens where the engine counts {tokens + 1}" in result.output
    (folder / "tokenizer.json").write_text("{}")
    with engine_with(script_vllm) as url:
        result = check(monkeypatch, "--backends", url, KVGATE_TOKENIZER=str(folder))
    assert result.exit_code == 1
    assert "is no tokenizer that can be read" in result.output
