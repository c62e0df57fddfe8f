"""Prompts that the bound would refuse: they are counted, by whom it can be had, and served for what they are."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.tokenizer import Tokenizer
from support.bench import CHAT, MODEL, Bench, blocks_of, chat_body, running_bench
from support.fake_engine import JSON, FakeEngine, count_tokens
from support.fake_upstream import FakeExchange, answer, eventually
from support.gateway_process import refused_start, speaks_of
from support.tiny_tokenizer import write_tokenizer

CAP = 16
CONTEXT = 1024
WORDS = "If the value of the first line is not None, the name of the function is returned. " * 20  # more bytes than a context
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def long_chat(**more: Any) -> dict[str, object]:
    return chat_body(CAP, messages=[{"role": "user", "content": WORDS}], **more)


class Uncounting(FakeEngine):
    """An engine without a route that counts. Its usage is what its own tokenizer says."""

    tokenizer: Tokenizer

    async def __call__(self, exchange: FakeExchange) -> None:
        if exchange.request.target == b"/tokenize":
            await answer(404, b'{"detail":"Not Found"}', [JSON])(exchange)
        elif exchange.request.target == CHAT.encode():
            asked = json.loads(await exchange.body())
            usage = {"prompt_tokens": self.tokenizer.count_chat(asked), "completion_tokens": 1}
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
            await self._send_json(exchange, {"model": MODEL, "choices": [choice], "usage": usage})
        else:
            await super().__call__(exchange)


def tokenizer_in(folder: Path) -> Path:
    folder.mkdir()
    return write_tokenizer(folder)


@pytest.fixture
async def uncounting(tmp_path: Path) -> AsyncIterator[tuple[Bench, Tokenizer]]:
    """A gateway with the tokenizer of an engine that does not count."""
    folder = tokenizer_in(tmp_path / "model")
    engine = Uncounting()
    engine.tokenizer = Tokenizer(folder)
    async with running_bench(engine, KVGATE_TOKENIZER=str(folder)) as bench:
        yield bench, engine.tokenizer


async def test_a_prompt_that_only_its_bound_would_refuse_is_counted_by_the_engine_and_served() -> None:
    async with running_bench() as bench:
        found = await bench.post(CHAT, long_chat())
        tokens = count_tokens([{"role": "user", "content": WORDS}])
        assert tokens + CAP < CONTEXT < len(WORDS)
        assert (found.status, found.head.number("x-kvgate-blocks")) == (200, blocks_of(tokens, CAP))
        await bench.end_case()


async def test_a_prompt_that_only_its_bound_would_refuse_is_counted_by_the_local_tokenizer_and_served(
    uncounting: tuple[Bench, Tokenizer],
) -> None:
    bench, tokenizer = uncounting
    for more in ({}, {"tools": [TOOL]}):
        body = long_chat(**more)
        tokens = tokenizer.count_chat(body)
        assert tokens + CAP < CONTEXT < len(WORDS)
        found = await bench.post(CHAT, body)
        assert (found.status, found.head.number("x-kvgate-blocks")) == (200, blocks_of(tokens, CAP))
    asked = [request for request in bench.fake.requests if request.target == b"/tokenize"]
    assert len(asked) == 1  # an engine without such a route is not asked twice
    assert (await bench.gateway.metrics()).total("kvgate_prompt_estimate_ratio_sum") == 2.0  # two ratios of exactly 1
    await bench.idle()


async def test_a_prompt_longer_than_the_context_is_refused_with_its_exact_number(uncounting: tuple[Bench, Tokenizer]) -> None:
    bench, tokenizer = uncounting
    body = chat_body(CAP, messages=[{"role": "user", "content": WORDS * 4}])
    tokens = tokenizer.count_chat(body)
    found = await bench.post(CHAT, body)
    assert found.status == 400
    assert found.error["code"] == "context_length_exceeded"
    assert str(tokens) in found.error["message"]
    await bench.idle()


async def test_a_tokenizer_that_is_not_the_engines_is_found_out_by_the_first_count(tmp_path: Path) -> None:
    """The fake engine counts a quarter of the bytes, which no real tokenizer agrees with."""
    folder = tokenizer_in(tmp_path / "model")
    async with running_bench(KVGATE_TOKENIZER=str(folder)) as bench:
        tokens = count_tokens([{"role": "user", "content": WORDS}])
        for _ in range(3):
            found = await bench.post(CHAT, long_chat())
            assert (found.status, found.head.number("x-kvgate-blocks")) == (200, blocks_of(tokens, CAP))

        def said() -> int:
            return sum(speaks_of(line, "KVGATE_TOKENIZER must name") for line in bench.gateway.output)

        await eventually(lambda: said() >= 1)
        await bench.end_case()
        assert said() == 1


async def test_the_tokenizers_process_ends_with_the_gateway(uncounting: tuple[Bench, Tokenizer]) -> None:
    bench, _ = uncounting
    children = _children_of(bench.gateway.process.pid)
    assert len(children) == 1
    await bench.gateway.kill()
    await eventually(lambda: _state_and_parent(Path(f"/proc/{children[0]}"))[0] in ("", "Z"))


def _children_of(parent: int) -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _state_and_parent(folder)[1] == str(parent)]


def _state_and_parent(folder: Path) -> tuple[str, str]:
    """Of a process: "Z" where it has ended and was only not yet asked for its code; nothing where there is none."""
    try:
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "", ""
    return state, parent


@pytest.mark.parametrize("content", ["{}", "no json"])
async def test_a_tokenizer_that_cannot_be_read_ends_the_start_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    ended = await refused_start(["http://127.0.0.1:9"], {"KVGATE_TOKENIZER": str(path)})
    assert len([line for line in ended.lines if speaks_of(line, "KVGATE_TOKENIZER", str(path))]) == 1
    assert "Traceback" not in ended.output


WITHOUT_EXTRA = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tokenizers", "jinja2"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import gateway.assembly, gateway.cli
"""


def test_without_the_extra_everything_else_can_be_imported() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], check=True, timeout=60)
