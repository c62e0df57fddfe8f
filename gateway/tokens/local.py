"""LocalTokenizer: exact counts from a tokenizer in a process of its own, beside the event loop and beside Python's lock.

It promises: None rather than a guess; one count at a time, a bounded line before it, a bounded wait, bounded bodies; a count
that takes too long ends its process, and the next one, not at once, begins another. Cancelling a caller costs nobody else
anything.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from gateway.core.request import InferenceRequest

START_S: Final = 60.0  # the largest tokenizers take some seconds to read
WAIT_S: Final = 2.0
COUNT_S: Final = 5.0
RESTART_S: Final = 10.0
MOST_WAITING: Final = 32
MAX_BODY_BYTES: Final = 4 << 20
MAX_TEXTS: Final = 1024
# Longer than any context: such a count is garbage.
MAX_TOKENS: Final = 2**31
# Of the environment, only what Python and a template's date need.
_INHERITED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")

log = logging.getLogger("kvgate.tokens")


class LocalTokenizer:
    """The tokenizer of one model, as its files stand at `path`: a folder with tokenizer.json, or that file."""

    def __init__(self, path: Path, *, wait_s: float = WAIT_S, count_s: float = COUNT_S) -> None:
        """wait_s: the longest wait for a turn. count_s: the longest count."""
        self.path = path
        self.has_template = False
        self._wait_s = wait_s
        self._count_s = count_s
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: asyncio.subprocess.Process | None = None
        self._exchanges: set[asyncio.Task[list[int] | None]] = set()
        self._next_start = 0.0
        self._is_stopped = False

    async def start(self) -> None:
        """Begin, and read the files. Raises ValueError, one sentence, if they cannot be used."""
        answer = await self._begin()
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        self.has_template = bool(answer.get("template"))
        log.info(
            "%s: prompts are counted with this tokenizer%s%s",
            self.path,
            "" if self.has_template else "; no chat template lies beside it, so chats are not",
            "" if answer.get("pieces") else "; its special tokens reach into the text, so every chat is counted as a whole",
        )

    async def stop(self) -> None:
        self._is_stopped = True
        for task in self._exchanges:
            task.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)
        await self._end_process()

    async def count(self, request: InferenceRequest) -> tuple[int, ...] | None:
        """Tokens of each prompt of `request`, in order; None if they cannot be had here."""
        body = _body(request)
        if body is None or self._waiting >= MOST_WAITING or (request.is_chat and not self.has_template):
            return None
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turn.acquire()
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        # A caller may leave; the answer is taken all the same, so that the next one does not get it.
        task = asyncio.create_task(self._exchange(body), name=f"count with {self.path}")
        self._exchanges.add(task)
        task.add_done_callback(self._exchanged)
        counts = await asyncio.shield(task)
        given = [prompt.token_ids for prompt in request.prompts]
        if counts is None or len(counts) != given.count(None):
            return None
        counted = iter(counts)
        return tuple(next(counted) if count is None else count for count in given)

    def _exchanged(self, task: asyncio.Task[list[int] | None]) -> None:
        self._exchanges.discard(task)
        self._turn.release()

    async def _exchange(self, body: bytes) -> list[int] | None:
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._again()
        if process is None:
            return None
        try:
            async with asyncio.timeout(self._count_s):
                answer = await _ask(process, body)
        except TimeoutError:
            log.warning("%s: a count took longer than %g s and was given up", self.path, self._count_s)
            await self._end_process()
            return None
        counts = answer.get("tokens")
        if isinstance(counts, list) and all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts):
            return counts
        log.debug("%s: no count: %s", self.path, answer.get("why"))
        return None

    async def _again(self) -> asyncio.subprocess.Process | None:
        now = asyncio.get_running_loop().time()
        if self._is_stopped or now < self._next_start:
            return None
        answer = await self._begin()
        if "error" in answer:
            log.warning("%s: the tokenizer cannot be started again: %s", self.path, answer["error"])
        return self._process

    async def _begin(self) -> dict[str, Any]:
        """Start the process. Returns what it says of itself, or an `error`."""
        self._next_start = asyncio.get_running_loop().time() + RESTART_S
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "gateway.tokens.worker", str(self.path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is the gateway's, which drains first
        )
        try:
            async with asyncio.timeout(START_S):
                answer = await _read(process)
        except TimeoutError:
            answer = {"error": f"it was not read within {START_S:g} s"}
        if "error" in answer:
            await self._end_process()
        return answer

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    """What the process is told: where our package lies, no threads of its own, and nobody's secrets."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    paths = [str(Path(__file__).parent.parent.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def _body(request: InferenceRequest) -> bytes | None:
    """What the process is asked, None where it cannot count it."""
    prompts, countable = request.prompts, request.countable
    if any(prompt.media_parts or prompt.has_own_template for prompt in prompts):
        return None
    asked = sum(prompt.token_ids is None for prompt in prompts)
    if countable.chat is not None:
        if asked != 1 or sum(map(len, countable.chat.values())) > MAX_BODY_BYTES:
            return None
        members = b",".join(json.dumps(name).encode() + b":" + raw for name, raw in countable.chat.items())
        return b'{"chat":{' + members + b"}}"
    if len(countable.texts) != asked or asked > MAX_TEXTS or sum(map(len, countable.texts)) > MAX_BODY_BYTES:
        return None
    return b'{"texts":[' + b",".join(countable.texts) + b"]}"


async def _ask(process: asyncio.subprocess.Process, body: bytes) -> dict[str, Any]:
    assert process.stdin is not None, "it was started with a pipe"
    try:
        process.stdin.write(len(body).to_bytes(4, "big") + body)
        await process.stdin.drain()
    except ConnectionError:
        return {"error": "it has ended"}
    return await _read(process)


async def _read(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None, "it was started with a pipe"
    try:
        answer = json.loads(await process.stdout.readline())
    except ValueError:
        return {"error": f"its process ended with {await process.wait()}"}
    return answer if isinstance(answer, dict) else {}
