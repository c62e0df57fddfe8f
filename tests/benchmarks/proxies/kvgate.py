"""kvgate among the proxies: how it is started, and the proof by its own metrics that nobody was declined and nobody waited.

It has its default settings but for one: its line has no places. What would have waited is declined and counted, so that a run
in which nothing was declined is one in which nobody waited, and the length of the line never mattered.
"""

import http.client
from collections.abc import Mapping
from typing import Final

from benchmarks.proxies.processes import our_environment, our_module
from support.gateway_process import Metrics

_LINE: Final = {"KVGATE_QUEUE_REQUESTS": "0"}
_ENDS: Final = frozenset({"completed", "client_gone_streaming"})
"""How requests of this benchmark end: to the end, or where the scenario hangs up."""
KVGATE_READY: Final = b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
_ANSWER_S: Final = 10.0


def kvgate_command(engine_url: str, port: int, admin_port: int) -> list[str]:
    """The gateway of the interpreter that measures."""
    flags = ("--backends", engine_url, "--port", str(port), "--admin-port", str(admin_port))
    return our_module("gateway", "serve", *flags)


def kvgate_environment(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Nothing of the settings under which the benchmark itself is run; `settings` in their place."""
    kept = {name: value for name, value in our_environment().items() if not name.startswith("KVGATE_")}
    return {**kept, **settings, **_LINE}


def declined_or_queued(admin_port: int) -> list[str]:
    """What the metrics of a running kvgate hold against its figures, in words; empty if nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    return faults(Metrics.parse(page))


def faults(metrics: Metrics) -> list[str]:
    """As `declined_or_queued`, of one scrape."""
    found = [
        *_counts(metrics, "kvgate_rejections_total", "reason", "{count:.0f} requests were declined: {label}"),
        *_counts(metrics, "kvgate_connections_refused_total", "reason", "{count:.0f} connections were refused: {label}"),
        *_counts(
            metrics, "kvgate_queue_wait_seconds_count", "outcome", "{count:.0f} waits ended as {label}", expected={"granted"}
        ),
        *_counts(metrics, "kvgate_requests_total", "outcome", "{count:.0f} requests ended as {label}", expected=_ENDS),
    ]
    completed = metrics.total("kvgate_requests_total", outcome="completed")
    granted = metrics.total("kvgate_demand_blocks_count")
    if granted < max(completed, 1):
        found.append(f"{completed:.0f} requests were answered, of which admission granted {granted:.0f}")
    return found


def _counts(
    metrics: Metrics, name: str, label: str, words: str, *, expected: frozenset[str] | set[str] = frozenset()
) -> list[str]:
    counted = metrics.by(name, label)
    return [words.format(count=count, label=value) for value, count in counted.items() if count and value not in expected]
