"""Ranks: the data-parallel engines behind one vLLM address, each with a cache of its own and a label of its own.

vLLM spreads requests over them by itself, and nothing tells where one went: only a request that names its engine in
`X-data-parallel-rank` can be held for on the engine that gets it. So each becomes a backend of its own, whose questions see
its own lines of the metrics page and whose requests carry its rank. How many there are is asked once, before the start.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.engines.vllm import CONFIG_METRIC
from gateway.backends.exposition import read_exposition
from gateway.backends.probe import NeedsKey, Prober
from gateway.core.errors import UpstreamFailed
from gateway.core.names import BackendName

RANK_HEADER: Final = b"X-data-parallel-rank"
FIRST_LOOK_S: Final = 2.0
_MOST_RANKS: Final = 64
_METRICS: Final = "/metrics"


async def with_ranks(specs: Sequence[BackendSpec], prober: Prober) -> list[BackendSpec]:
    """The same backends, those with several engines as one for each. Who does not answer in time stays as it was given."""
    found = await asyncio.gather(*(_ranks_of(spec, prober) for spec in specs))
    expanded: list[BackendSpec] = []
    for spec, ranks in zip(specs, found, strict=True):
        if len(ranks) < 2:
            expanded.append(spec)
        else:
            expanded += [replace(spec, name=BackendName(f"{spec.name}.{rank}"), rank=rank) for rank in ranks]
    return expanded


async def _ranks_of(spec: BackendSpec, prober: Prober) -> tuple[int, ...]:
    """The ranks that the metrics page names; none where it is no vLLM, or does not answer."""
    if spec.engine not in ("auto", "vllm"):
        return ()
    try:
        async with asyncio.timeout(FIRST_LOOK_S):
            probe = prober.probe(spec.name, spec.url, key=spec.key, metrics_url=spec.metrics_url)
            answer = await (probe.get_metrics_beside() if probe.has_metrics_beside else probe.get(_METRICS))
    except (UpstreamFailed, NeedsKey, TimeoutError):
        return ()
    page = read_exposition(answer.text() if answer.ok else "", (CONFIG_METRIC,))
    labels = {sample.labels.get("engine", "0") for sample in page.named(CONFIG_METRIC)}
    if len(labels) > _MOST_RANKS or not all(label.isascii() and label.isdigit() and len(label) < 6 for label in labels):
        return ()
    return tuple(sorted(int(label) for label in labels))
