"""Tokens and text of the pretend model: a toy tokenizer, and words to answer with.

The tokenizer cuts UTF-8 into runs of four bytes, one token each, so a text has ceil(bytes / 4) tokens and never more tokens
than bytes. Every word of an answer is four bytes long: what was counted as output is counted the same as part of the
next turn's prompt.
"""

import json
import math
import random
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

BYTES_PER_TOKEN = 4
VOCABULARY = 32_000
_THREE_LETTERS = (
    "the and for are not you all can had her was one our out day get has him his how man new now old see two way "
    "who boy did its let put say she too use ask big box car cut dog eat end far few fly got hot job key law lot "
    "map may men met mix net odd off oil own pay pen ran red run sat set six sky sun tax ten top try war wet win "
    "yes yet add age air arm art bad bag bed bit cup "
)
_WORDS = tuple(f" {word}" for word in _THREE_LETTERS.split())


def count_tokens(text: str) -> int:
    """Tokens of a text; 0 for an empty one. Linear, without making them."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def token_ids(text: str) -> list[int]:
    """The ids themselves: the same for the same text, below VOCABULARY."""
    raw = text.encode("utf-8", "surrogatepass")
    return [zlib.crc32(raw[at : at + BYTES_PER_TOKEN]) % VOCABULARY for at in range(0, len(raw), BYTES_PER_TOKEN)]


def render_chat(messages: Iterable[Mapping[str, Any]], tools: object = None, *, add_generation_prompt: bool = True) -> str:
    """A chat as the one text that the model sees: the template of ChatML's kind, tools as JSON in front."""
    parts = [] if not tools else [f"<|tools|>{json.dumps(tools, separators=(',', ':'))}<|end|>\n"]
    for message in messages:
        calls = message.get("tool_calls")
        called = json.dumps(calls, separators=(",", ":")) if calls else ""
        parts.append(f"<|{message.get('role', 'user')}|>{_content_text(message.get('content'))}{called}<|end|>\n")
    if add_generation_prompt:
        parts.append("<|assistant|>")
    return "".join(parts)


def answer_text(seed: int, start: int, count: int) -> str:
    """The text of output tokens `start` to `start + count` of the answer that belongs to `seed`: the same each time."""
    # Knuth's multiplicative hash: a position's word must not depend on how many tokens a chunk has.
    return "".join(_WORDS[((seed + position) * 2_654_435_761 >> 12) % len(_WORDS)] for position in range(start, start + count))


def natural_length(seed: int, mean_tokens: float) -> int:
    """How long an answer becomes if nothing cuts it, at least 1: lognormal with that mean, drawn by `seed` alone.

    Output lengths of real traffic are close to lognormal; a sigma of 0.6 puts one answer in ten above 1.8 times the mean.
    """
    sigma = 0.6
    draw = random.Random(seed).lognormvariate(math.log(mean_tokens) - sigma * sigma / 2, sigma)
    return max(1, round(draw))


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    return ""
