"""The command as a person calls it: a process of its own, with nothing but the variables that the test gives it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway import __version__

README = Path(__file__).parents[2] / "README.md"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if not name.upper().startswith("KVGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env={**environment, **variables, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"kvgate {__version__}\n")


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert all(
        re.search(rf"^\W*{command}\b", result.stdout, re.MULTILINE)
        for command in ("serve", "demo", "plan", "check", "replay", "settings")
    )


def test_settings_are_printed_with_default_value_and_origin() -> None:
    result = run("settings", "--port", "0", KVGATE_QUEUE_TIMEOUT="2m", KVGATE_ADMIN_TOKEN="s3cret")
    lines = {line.split()[0]: line.split()[1:4] for line in result.stdout.splitlines()}
    assert result.returncode == 0
    assert lines["KVGATE_QUEUE_TIMEOUT"] == ["120s", "60s", "environment"]
    assert lines["KVGATE_PORT"] == ["0", "8700", "flag"]
    assert lines["KVGATE_HOST"] == ["127.0.0.1", "127.0.0.1", "default"]
    assert lines["KVGATE_ADMIN_TOKEN"] == ["********", "-", "environment"]
    assert "s3cret" not in result.stdout


def test_settings_as_json_hold_the_same() -> None:
    result = run("settings", "--json", "--backends", "a=http://u:s3cret@gpu1:8000")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["KVGATE_BACKENDS"]["value"] == "a=http://gpu1:8000"
    assert rows["KVGATE_BACKENDS"]["origin"] == "flag"
    assert set(rows["KVGATE_PORT"]) == {"name", "default", "value", "origin", "meaning"}


@pytest.mark.parametrize("command", ["serve", "settings"])
@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"KVGATE_QUEUE_TIMOUT": "1s"}, "kvgate: KVGATE_QUEUE_TIMOUT is not a setting; the nearest is KVGATE_QUEUE_TIMEOUT"),
        ({"KVGATE_LANES": "lanes.toml"}, "kvgate: KVGATE_LANES: 'lanes.toml' cannot be read: No such file or directory"),
        (
            {"KVGATE_WORKERS": "4"},
            "kvgate: KVGATE_WORKERS: 4 is refused: every process would hand out the whole budget by itself",
        ),
        (
            {"KVGATE_KV_BLOCKS": "64", "KVGATE_RESERVE": "64"},
            "kvgate: the reserve of 64 (64 blocks) leaves nothing of a budget of 64 blocks: KVGATE_RESERVE must be smaller",
        ),
    ],
)
def test_a_bad_start_ends_with_one_plain_line(command: str, variables: Mapping[str, str], line: str) -> None:
    result = run(command, "--backends", "http://127.0.0.1:9", **variables)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


def test_serve_without_a_backend_says_what_to_set() -> None:
    result = run("serve")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--backends http://127.0.0.1:8000" in result.stderr
    assert result.stderr.count("\n") == 1


def test_settings_load_no_server() -> None:
    """`kvgate settings` is what one runs when nothing works: it must not depend on the parts that serve."""
    code = (
        "import sys\nfrom gateway.cli import app\n"
        "try:\n    app(['settings'], prog_name='kvgate')\nexcept SystemExit:\n    pass\n"
        "print({'fastapi', 'uvicorn', 'httpx', 'prometheus_client'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "set()"


def test_the_readme_lists_every_setting_with_its_default() -> None:
    readme = README.read_text(encoding="utf-8")
    for row in json.loads(run("settings", "--json").stdout):
        default = f"`{row['default']}`" if row["default"] else "–"
        assert f"| `{row['name']}` | {default} |" in readme
