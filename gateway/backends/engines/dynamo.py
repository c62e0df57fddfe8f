"""NVIDIA Dynamo's HTTP frontend, as version 1.6.1 answers (with its own engine simulator behind it, measured).

The frontend tells the blocks, the block size and the seats of *a* worker that serves a model. Live use and preemptions
are on the workers' own ports, whose addresses it does not tell: KVGATE_ENGINE_METRICS does, where there is one worker. That
page has vLLM's names. It has no /tokenize.
"""

from collections.abc import Mapping
from typing import Final

from gateway.backends.engines.answers import contexts, listed_models, member, positive, word
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse
from gateway.backends.engines.vllm import PREEMPTION_METRICS, USAGE_METRICS, used_blocks
from gateway.backends.exposition import Exposition, read_exposition
from gateway.backends.probe import NeedsKey, Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.errors import UpstreamFailed
from gateway.core.request import InferenceRequest

_BLOCKS: Final = "dynamo_frontend_model_total_kv_blocks"
_BLOCK_TOKENS: Final = "dynamo_frontend_model_kv_cache_block_size"
_CONTEXT: Final = "dynamo_frontend_model_context_length"
_SEATS: Final = "dynamo_frontend_model_max_num_seqs"
_INFLIGHT: Final = "dynamo_frontend_inflight_requests"
_QUEUED: Final = "dynamo_frontend_queued_requests"
_WANTED: Final = (_BLOCKS, _BLOCK_TOKENS, _CONTEXT, _SEATS, _INFLIGHT, _QUEUED)


class Dynamo:
    name = "dynamo"

    async def probe(self, probe: Probe) -> EngineReport | None:
        listed = listed_models((await probe.get("/v1/models")).json(), ("context_window",))
        page = await _read_page(probe)
        title = word(member((await probe.get("/openapi.json")).json(), "info", "title")) or ""
        if not page.named(_BLOCKS, _CONTEXT) and "dynamo" not in title.lower():
            return None
        told = _by_model(page, _CONTEXT)
        models = {name: context or told.get(name) for name, context in contexts(listed).items()} or dict(told)
        blocks, sizes, seats = (_by_model(page, name) for name in (_BLOCKS, _BLOCK_TOKENS, _SEATS))
        warnings: list[str] = []
        if len(blocks) > 1:
            warnings.append(
                f"{len(blocks)} models are served behind one address: planned with the smallest cache of a worker,"
                f" {min(blocks.values())} blocks, for all of them together"
            )
        if len(set(sizes.values())) > 1:
            warnings.append("its models have blocks of different sizes: set KVGATE_KV_BLOCKS and KVGATE_BLOCK_TOKENS")
        return EngineReport(
            engine=self.name,
            version=word(member((await probe.get("/openapi.json")).json(), "info", "version")),
            models=models,
            block_tokens=next(iter(sizes.values())) if len(set(sizes.values())) == 1 else None,
            usable_blocks=min(blocks.values(), default=None),
            total_blocks=min(blocks.values(), default=None),
            seats=min(seats.values(), default=None),
            # What stands behind it is not told: the caution that a GPU engine needs.
            rules=EngineRules(has_best_of=False, takes_include_usage=True, spare_blocks=1),
            identity=_identity(page),
            budget_assumptions=("one worker's blocks are the budget, all of them taken as usable",),
            assumptions=("the engine behind the frontend is not told: one block more held for each sequence",),
            warnings=tuple(warnings),
        )

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        page = await _read_page(probe)
        worker = await _read_worker(probe)
        return LiveUse(
            used_blocks=used_blocks(worker, report.usable_blocks),
            running=page.total(_INFLIGHT),
            waiting=page.total(_QUEUED),
            preemptions=worker.total(*PREEMPTION_METRICS),
            identity=_identity(page),
        )

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        return None


async def _read_page(probe: Probe) -> Exposition:
    answer = await probe.get("/metrics")
    return read_exposition(answer.text() if answer.ok else "", _WANTED)


async def _read_worker(probe: Probe) -> Exposition:
    """The worker's own page. Without one, or while it does not answer, nothing is known of its use and preemptions."""
    if not probe.has_metrics_beside:
        return Exposition(())
    try:
        answer = await probe.get_metrics_beside()
    except (UpstreamFailed, NeedsKey):
        return Exposition(())
    return read_exposition(answer.text() if answer.ok else "", (*USAGE_METRICS, *PREEMPTION_METRICS))


def _by_model(page: Exposition, name: str) -> Mapping[str, int]:
    figures = ((sample.labels.get("model", ""), positive(sample.value)) for sample in page.named(name))
    return {model: figure for model, figure in figures if word(model) is not None and figure is not None}


def _identity(page: Exposition) -> tuple[object, ...]:
    return tuple(tuple(sorted(_by_model(page, name).items())) for name in (_BLOCKS, _BLOCK_TOKENS, _CONTEXT, _SEATS))
