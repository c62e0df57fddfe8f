"""A tokenizer in a process of its own: what it counts, what it refuses to count, and that it keeps nobody waiting."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
from gateway.dialects import DIALECTS
from gateway.tokens.local import MAX_BODY_BYTES, MOST_WAITING, LocalTokenizer
from gateway.tokens.tokenizer import Tokenizer
from support.chats import chats
from support.tiny_tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture
async def local(folder: Path) -> AsyncIterator[LocalTokenizer]:
    tokenizer = LocalTokenizer(folder)
    await tokenizer.start()
    yield tokenizer
    await tokenizer.stop()


def chat(content: object = "hello", **members: object) -> InferenceRequest:
    body = {"messages": [{"role": "user", "content": content}], **members}
    return DIALECTS["/v1/chat/completions"].read_request(json.dumps(body).encode())


def completion(prompt: object) -> InferenceRequest:
    return DIALECTS["/v1/completions"].read_request(json.dumps({"prompt": prompt}).encode())


def process_of(local: LocalTokenizer) -> asyncio.subprocess.Process:
    assert local._process is not None
    return local._process


async def test_chats_are_counted_as_in_this_process(local: LocalTokenizer, folder: Path) -> None:
    here = Tokenizer(folder)
    for body in chats(40, seed=8):
        request = DIALECTS["/v1/chat/completions"].read_request(json.dumps(body).encode())
        assert await local.count(request) == (here.count_chat(body),)


async def test_texts_and_token_ids_are_counted_in_their_order(local: LocalTokenizer, folder: Path) -> None:
    here = Tokenizer(folder)
    assert await local.count(completion("héllo 😀")) == (here.count_text("héllo 😀"),)
    assert await local.count(completion(["a", "b c d"])) == (here.count_text("a"), here.count_text("b c d"))


@pytest.mark.parametrize(
    "request_",
    [
        chat([{"type": "image_url", "image_url": {"url": "x"}}]),
        chat(chat_template="{{ messages }}"),
        chat(continue_final_message=True),
        chat("x" * (MAX_BODY_BYTES + 1)),
        completion(["a"] * 2000),
    ],
    ids=["media", "own template", "continued", "large", "many"],
)
async def test_what_cannot_be_counted_here_is_none_and_the_next_one_is_counted(
    local: LocalTokenizer, request_: InferenceRequest
) -> None:
    assert await local.count(request_) is None
    assert await local.count(chat()) is not None


@pytest.mark.parametrize(
    "members",
    [
        {"messages": b'[{"role":"user","content":"half \\ud800 a pair"}]'},
        {"messages": b'[{"role":"user","content":"x"}]', "tools": b'[{"function":{"name":"\\udfff"}}]'},
        {"messages": b'[{"role":"user","content":{}}]'},
        {"messages": b"[" * 5000 + b"]" * 5000},
        {"messages": b"7"},
        {"messages": b'[{"role":"user","content":"x"}]', "tools": b'{"a":1}'},
        {"messages": b'[{"role":"user","content":"x"}]', "chat_template_kwargs": b'{"messages":7,"tools":8}'},
        {"messages": b"no json"},
    ],
)
async def test_no_body_ends_the_process_for_everybody(local: LocalTokenizer, members: dict[str, bytes]) -> None:
    process = process_of(local)
    request = InferenceRequest(
        None, (Prompt(1, messages=1),), CapState.ABSENT, None, is_chat=True, to_count=Countable(chat=members)
    )
    await local.count(request)
    assert await local.count(chat()) is not None
    assert process_of(local) is process


async def test_without_a_template_chats_are_not_counted(tmp_path: Path) -> None:
    local = LocalTokenizer(write_tokenizer(tmp_path, template=None))
    await local.start()
    try:
        assert await local.count(chat()) is None
        assert await local.count(completion("a")) is not None
    finally:
        await local.stop()


@pytest.mark.parametrize(("content", "words"), [("{}", "is no tokenizer that can be read"), (None, "is no tokenizer")])
async def test_files_that_cannot_be_used_end_the_start_with_one_sentence(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    local = LocalTokenizer(tmp_path)
    with pytest.raises(ValueError, match=words) as told:
        await local.start()
    assert "\n" not in str(told.value)
    await local.stop()


async def test_one_who_leaves_takes_nobody_elses_answer(local: LocalTokenizer) -> None:
    expected = await local.count(chat("short"))
    leaving = [asyncio.create_task(local.count(chat(f"word {number} " * 2000))) for number in range(5)]
    staying = asyncio.create_task(local.count(chat("short")))
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    gone = await asyncio.gather(*leaving, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in gone)
    assert await staying == expected
    assert await local.count(chat("short")) == expected


async def test_the_line_before_it_is_bounded(local: LocalTokenizer) -> None:
    os.kill(process_of(local).pid, signal.SIGSTOP)
    asked = [asyncio.create_task(local.count(chat(str(number)))) for number in range(MOST_WAITING + 5)]
    await asyncio.sleep(0)
    refused = [task for task in asked if task.done()]
    assert len(refused) >= 4
    assert all(task.result() is None for task in refused)
    os.kill(process_of(local).pid, signal.SIGCONT)
    counts = await asyncio.gather(*asked)
    assert sum(count is not None for count in counts) == len(asked) - len(refused)


async def test_a_count_that_takes_too_long_ends_its_process_and_not_at_once_begins_another(folder: Path) -> None:
    local = LocalTokenizer(folder, count_s=0.05)
    await local.start()
    try:
        stuck = process_of(local)
        os.kill(stuck.pid, signal.SIGSTOP)
        assert await local.count(chat()) is None
        assert stuck.returncode is not None
        assert await local.count(chat()) is None  # too soon for another
        local._next_start = 0.0
        local._count_s = 30.0
        assert await local.count(chat()) is not None
        assert process_of(local).pid != stuck.pid
    finally:
        await local.stop()


async def test_a_process_that_died_is_none_and_then_another(local: LocalTokenizer) -> None:
    process_of(local).kill()
    assert await local.count(chat()) is None
    local._next_start = 0.0
    assert await local.count(chat()) is not None


async def test_it_is_told_no_secret_and_stops_with_its_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_API_KEY", "secret-key")
    local = LocalTokenizer(folder)
    await local.start()
    process = process_of(local)
    environment = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)
    assert b"PATH=" in environment
    assert b"secret-key" not in environment
    await local.stop()
    assert process.returncode is not None
    assert await local.count(chat()) is None
