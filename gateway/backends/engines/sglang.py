"""SGLang, as 0.5 answers (from recorded answers; not run here: it has no build for a CPU on the registry).

Its unit is the token slot, given out in pages of `page_size`. What it says and what we make of it:
* `max_total_num_tokens`, in /server_info (before: /get_server_info) and as a gauge, is what one data-parallel rank has;
* windows and states live in pools of their own that no figure of requests tells: their signs are a warning until the
  model's config is given;
* `max_running_requests` there is the flag's value; the limit that holds is `effective_max_running_requests_per_dp`, where
  it is told at all;
* it keeps one page more than a sequence's tokens when it admits.
"""

import json
from typing import Final

from gateway.backends.engines.answers import contexts, listed_models, member, positive, whole, word
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse, json_object
from gateway.backends.exposition import Exposition, read_exposition
from gateway.backends.probe import Answer, Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import ceil_div
from gateway.core.request import InferenceRequest

_TOKENS: Final = "sglang:max_total_num_tokens"
_PAGE: Final = "sglang:page_size"
_CONTEXT: Final = "sglang:context_len"
_USED: Final = ("sglang:kv_used_tokens", "sglang:num_used_tokens")
_RUNNING: Final = "sglang:num_running_reqs"
_WAITING: Final = "sglang:num_queue_reqs"
# Not num_retracted_reqs, which is the gauge of the last batch.
_RETRACTED: Final = ("sglang:num_retracted_requests_total", "sglang:num_retracted_requests")
_STARTED: Final = "process_start_time_seconds"
_SECOND_POOLS: Final = ("sglang:swa_used_tokens", "sglang:swa_available_tokens", "sglang:mamba_usage")
_WANTED: Final = (_TOKENS, _PAGE, _CONTEXT, *_USED, _RUNNING, _WAITING, *_RETRACTED, _STARTED, *_SECOND_POOLS)


class Sglang:
    name = "sglang"

    async def probe(self, probe: Probe) -> EngineReport | None:
        listed = listed_models((await probe.get("/v1/models")).json(), ("max_model_len",))
        page = await _read_page(probe)
        is_sglang = page.named(_TOKENS, _RUNNING) or any(model.owned_by == "sglang" for model in listed or ())
        if not is_sglang:
            return None
        info = (await _server_info(probe)).json()
        state = _first_state(info)
        tokens = _figure(info, state, "max_total_num_tokens") or _gauge(page, _TOKENS)
        size = _figure(info, state, "page_size") or _gauge(page, _PAGE) or 1
        context = _figure(info, state, "context_length") or _gauge(page, _CONTEXT)
        ranks = positive(member(info, "dp_size")) or 1
        warnings: list[str] = []
        if ranks > 1:
            warnings.append(
                f"{ranks} data-parallel ranks answer behind one address: planned with one rank's tokens, for nothing tells"
                " where a request goes; list each engine as a backend"
            )
        if page.named(*_SECOND_POOLS):
            warnings.append(
                "it keeps a second pool for windows or states, which its figures do not weigh: set KVGATE_MODEL_CONFIG"
            )
        return EngineReport(
            engine=self.name,
            version=word(member(info, "version")),
            models={name: told or context for name, told in contexts(listed).items()},
            block_tokens=size,
            usable_blocks=tokens,
            total_blocks=tokens,
            kv_dtype=word(member(info, "kv_cache_dtype")),
            cells=True,
            seats=_figure(info, state, "effective_max_running_requests_per_dp"),
            rules=EngineRules(
                absent_completions_cap=16,
                refuses_cap_above_context=True,
                has_best_of=False,
                takes_include_usage=True,
                spare_blocks=1,
            ),
            identity=_identity(page, tokens),
            assumptions=(f"one page of {size} token(s) more held for each sequence, as it reckons itself",),
            warnings=tuple(warnings),
        )

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        page = await _read_page(probe)
        if not page.samples:  # metrics are a choice of whoever started it
            await probe.get("/health")
            return LiveUse(identity=report.identity)
        used = page.total(*_USED)
        return LiveUse(
            used_blocks=None if used is None or not report.block_tokens else ceil_div(max(used, 0), report.block_tokens),
            running=page.total(_RUNNING),
            waiting=page.total(_WAITING),
            preemptions=page.total(*_RETRACTED),
            identity=_identity(page, _gauge(page, _TOKENS) or report.usable_blocks),
        )

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        # Its /tokenize takes texts; what the chat template adds it does not count.
        if request.countable.chat is not None:
            return None
        model = {} if request.model is None else {"model": json.dumps(request.model).encode()}
        return tuple(
            CountCall("/tokenize", json_object({**model, "prompt": text, "add_special_tokens": b"true"}), _read_count)
            for text in request.countable.texts
        )


async def _server_info(probe: Probe) -> Answer:
    answer = await probe.get("/server_info")
    return answer if answer.ok else await probe.get("/get_server_info")


def _first_state(info: object) -> object:
    """The scheduler's own account; the first of several ranks, which are alike."""
    states = member(info, "internal_states")
    return states[0] if isinstance(states, list) and states else None


def _figure(info: object, state: object, key: str) -> int | None:
    """A figure of the scheduler's account, else of the server's."""
    return positive(member(state, key)) or positive(member(info, key))


def _gauge(page: Exposition, name: str) -> int | None:
    """The smallest of a gauge's values: of several ranks any may get the request."""
    values = [figure for sample in page.named(name) if (figure := positive(sample.value)) is not None]
    return min(values, default=None)


def _identity(page: Exposition, tokens: int | None) -> tuple[object, ...]:
    return tokens, tuple(sample.value for sample in page.named(_STARTED))


async def _read_page(probe: Probe) -> Exposition:
    answer = await probe.get("/metrics")
    return read_exposition(answer.text() if answer.ok else "", _WANTED)


def _read_count(answer: object) -> int | None:
    return whole(member(answer, "count"))
