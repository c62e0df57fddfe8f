"""text-generation-inference, as its last releases answer (from recorded answers; it has reached its end of life).

It admits by tokens: what runs together may have `max_batch_total_tokens`, prompt and new tokens of all taken up front, so
that it never preempts. Newer versions do not tell that figure any more; then the operator does. Its block is one token with
the usual kernels; others round up to theirs, which KVGATE_BLOCK_TOKENS settles.
"""

from typing import Final

from gateway.backends.engines.answers import contexts, listed_models, member, positive, word
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse, json_object
from gateway.backends.exposition import read_exposition
from gateway.backends.probe import Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.request import InferenceRequest

_QUEUE: Final = "tgi_queue_size"
_BATCH: Final = "tgi_batch_current_size"
_WANTED: Final = (_QUEUE, _BATCH)


class Tgi:
    name = "tgi"

    async def probe(self, probe: Probe) -> EngineReport | None:
        info = (await probe.get("/info")).json()
        router, context = word(member(info, "router")), positive(member(info, "max_total_tokens"))
        if (router is None or "text-generation" not in router) and (context is None or member(info, "model_id") is None):
            return None
        listed = listed_models((await probe.get("/v1/models")).json())
        named = word(member(info, "model_id"))
        models = {name: told or context for name, told in contexts(listed).items()} or ({named: context} if named else {})
        tokens = positive(member(info, "max_batch_total_tokens"))
        return EngineReport(
            engine=self.name,
            version=word(member(info, "version")),
            models=models,
            block_tokens=1,
            usable_blocks=tokens,
            total_blocks=tokens,
            cells=True,
            rules=EngineRules(refuses_cap_above_context=True, has_best_of=True, takes_include_usage=True),
            identity=(named, context, tokens),
            assumptions=("its cache is taken to be given out token by token: KVGATE_BLOCK_TOKENS sets another block",),
        )

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        info = (await probe.get("/info")).json()
        answer = await probe.get("/metrics")
        page = read_exposition(answer.text() if answer.ok else "", _WANTED)
        return LiveUse(
            running=page.total(_BATCH),
            waiting=page.total(_QUEUE),
            identity=(
                word(member(info, "model_id")),
                positive(member(info, "max_total_tokens")),
                positive(member(info, "max_batch_total_tokens")),
            ),
        )

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        chat = request.countable.chat
        if chat is not None:
            return (CountCall("/chat_tokenize", json_object(dict(chat)), _read_chat_count),)
        return tuple(CountCall("/tokenize", json_object({"inputs": text}), _read_count) for text in request.countable.texts)


def _read_chat_count(answer: object) -> int | None:
    tokens = member(answer, "tokenize_response")
    return len(tokens) if isinstance(tokens, list) else None


def _read_count(answer: object) -> int | None:
    return len(answer) if isinstance(answer, list) else None
