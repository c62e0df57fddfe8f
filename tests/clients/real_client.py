"""Clients that nobody here wrote, installed from pinned versions into a folder of their own, each run as a process.

    folder = install(Path(...))                     # once; what is there already stays
    async with running(folder, "litellm") as client:
        told = await client.ask(url, "MODEL", "ping", stream=True)

The folder has the venv of the Python clients and the node_modules of the others. KVGATE_TEST_CLIENTS names one to keep.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PYTHON_CLIENTS: Final = ("litellm", "litellm-hosted_vllm", "langchain-openai", "openai-agents", "pydantic-ai")
NODE_CLIENTS: Final = ("openai", "@anthropic-ai/sdk", "ai")
CLIENTS: Final = (*PYTHON_CLIENTS, *NODE_CLIENTS)
# litellm retries through the client of openai that it wraps; where it speaks HTTP itself, that is left to its caller.
LEAVES_RETRIES: Final = frozenset(("litellm-hosted_vllm",))

INSTALL_WITHIN_S: Final = 600
# The first answer comes after imports, which take seconds on a busy machine.
ANSWER_WITHIN_S: Final = 120

# None of them may call home, or look for prices and models anywhere but in its own package.
_QUIET: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "AI_SDK_LOG_WARNINGS": "false",
}


def has_node() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


def install(folder: Path) -> Path:
    """Put the pinned clients into `folder`, unless they are there. Raises CalledProcessError if that fails."""
    python = folder / "venv"
    if not (python / "complete").exists():
        shutil.rmtree(python, ignore_errors=True)
        venv.create(python, with_pip=True)
        pip = [str(python / "bin/python"), "-m", "pip", "install", "-q", "--no-compile", "-r", str(HERE / "requirements.txt")]
        subprocess.run(pip, check=True, timeout=INSTALL_WITHIN_S, env=os.environ | {"PIP_CONSTRAINT": ""})
        (python / "complete").touch()
    node = folder / "node"
    if has_node() and not (node / "complete").exists():
        shutil.rmtree(node, ignore_errors=True)
        node.mkdir(parents=True)
        shutil.copy(HERE / "package.json", node)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--silent"]
        subprocess.run(npm, check=True, timeout=INSTALL_WITHIN_S, cwd=node)
        (node / "complete").touch()
    return folder


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller of a client got: a text, or an error with the HTTP status that it tells, if it tells one."""

    text: str | None
    error: str | None
    status: int | None


@dataclass(slots=True)
class RealClient:
    """A started client. It does one thing after the other."""

    name: str
    _process: asyncio.subprocess.Process

    @property
    def path(self) -> str:
        """The route that it calls."""
        return "/v1/messages" if self.name == "@anthropic-ai/sdk" else "/v1/chat/completions"

    async def ask(self, url: str, model: str, prompt: str, *, stream: bool, max_tokens: int = 32) -> Told:
        """One call with the client's own defaults, its retries among them."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        command = {"url": url, "model": model, "prompt": prompt, "stream": stream, "max_tokens": max_tokens}
        stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(ANSWER_WITHIN_S):
            await stdin.drain()
            line = await stdout.readline()
        assert line, f"{self.name} ended without an answer"
        told = json.loads(line)
        return Told(told.get("text"), told.get("error"), told.get("status"))


@asynccontextmanager
async def running(folder: Path, name: str) -> AsyncIterator[RealClient]:
    """The client in a process of its own, ended at the end."""
    if name in NODE_CLIENTS:
        program = ["node", str(HERE / "drivers/node_client.mjs"), name, str(folder / "node")]
    else:
        program = [str(folder / "venv/bin/python"), str(HERE / "drivers/python_client.py"), name]
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    process = await asyncio.create_subprocess_exec(
        *program,
        env=kept | _QUIET,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=sys.stderr.fileno() if _has_fileno() else asyncio.subprocess.DEVNULL,
        limit=1 << 20,
    )
    try:
        yield RealClient(name, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError):
        return False
    return True
