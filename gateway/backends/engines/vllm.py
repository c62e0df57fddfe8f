"""vLLM, as version 0.32 answers (CPU build, measured); names of older versions are known where they differ.

What it says and what we make of it:
* `vllm:cache_config_info` carries num_gpu_blocks and block_size. One block, the null block, never holds tokens: usable =
  num_gpu_blocks - 1, and `kv_cache_usage_perc` is the used part of those.
* kv_cache_size_tokens there is the engine's own figure for requests of full length; capacity.py compares with it.
* With data parallelism num_gpu_blocks is the sum over all engines behind the address, kv_cache_size_tokens is one's. A
  request lives in one of them and nothing tells in which: one engine's part is the budget, until each is a backend of its
  own (ranks.py).
* No answer names the device. A build for the CPU says so in its version (`+cpu`), or is known by two signs together: the
  CPU backend takes blocks of a multiple of 32 only, and the server's process maps less memory than the CUDA or ROCm
  libraries of a GPU build need by themselves.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.backends.engines.answers import contexts, listed_models, member, positive, whole, word
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse, json_object
from gateway.backends.exposition import Exposition, Sample, read_exposition
from gateway.backends.probe import Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.geometry import ceil_div
from gateway.core.request import InferenceRequest

CONFIG_METRIC: Final = "vllm:cache_config_info"
USAGE_METRICS: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second up to 0.9
_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
PREEMPTION_METRICS: Final = ("vllm:num_preemptions_total", "vllm:num_preemptions")
_DRAFTS: Final = ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total")
_DRAFT_POSITIONS: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_ANSWERS: Final = "vllm:request_generation_tokens_bucket"
_ENDINGS: Final = "vllm:request_success_total"
_STARTED: Final = "process_start_time_seconds"
_MAPPED: Final = "process_virtual_memory_bytes"
_WANTED: Final = (
    *(CONFIG_METRIC, *USAGE_METRICS, _RUNNING, _WAITING, *PREEMPTION_METRICS, *_DRAFTS, _DRAFT_POSITIONS),
    *(_ANSWERS, _ENDINGS, _STARTED, _MAPPED),
)

_CPU_BLOCK_TOKENS: Final = 32
# The CPU build's API server maps 1.8 GB at start and a little more under load. libtorch_cuda, cuBLAS and their kin come on
# top of that with more than 3 GB in a GPU build. A CPU build that is not recognised costs a block for each sequence.
_CPU_MAPPED_BYTES: Final = 4 * 10**9
# V0, which could run best_of samples, was gone by then.
_WITHOUT_BEST_OF: Final = (0, 11)
_DEFAULT_DRAFT_TOKENS: Final = 8  # where speculation is on and its depth is not told


@dataclass(frozen=True, slots=True)
class _Cache:
    """What one page says of the cache: of all engines behind the address together, and of one of them."""

    total_blocks: int | None
    block_tokens: int | None
    cache_tokens: int | None
    engines: int
    kv_dtype: str | None = None
    state_dtype: str | None = None
    state_mode: str | None = None

    @property
    def blocks_of_one(self) -> int | None:
        return None if self.total_blocks is None else self.total_blocks // self.engines


class Vllm:
    name = "vllm"

    async def probe(self, probe: Probe) -> EngineReport | None:
        listing = await probe.get("/v1/models")
        models = listed_models(listing.json(), ("max_model_len",))
        page = await _read_page(probe)
        is_vllm = page.named(CONFIG_METRIC, _RUNNING) or any(model.owned_by == "vllm" for model in models or ())
        if not is_vllm:
            return None
        version = word(member((await probe.get("/version")).json(), "version"))
        cache = _read_cache(page)
        spare_blocks, why = _spare_blocks(version, page, cache.block_tokens)
        warning = ""
        if cache.engines > 1 and probe.rank is None:
            warning = (
                f"{cache.engines} engines answer behind one address ({cache.total_blocks} blocks in all): planned with one"
                f" engine's {cache.blocks_of_one}, for nothing tells where a request goes; list each engine as a backend"
            )
        return EngineReport(
            engine=self.name,
            version=version,
            models=contexts(models),
            block_tokens=cache.block_tokens,
            usable_blocks=None if cache.blocks_of_one is None else max(cache.blocks_of_one - 1, 0),
            total_blocks=cache.blocks_of_one,
            cache_tokens=cache.cache_tokens,
            kv_dtype=cache.kv_dtype,
            state_dtype=cache.state_dtype,
            state_mode=cache.state_mode,
            rules=EngineRules(
                absent_completions_cap=16,
                refuses_cap_above_context=True,
                has_best_of=_release(version) < _WITHOUT_BEST_OF,
                takes_include_usage=True,
                spare_blocks=spare_blocks,
            ),
            answer_lengths=_answer_lengths(page),
            identity=_identity(page),
            assumptions=(why,) if why else (),
            warnings=(warning,) if warning else (),
        )

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        page = await _read_page(probe)
        return LiveUse(
            used_blocks=used_blocks(page, report.usable_blocks),
            running=page.total(_RUNNING),
            waiting=page.total(_WAITING),
            preemptions=page.total(*PREEMPTION_METRICS),
            identity=_identity(page),
        )

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        model = {} if request.model is None else {"model": json.dumps(request.model).encode()}
        chat = request.countable.chat
        if chat is not None:
            members = {**model, **{name: raw for name, raw in chat.items() if name in _CHAT_MEMBERS}}
            if any(name in chat for name in _TEMPLATE_MEMBERS):
                kwargs = _template_kwargs(chat)
                if kwargs is None:
                    return None
                members["chat_template_kwargs"] = kwargs
            return (CountCall("/tokenize", json_object(members), _read_count),)
        special = {"add_special_tokens": b"true"}
        return tuple(
            CountCall("/tokenize", json_object({**model, "prompt": text, **special}), _read_count)
            for text in request.countable.texts
        )


# What /tokenize takes of a chat body; it ignores what it does not know, so this only keeps the question small.
_CHAT_MEMBERS: Final = frozenset(
    (
        "messages",
        "tools",
        "tool_choice",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "mm_processor_kwargs",
        "media_io_kwargs",
    )
)


# What the chat route hands to the template and /tokenize does not know by itself.
_TEMPLATE_MEMBERS: Final = ("documents", "reasoning_effort")


def _template_kwargs(chat: Mapping[str, bytes]) -> bytes | None:
    """The template's arguments as the chat route passes them, None if they are not what they should be."""
    try:
        kwargs = json.loads(chat.get("chat_template_kwargs", b"{}"))
        extra = {name: value for name in _TEMPLATE_MEMBERS if (value := json.loads(chat.get(name, b"null"))) is not None}
    except (ValueError, RecursionError):
        return None
    if kwargs is not None and not isinstance(kwargs, dict):
        return None
    if "reasoning_effort" in extra:
        extra["enable_thinking"] = extra["reasoning_effort"] != "none"
    return json.dumps({**extra, **(kwargs or {})}).encode()


def _read_count(answer: object) -> int | None:
    return whole(member(answer, "count"))


def used_blocks(page: Exposition, usable_blocks: int | None) -> int | None:
    """Blocks in use by the page's gauges, each of a cache of `usable_blocks`; None where it has none."""
    usage = page.named(*USAGE_METRICS)
    if not usage or usable_blocks is None:
        return None
    return round(sum(min(max(sample.value, 0.0), 1.0) for sample in usage) * usable_blocks)


async def _read_page(probe: Probe) -> Exposition:
    """The page; where one of several engines is meant, its lines, and what all say of their caches together."""
    answer = await (probe.get_metrics_beside() if probe.has_metrics_beside else probe.get("/metrics"))
    page = read_exposition(answer.text() if answer.ok else "", _WANTED)
    if probe.rank is None:
        return page
    own = (None, str(probe.rank))
    return Exposition(
        tuple(sample for sample in page.samples if sample.name == CONFIG_METRIC or sample.labels.get("engine") in own)
    )


def _read_cache(page: Exposition) -> _Cache:
    """The cache of the page: the smallest figure where several lines differ, for each is one that a request may meet."""
    infos = page.named(CONFIG_METRIC)
    engines = len({info.labels.get("engine", "0") for info in infos}) or 1
    totals = [blocks for info in infos if (blocks := positive(info.labels.get("num_gpu_blocks"))) is not None]
    sizes = [tokens for info in infos if (tokens := positive(info.labels.get("block_size"))) is not None]
    caches = [tokens for info in infos if (tokens := positive(info.labels.get("kv_cache_size_tokens"))) is not None]
    return _Cache(
        min(totals, default=None),
        sizes[0] if len(set(sizes)) == 1 else None,
        min(caches, default=None),
        engines,
        _common(infos, "cache_dtype"),
        _common(infos, "mamba_ssm_cache_dtype"),
        _common(infos, "mamba_cache_mode"),
    )


def _common(infos: tuple[Sample, ...], label: str) -> str | None:
    """The label's value where all lines have the same; None where they do not, or have none."""
    values = {info.labels.get(label) for info in infos}
    return values.pop() if len(values) == 1 else None


# Above this share of answers that were ended by their cap, the histogram tells about caps and not about answers.
_MOST_CAPPED: Final = 0.2


def _answer_lengths(page: Exposition) -> dict[str, tuple[tuple[int, int], ...]]:
    """Its histogram of output tokens, by model, where most answers ended by themselves."""
    capped: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for sample in page.named(_ENDINGS):
        model, reason = sample.labels.get("model_name", ""), sample.labels.get("finished_reason")
        if reason in ("stop", "length"):
            ended[model] += round(sample.value)
            capped[model] += round(sample.value) if reason == "length" else 0
    cumulative: dict[str, Counter[int]] = {}
    for sample in page.named(_ANSWERS):
        tokens = _bucket_tokens(sample.labels.get("le", ""))
        if tokens is not None:
            cumulative.setdefault(sample.labels.get("model_name", ""), Counter())[tokens] += round(sample.value)
    found = {}
    for model, counts in cumulative.items():
        if ended[model] and capped[model] <= _MOST_CAPPED * ended[model]:
            edges = sorted(counts)
            found[model] = tuple(
                (edge, counts[edge] - counts[lower]) for lower, edge in zip((0, *edges), edges, strict=False) if edge > 0
            )
    return found


def _bucket_tokens(text: str) -> int | None:
    """The upper edge of a bucket; the open one at the end has none, and what is in it is left out."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return int(edge) if 0 < edge < 1e9 else None


def _identity(page: Exposition) -> tuple[object, ...]:
    """What changes when the engine starts anew or with another cache. Absent metrics (several API servers) stay absent."""
    configs = tuple(
        tuple(info.labels.get(label) for label in ("engine", "num_gpu_blocks", "block_size", "kv_cache_size_tokens"))
        for info in page.named(CONFIG_METRIC)
    )
    return configs, tuple(sample.value for sample in page.named(_STARTED))


def _spare_blocks(version: str | None, page: Exposition, block_tokens: int | None) -> tuple[int, str]:
    """Blocks that a sequence may hold beyond the formula, and what is assumed there ("" for nothing)."""
    if page.named(*_DRAFTS, _DRAFT_POSITIONS):
        depth = len({sample.labels.get("position") for sample in page.named(_DRAFT_POSITIONS)}) or _DEFAULT_DRAFT_TOKENS
        # The drafts of one step are allocated ahead, and with asynchronous scheduling those of the next one as well.
        spare_blocks = 1 if block_tokens is None else max(1, ceil_div(2 * depth + 1, block_tokens))
        return spare_blocks, f"speculation is on: {spare_blocks} block(s) more held for each sequence"
    if version is not None and "+cpu" in version:
        return 0, ""
    mapped_bytes = max((sample.value for sample in page.named(_MAPPED)), default=None)
    if block_tokens and block_tokens % _CPU_BLOCK_TOKENS == 0 and mapped_bytes and mapped_bytes < _CPU_MAPPED_BYTES:
        # No figure in this sentence: it would be a new sentence at every reading.
        return 0, (
            f"taken for a build for the CPU (blocks of {block_tokens} tokens, no GPU's libraries in memory): no spare block"
            " held for a sequence"
        )
    return 1, "taken for a build for GPUs: one block more held for each sequence"


def _release(version: str | None) -> tuple[int, ...]:
    """(0, 32) for 0.32.0+cpu; (), which is before everything, where there is no such thing."""
    numbers = (version or "").split("+")[0].split(".")[:2]
    return tuple(int(number) for number in numbers) if all(number.isdigit() for number in numbers) else ()
