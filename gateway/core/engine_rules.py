"""EngineRules: what an engine does with a request, as far as it changes what the request may occupy. A table, not branches.

Sources are the engines themselves, as measured (vLLM 0.32, Dynamo 1.6.1, llama.cpp b11549); each engine's file in
backends/engines says what it saw.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineRules:
    """The defaults are the cautious reading: what an engine of which nothing is known may do.

    absent_completions_cap: output cap that /v1/completions gets when the body has none (vLLM: 16); None: to the context.
    refuses_cap_above_context: it answers 400 to an output cap larger than the context by itself.
    has_best_of: it runs max(n, best_of) sequences rather than n.
    takes_include_usage: `stream_options.include_usage` is known to be accepted, and to change nothing but the one event more.
    spare_blocks: blocks beyond the formula that one sequence may hold (lookahead of a GPU build or of speculation).
    runs_on_when_left: a plain (not streamed) request runs to its end although its client has gone (llama.cpp).
    fair_share_tokens: prompt + output that one uncapped request gets where slots share one cache; None: no such rule.
    queues_prompts: of many prompts in one body of embeddings it begins those that its cache has room for, and the others
    later, so that the body needs no more than there is. Otherwise they may all be begun at once, seats permitting.
    """

    absent_completions_cap: int | None = None
    refuses_cap_above_context: bool = False
    has_best_of: bool = True
    takes_include_usage: bool = False
    spare_blocks: int = 0
    runs_on_when_left: bool = False
    fair_share_tokens: int | None = None
    queues_prompts: bool = False
