"""llama.cpp's server, as build b11549 answers (measured).

Its unit is the cell, one token. Each slot says how many cells it may use, but nothing says whether the slots share one
cache: four slots of 512 in all and four of 512 each look the same from outside. Where they share it, an overrun fails
every request at once, so unknown is taken as shared: the budget is one slot's context.
"""

from typing import Final

from gateway.backends.engines.answers import contexts, listed_models, member, positive, whole, word
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse, count_messages, json_object
from gateway.backends.exposition import read_exposition
from gateway.backends.probe import Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.request import InferenceRequest

_PROCESSING: Final = "llamacpp:requests_processing"
_DEFERRED: Final = "llamacpp:requests_deferred"


class LlamaCpp:
    name = "llama_cpp"

    async def probe(self, probe: Probe) -> EngineReport | None:
        props = (await probe.get("/props")).json()
        listed = listed_models((await probe.get("/v1/models")).json(), ("meta", "n_ctx"))
        is_llama_cpp = positive(member(props, "total_slots")) is not None or any(
            model.owned_by == "llamacpp" for model in listed or ()
        )
        if not is_llama_cpp:
            return None
        slots = positive(member(props, "total_slots"))
        told = (positive(member(props, "default_generation_settings", "n_ctx")), *contexts(listed).values())
        slot_cells = next((cells for cells in told if cells is not None), None)
        assumption = ""
        if slots is not None and slots > 1 and slot_cells is not None:
            assumption = (
                f"whether its {slots} slots share one cache is not told, so they are taken to share {slot_cells} tokens;"
                f" if each has its own, set KVGATE_KV_BLOCKS={slots * slot_cells}"
            )
        return EngineReport(
            engine=self.name,
            version=word(member(props, "build_info")),
            models={name: context or slot_cells for name, context in contexts(listed).items()},
            block_tokens=1,
            usable_blocks=slot_cells,
            total_blocks=slot_cells,
            cells=True,
            seats=slots,
            slots_share=True,
            # Asked for the usage of a stream, it moves its timings into that event; hidden, its callers would miss them. The
            # timings tell the usage as well.
            rules=EngineRules(has_best_of=False, runs_on_when_left=True),
            identity=(slots, slot_cells),
            budget_assumptions=(assumption,) if assumption else (),
        )

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        # /props first: it is always there, while the metrics page is a choice of whoever started the server.
        props = (await probe.get("/props")).json()
        identity = (
            positive(member(props, "total_slots")),
            positive(member(props, "default_generation_settings", "n_ctx")),
        )
        answer = await probe.get("/metrics")
        page = read_exposition(answer.text() if answer.ok else "", (_PROCESSING, _DEFERRED))
        return LiveUse(running=page.total(_PROCESSING), waiting=page.total(_DEFERRED), identity=identity)

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        if request.countable.anthropic is not None:
            return count_messages(request.countable.anthropic, request.model)
        if request.countable.responses is not None:
            return (CountCall("/v1/responses/input_tokens", json_object(dict(request.countable.responses)), _read_chat_count),)
        chat = request.countable.chat
        if chat is not None:
            return (CountCall("/v1/chat/completions/input_tokens", json_object(dict(chat)), _read_chat_count),)
        return tuple(
            CountCall("/tokenize", json_object({"content": text, "add_special": b"true"}), _read_text_count)
            for text in request.countable.texts
        )


def _read_chat_count(answer: object) -> int | None:
    return whole(member(answer, "input_tokens"))


def _read_text_count(answer: object) -> int | None:
    tokens = member(answer, "tokens")
    return len(tokens) if isinstance(tokens, list) else None
