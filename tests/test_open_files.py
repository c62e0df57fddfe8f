"""Open files: what they allow, and that the kernel's table of them has room for all before the first comes."""

import subprocess
import sys

import pytest

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="the size of the table is read from Linux's /proc")

_BEGINNING = """
import os, resource
from gateway.open_files import connections_allowed, make_room_for

def places():
    return int(open("/proc/self/status").read().partition("FDSize:")[2].split()[0])
"""


def run(*lines: str) -> list[str]:
    """What a fresh Python prints, which knows how many open files the kernel's table has places for."""
    script = "\n".join([_BEGINNING, *lines])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@needs_proc
def test_the_table_is_as_large_from_the_start_as_the_connections_need() -> None:
    before, after, opened = map(
        int,
        run(
            "print(places())",
            "connections = min(connections_allowed(), 2000)",
            "make_room_for(connections)",
            "print(places())",
            "files = [open('/dev/null') for _ in range(2 * connections)]",
            "print(places())",
        ),
    )
    assert before <= 256
    assert after > before
    assert opened == after, "it grew while connections came"


@needs_proc
def test_more_connections_than_files_are_no_error() -> None:
    limit, held = map(
        int,
        run(
            "resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))",
            "make_room_for(1_000_000)",
            "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])",
            "print(places())",
        ),
    )
    assert limit == 600
    assert held >= 600


def test_the_soft_limit_is_raised_and_each_connection_has_two_files() -> None:
    soft, allowed = map(
        int,
        run(
            "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)",
            "hard = 4256 if hard == resource.RLIM_INFINITY else min(hard, 4256)",
            "resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))",
            "allowed = connections_allowed()",
            "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], allowed)",
        ),
    )
    assert soft > 512
    assert 2 * allowed + 256 <= max(soft, 512)


def test_it_leaves_no_file_open() -> None:
    before, after = run("print(len(os.listdir('/dev/fd')))", "make_room_for(1000)", "print(len(os.listdir('/dev/fd')))")
    assert before == after
