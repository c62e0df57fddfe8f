"""The proxies that can be measured: how each is started, and what installs it. A new one is a function and a row of PEERS.

Those that pip installs live in virtual environments of their own, `venv/<name>` under the folder KVGATE_BENCH_HOME.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.proxies.kvgate import KVGATE_READY, declined_or_queued, kvgate_command, kvgate_environment
from benchmarks.proxies.processes import CHAT

HOME_VARIABLE: Final = "KVGATE_BENCH_HOME"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy stands. admin_port: for its metrics. scratch: a folder of its own. settings: see kvgate_environment."""

    port: int
    admin_port: int
    engine_port: int
    scratch: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"


def _no_faults(place: Place) -> list[str]:
    return []


def _own_environment(place: Place) -> Mapping[str, str]:
    return os.environ


@dataclass(frozen=True, slots=True)
class Peer:
    """One proxy. program: its path, None if it is not there; installed_by: what brings it.

    first_asked: the request that is answered with 200 as soon as it is ready.
    faults: read from it before its end, where it can tell: why its figures are not worth anything.
    """

    program: Callable[[], str | None]
    command: Callable[[str, Place], Sequence[str]]
    installed_by: str
    environment: Callable[[Place], Mapping[str, str]] = _own_environment
    first_asked: bytes = CHAT
    faults: Callable[[Place], list[str]] = _no_faults


def _in_venv(venv: str, name: str) -> Callable[[], str | None]:
    def find() -> str | None:
        home = os.environ.get(HOME_VARIABLE)
        return shutil.which(Path(home).resolve() / "venv" / venv / "bin" / name) if home else None

    return find


def _venv_with(venv: str, requirement: str) -> str:
    folder = f"${HOME_VARIABLE}/venv/{venv}"
    return f"python3.11 -m venv {folder} && {folder}/bin/pip install {requirement}"


def _nginx(program: str, place: Place) -> Sequence[str]:
    """One worker, nothing buffered, connections to the engine kept."""
    scratch = place.scratch
    configuration = scratch / "nginx.conf"
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    configuration.write_text(
        f"""
daemon off; worker_processes 1; pid {scratch}/nginx.pid; error_log stderr error;
events {{ worker_connections 32768; }}
http {{
  access_log off; keepalive_requests 100000000; client_max_body_size 16m; client_body_buffer_size 256k;
  {" ".join(f"{name}_temp_path {scratch}/{name};" for name in folders)}
  upstream engine {{ server 127.0.0.1:{place.engine_port}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{place.port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 300s;
    }}
  }}
}}
"""
    )
    return [program, "-c", str(configuration), "-e", "stderr"]


def _router(place: Place) -> Sequence[str]:
    """What both Rust routers are told: default settings, but for a quiet log and no limit on requests."""
    return [
        *("--host", "127.0.0.1", "--port", str(place.port)),
        *("--worker-urls", place.engine_url, "--policy", "round_robin", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.admin_port)),
        *("--max-concurrent-requests", "100000"),
    ]


def _smg(program: str, place: Place) -> Sequence[str]:
    return [program, "launch", *_router(place), "--backend", "vllm", "--disable-tokenizer-autoload"]


def _vllm_router(program: str, place: Place) -> Sequence[str]:
    return [program, *_router(place)]


DIRECT: Final = "direct"
"""No proxy at all: what latencies are compared with."""

PEERS: Final[Mapping[str, Peer]] = {
    "nginx": Peer(lambda: shutil.which("nginx"), _nginx, "apt-get install nginx"),
    "smg": Peer(_in_venv("smg", "smg"), _smg, _venv_with("smg", "smg==1.13.0")),
    "vllm-router": Peer(_in_venv("vllmr", "vllm-router"), _vllm_router, _venv_with("vllmr", "vllm-router==0.1.17")),
    "kvgate": Peer(
        program=lambda: "kvgate",
        command=lambda program, place: kvgate_command(place.engine_url, place.port, place.admin_port),
        installed_by="pip install .",
        environment=lambda place: kvgate_environment(place.settings),
        first_asked=KVGATE_READY,
        faults=lambda place: declined_or_queued(place.admin_port),
    ),
}
