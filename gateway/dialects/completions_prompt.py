"""The prompts of a body without messages: one or many, as texts or as token ids, and vLLM's tensors beside them.

Large lists are counted without being read into objects: millions of ids would keep everybody waiting for seconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, Prompt
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES, text_bytes
from gateway.dialects.openai_body import decode

# Sequences of one body, before `n`: as many as vLLM allows for `n` itself.
MAX_PROMPTS = 16_384
# Above this a list of ids is counted by its commas (bytes).
COUNT_BYTES = 64 * 1024

_TokenId = Annotated[int, msgspec.Meta(ge=0)]
_Ids = list[_TokenId]

_PROMPT = msgspec.json.Decoder(str | list[_TokenId | str | _Ids] | None)
_TEXTS = msgspec.json.Decoder(list[str])
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_EMBEDS = msgspec.json.Decoder(str | list[str] | None)
_OF_IDS = b"0123456789, \t\r\n"
_FIRST_IDS = re.compile(rb"[\[\s]*([0-9][0-9,\s]*+)")


@dataclass(frozen=True, slots=True)
class Prompts:
    """prompts: in order. texts: those that came as text, each as JSON. start: the first bytes of the first, as placement
    hashes them."""

    prompts: tuple[Prompt, ...]
    texts: tuple[bytes, ...]
    start: bytes


def read_prompts(raw: bytes, *, suffix: str | None = None, embeds: bytes = b"null", param: str = "prompt") -> Prompts:
    """The prompts of a body. raw, embeds: JSON, `null` where absent. param: the member that `raw` is the value of.

    Raises InvalidRequest for a list that is empty, of mixed kinds, or of too many.
    """
    beside = _read_embeds(embeds)
    suffix_bytes = text_bytes(suffix or "")
    if len(raw) > COUNT_BYTES and raw[:1] == b"[":
        if b'"' not in raw:
            return Prompts((*_count_ids(raw, param), *beside), (), _start_of_ids(raw))
        _refuse_many(_count_strings(raw), param)
        many = decode(_TEXTS, raw, param=param)
        return _of_texts(many, as_json(many), suffix_bytes, beside, param)
    prompt = decode(_PROMPT, raw, param=param)
    if prompt is None:
        if not beside:
            raise InvalidRequest(f"{param} is missing.", param=param)
        return Prompts(beside, (), b"")
    if isinstance(prompt, str):
        return _of_texts([prompt], (raw,), suffix_bytes, beside, param)
    if not prompt:
        raise InvalidRequest(f"{param} is an empty list.", param=param)
    texts = [entry for entry in prompt if isinstance(entry, str)]
    if len(texts) == len(prompt):
        return _of_texts(texts, as_json(texts), suffix_bytes, beside, param)
    lists = [entry for entry in prompt if isinstance(entry, list)]
    if len(lists) == len(prompt):
        return Prompts((*_of_lists([len(ids) for ids in lists], param), *beside), (), _start_of_ids(raw))
    if texts or lists:
        raise InvalidRequest(f"{param} mixes texts, token ids and lists of token ids.", param=param)
    return Prompts((Prompt(text_bytes=0, token_ids=len(prompt)), *beside), (), _start_of_ids(raw))


def as_json(texts: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(map(msgspec.json.encode, texts))


def _of_texts(
    texts: list[str], in_json: tuple[bytes, ...], suffix_bytes: int, beside: tuple[Prompt, ...], param: str
) -> Prompts:
    _refuse_many(len(texts), param)
    found = tuple(
        Prompt(
            text_bytes=text_bytes(text) + suffix_bytes,
            least_text_bytes=len(text) if len(text) > DECODE_LIMIT_BYTES else 0,
        )
        for text in texts
    )
    return Prompts((*found, *beside), in_json, texts[0][:AFFINITY_BYTES].encode())


def _of_lists(lengths: Sequence[int], param: str) -> tuple[Prompt, ...]:
    _refuse_many(len(lengths), param)
    if not all(lengths):
        raise InvalidRequest(f"{param} holds an empty list of token ids.", param=param)
    return tuple(Prompt(text_bytes=0, token_ids=length) for length in lengths)


def _count_ids(raw: bytes, param: str) -> tuple[Prompt, ...]:
    """Prompts of a large list without texts: valid JSON made of nothing but digits, commas and brackets holds ids."""
    brackets = raw.translate(None, _OF_IDS)
    if brackets == b"[]":
        return _of_lists([_ids_in(raw)], param)
    if brackets != b"[" + b"[]" * (len(brackets) // 2 - 1) + b"]":
        raise InvalidRequest(f"{param} holds what is neither a text nor a token id nor a list of token ids.", param=param)
    _refuse_many(len(brackets) // 2 - 1, param)
    entries = [bytes(entry) for entry in decode(_ENTRIES, raw, param=param)]
    if not all(entry[:1] == b"[" for entry in entries):
        raise InvalidRequest(f"{param} mixes texts, token ids and lists of token ids.", param=param)
    return _of_lists([_ids_in(entry) for entry in entries], param)


def _ids_in(raw: bytes) -> int:
    return raw.count(b",") + 1 if raw.strip(b"[] \t\r\n") else 0


def _count_strings(raw: bytes) -> int:
    """Strings in a JSON text, once escaped quotes are taken out of it."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2


def _refuse_many(prompts: int, param: str) -> None:
    if prompts > MAX_PROMPTS:
        raise InvalidRequest(f"{param} holds {prompts} prompts; at most {MAX_PROMPTS} are taken in one body.", param=param)


def _read_embeds(raw: bytes) -> tuple[Prompt, ...]:
    """vLLM's prompts as tensors, whose length stands in a pickle that nobody should open: prompts without a bound."""
    if raw == b"null":
        return ()
    _refuse_many(_count_strings(raw), "prompt_embeds")
    embeds = decode(_EMBEDS, raw, param="prompt_embeds")
    count = len(embeds) if isinstance(embeds, list) else 1
    return tuple(Prompt(text_bytes=0, media_parts=1) for _ in range(count))


def _start_of_ids(raw: bytes) -> bytes:
    """The first bytes of the first ids, written in one way."""
    first = _FIRST_IDS.match(raw[: 4 * AFFINITY_BYTES])
    return b"[" + b"".join(first.group(1).split())[:AFFINITY_BYTES] + b"]" if first else b""
