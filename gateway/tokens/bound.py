"""prompt_bound: never fewer tokens than the engine will count, without a tokenizer.

A byte-level tokenizer (BPE over bytes; SentencePiece with byte fallback) makes at most one token of a byte, so the UTF-8
bytes of what the template renders are a bound. English is four times below it, which is why a bound may make a request
wait, and never refuses one: where it would, the prompt is counted exactly first.

What the template adds by itself is not in the caller's bytes. The shares below are the largest seen in templates of models
in use, rendered without a system message and with one tool.
"""

from gateway.core.request import InferenceRequest, Prompt

# Beginning-of-text tokens around a prompt of /v1/completions: one in most models, two in some (a dummy space beside it).
TEXT_TOKENS = 2
# Around all messages of a chat: the opening of the answer, and the system prompt that templates supply where there is none.
CHAT_TOKENS = 96
# Around each message: its header and its end, the marks of a tool call or of an empty reasoning block in it.
MESSAGE_TOKENS = 16
# What templates explain about tools once, and the frame of each.
TOOLS_TOKENS = 400
TOOL_TOKENS = 16


def prompt_bound(prompt: Prompt) -> int | None:
    """Tokens that the prompt can be at most; exact where the caller sent token ids.

    None where its text tells nothing: it holds images or audio, or brings a template of its own. It can then be as long
    as the context, and is weighed as one.
    """
    if prompt.token_ids is not None:
        return prompt.token_ids
    if prompt.media_parts or prompt.has_own_template:
        return None
    if not prompt.messages:
        return prompt.text_bytes + TEXT_TOKENS
    tokens = prompt.text_bytes + CHAT_TOKENS + prompt.messages * MESSAGE_TOKENS
    return tokens + (TOOLS_TOKENS + prompt.tools * TOOL_TOKENS if prompt.tools else 0)


def is_exact(request: InferenceRequest) -> bool:
    """Every prompt of the request came as token ids, so that its bound is its length."""
    return all(prompt.token_ids is not None for prompt in request.prompts)
