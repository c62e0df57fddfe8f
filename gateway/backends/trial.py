"""Trial: a few tiny requests to one backend, to see whether it counts and holds what we predict.

It costs KV for a moment, so it is run only when asked for. Block counts are compared where the engine has a gauge and is
idle. The gauge is set at the end of a step, after what ended was freed: a block that is taken for a last step only never
shows, so each length holds its last block for many steps. It promises: nothing is sent that is longer than a few blocks
and one context; a trial that fails is a result, not an exception.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.backends.engines.answers import member, whole
from gateway.backends.probe import NeedsKey, Probe
from gateway.backends.watch import Watch
from gateway.core.errors import UpstreamFailed
from gateway.core.geometry import Weighing

LENGTHS: Final = 10
_OUTPUT_TOKENS: Final = 48
_LEAST_BLOCK_TOKENS: Final = 8
_TRIES: Final = 4
_POLL_S: Final = 0.004
_FIRST_ID: Final = 11
_IDS: Final = 89  # a few hundred small ids are in any vocabulary


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One comparison. predicted, seen: tokens or blocks, as `what` says. is_bound: seen may be less than predicted."""

    what: str
    predicted: int | None
    seen: int | None
    is_bound: bool = False
    trouble: str = ""

    @property
    def agrees(self) -> bool:
        if self.trouble or self.seen is None or self.predicted is None:
            return not self.trouble
        return self.seen <= self.predicted if self.is_bound else self.seen == self.predicted

    def __str__(self) -> str:
        if self.trouble:
            return f"{self.what}: {self.trouble}"
        if self.seen is None:
            return f"{self.what}: predicted {self.predicted}, and it does not tell"
        sign = "=" if self.seen == self.predicted else "<=" if self.agrees else "but"
        return f"{self.what}: predicted {self.predicted} {sign} seen {self.seen}"


async def run_trial(watch: Watch) -> tuple[TrialResult, ...]:
    """All comparisons that can be made on this backend."""
    view, report = watch.view, watch.report
    if view.capacity is None or report is None:
        return (TrialResult("trial", None, None, trouble="nothing is known of its cache, so there is nothing to compare"),)
    model = view.models[0] if view.models else None
    results = [await _compare_count(watch.probe, view.engine, model)]
    if view.used_blocks is not None and report.usable_blocks is not None:
        results += await _compare_blocks(watch, view.capacity.weighing, model)
    return tuple(results)


async def _compare_count(probe: Probe, engine: str, model: str | None) -> TrialResult:
    """The prompt count of one chat message, by the route that we count with and by the answer's usage."""
    what = "prompt tokens of a short chat"
    named = {} if model is None else {"model": model}
    messages = [{"role": "user", "content": "Is a bound a promise? Yes or no."}]
    routes: Mapping[str, tuple[str, str]] = {
        "vllm": ("/tokenize", "count"),
        "sglang": ("/tokenize", "count"),
        "llama_cpp": ("/v1/chat/completions/input_tokens", "input_tokens"),
    }
    try:
        answer = await probe.post("/v1/chat/completions", _body({**named, "messages": messages, "max_tokens": 4}))
        seen = whole(member(answer.json(), "usage", "prompt_tokens"))
        if answer.status != 200 or seen is None:
            return TrialResult(what, None, None, trouble=f"it answered {answer.status} without usage")
        if engine not in routes:
            return TrialResult(what, None, seen)
        path, key = routes[engine]
        counted = whole(member((await probe.post(path, _body({**named, "messages": messages}))).json(), key))
    except (UpstreamFailed, NeedsKey) as error:
        return TrialResult(what, None, None, trouble=str(error) or "it needs a key")
    return TrialResult(what, counted, seen)


async def _compare_blocks(watch: Watch, weighing: Weighing, model: str | None) -> list[TrialResult]:
    """Blocks of ten lengths around the edges of blocks, as the gauge shows them while each request runs alone."""
    results: list[TrialResult] = []
    for number, (prompt, output) in enumerate(lengths_around_edges(weighing.block_tokens, weighing.max_context or 2**31)):
        predicted = weighing.sequence_blocks(prompt + output) - weighing.spare_blocks
        what = f"blocks of {prompt} + {output} tokens"
        # A state or a window holds at most what is predicted, and may hold less.
        is_bound = bool(weighing.pools) or weighing.whole_context_blocks is not None
        results.append(await _watch_one(watch, model, number, prompt, output, predicted, what, is_bound=is_bound))
    return results


def lengths_around_edges(block_tokens: int, context: int) -> list[tuple[int, int]]:
    """Ten pairs of prompt and output: what is written ends just before an edge of a block, at it, or begins just after it.

    None for blocks so small that every token is an edge: the gauge is a step behind.
    """
    found: list[tuple[int, int]] = []
    edge = block_tokens if block_tokens >= _LEAST_BLOCK_TOKENS else context
    beyond = max(2, min(_OUTPUT_TOKENS, block_tokens - 2))
    while len(found) < LENGTHS and edge + 1 + beyond < context:
        # Prompt + output is one more than what is written: the last token's KV never is.
        ending = [(written + 1 - _OUTPUT_TOKENS, _OUTPUT_TOKENS) for written in (edge - 1, edge)]
        found += [(prompt, output) for prompt, output in ending if prompt >= 2]
        found.append((edge + 1, beyond))
        edge += block_tokens
    return found[:LENGTHS]


async def _watch_one(
    watch: Watch, model: str | None, number: int, prompt: int, output: int, predicted: int, what: str, *, is_bound: bool
) -> TrialResult:
    """One request, and the gauge's highest reading while it runs; again where it was too quick to be read."""
    assert watch.report is not None
    peak = 0
    for attempt in range(_TRIES):
        # Another prompt at each attempt: a cached one would still be held, but no prediction should rest on that.
        ids = [_FIRST_ID + (number * 31 + attempt * 17 + place * 7) % _IDS for place in range(prompt)]
        body = {"prompt": ids, "max_tokens": output, "min_tokens": output, "ignore_eos": True, "temperature": 0}
        if model is not None:
            body["model"] = model
        try:
            before = await watch.engine.read_live(watch.probe, watch.report)
            if before.running or before.waiting or before.used_blocks:
                return TrialResult(what, predicted, None, trouble="others use it, so nothing can be compared")
            asked = asyncio.create_task(watch.probe.post("/v1/completions", _body(body)), name="trial")
            while not asked.done():
                use = await watch.engine.read_live(watch.probe, watch.report)
                peak = max(peak, use.used_blocks or 0)
                await asyncio.sleep(_POLL_S)
            answer = await asked
        except (UpstreamFailed, NeedsKey) as error:
            return TrialResult(what, predicted, None, trouble=str(error) or "it needs a key")
        if answer.status != 200:
            return TrialResult(what, predicted, None, trouble=f"it answered {answer.status}: {answer.text()[:120]}")
        counted = whole(member(answer.json(), "usage", "prompt_tokens"))
        if counted is not None and counted != prompt:
            return TrialResult(what, prompt, counted, trouble=f"it counts {counted} prompt tokens where {prompt} were sent")
        if peak >= predicted:
            break
        await asyncio.sleep(0.2)  # the engine's last step has to show as idle before the next attempt
    return TrialResult(what, predicted, peak, is_bound=is_bound)


def _body(content: Mapping[str, object]) -> bytes:
    return json.dumps(content).encode()
