"""prompt_bound: never fewer tokens than the engine will count, without a tokenizer.

A byte-level tokenizer (BPE over bytes; SentencePiece with byte fallback) makes at most one token of a byte, so the UTF-8
bytes of what the template renders are a bound. English is four times below it, which is why a bound may make a request
wait, and never refuses one: where it would, the prompt is counted exactly first.

What the template adds by itself is not in the caller's bytes. The shares below cover the templates of Qwen 2.5 and 3,
Llama 3, Mistral, DeepSeek, Gemma, SmolLM2, Granite and gpt-oss. A few templates bring a system prompt of their own that is
longer (Command R7B: some 600 tokens, with tools twice that): there only the surplus of bytes over tokens, some 750 tokens
for 1,000 bytes of English, keeps the bound above the truth.
"""

from collections.abc import Sequence

from gateway.core.request import InferenceRequest, Prompt
from gateway.tokens.media import MediaCosts

# No vocabulary has a longer one: the longest are runs of 128 blanks or dashes, some of 512; and text may shrink when it is
# normalised.
LONGEST_TOKEN_BYTES = 1024
# Beginning-of-text tokens around a prompt of /v1/completions: one in most models, two in some (a dummy space beside it).
TEXT_TOKENS = 2
# Around all messages of a chat: the opening of the answer, and what the template says by itself (Qwen 2.5: 20, Llama 3.1: 25,
# gpt-oss: 70; Mistral Small 3 without a system message: 180).
CHAT_TOKENS = 192
# Around each message: its header and its end (5 in most), the marks of a tool call or of an empty reasoning block in it;
# 15 where the marks are not tokens of the model but spelled out.
MESSAGE_TOKENS = 16
# What templates explain about tools once (Llama 3.1: 100, Qwen: 150, DeepSeek V3.2: 400), and the frame of each.
TOOLS_TOKENS = 512
TOOL_TOKENS = 16


def prompt_bound(prompt: Prompt, media: Sequence[MediaCosts] = ()) -> int | None:
    """Tokens that the prompt can be at most; exact where the caller sent token ids.

    media: what images and the like cost on each backend that may run it; the dearest counts.
    None where its text tells nothing: it holds media whose cost is not known, or brings a template of its own. It can then be
    as long as the context, and is weighed as one.
    """
    if prompt.token_ids is not None:
        return prompt.token_ids
    if prompt.has_own_template:
        return None
    media_tokens = _media_bound(prompt, media) if prompt.media_parts else 0
    if media_tokens is None:
        return None
    if not prompt.messages:
        return prompt.text_bytes + TEXT_TOKENS + media_tokens
    tokens = prompt.text_bytes + CHAT_TOKENS + prompt.messages * MESSAGE_TOKENS + media_tokens
    return tokens + (TOOLS_TOKENS + prompt.tools * TOOL_TOKENS if prompt.tools else 0)


def _media_bound(prompt: Prompt, media: Sequence[MediaCosts]) -> int | None:
    if not media or len(prompt.media) != prompt.media_parts:
        return None
    totals: list[int] = []
    for costs in media:
        tokens = [costs.tokens(part) for part in prompt.media]
        known = [count for count in tokens if count is not None]
        if len(known) != len(tokens):
            return None
        totals.append(sum(known))
    return max(totals)


def prompt_least(prompt: Prompt) -> int:
    """Tokens that the prompt has at least: what tells, without counting, that megabytes pass every context."""
    if prompt.token_ids is not None:
        return prompt.token_ids
    return 0 if prompt.has_own_template else prompt.least_text_bytes // LONGEST_TOKEN_BYTES


def is_exact(request: InferenceRequest) -> bool:
    """Every prompt of the request came as token ids, so that its bound is its length."""
    return None not in [prompt.token_ids for prompt in request.prompts]
