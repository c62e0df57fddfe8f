"""The `prompt` of llama.cpp's own route: texts and token ids, also mixed in one prompt, objects with media, and lists of all.

A list that has a token id in it is one prompt, whatever else it holds; any other list is a list of prompts (measured).
"""

from typing import Any, Final

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, MediaKind, MediaPart, Prompt
from gateway.dialects.chat_text import text_bytes
from gateway.dialects.completions_prompt import COUNT_BYTES, MAX_PROMPTS, Prompts, as_json, read_prompts
from gateway.dialects.openai_body import decode

# Entries of a large list that is of no single kind: each is read into an object.
MAX_MIXED: Final = 100_000

_ANY: Final = msgspec.json.Decoder()
_TEXTS: Final = msgspec.json.Decoder(list[str])
_REFUSED: Final = "prompt holds what is neither a text nor a token id nor an object with a prompt_string."


def read_native_prompts(raw: bytes) -> Prompts:
    """The prompts of a body. raw: JSON. Raises InvalidRequest for what the engine does not take, and for too much."""
    if raw[:1] == b'"' or (raw[:1] == b"[" and b'"' not in raw and b"{" not in raw and not _is_empty(raw)):
        return read_prompts(raw)
    if len(raw) > COUNT_BYTES and raw[:1] == b"[":
        try:
            _TEXTS.decode(raw)
        except msgspec.DecodeError:
            pass
        else:
            return read_prompts(raw)
        if raw.count(b",") > MAX_MIXED:
            raise InvalidRequest(f"prompt mixes texts and token ids in more than {MAX_MIXED} entries.", param="prompt")
    value = decode(_ANY, raw, param="prompt")
    if value == [] or not isinstance(value, str | list | dict):
        raise InvalidRequest("prompt is empty." if value == [] else _REFUSED, param="prompt")
    entries = value if isinstance(value, list) and not any(type(entry) is int for entry in value) else [value]
    if len(entries) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt holds {len(entries)} prompts; at most {MAX_PROMPTS} are taken.", param="prompt")
    texts = tuple(entry for entry in entries if isinstance(entry, str))
    return Prompts(
        tuple(_prompt_of(entry) for entry in entries),
        # An exact count is one for all prompts that are not ids, or none.
        as_json(texts) if len(texts) == len(entries) else (),
        raw[:AFFINITY_BYTES],
    )


def _is_empty(raw: bytes) -> bool:
    """Whether there is a list without entries in it: the engine answers such a prompt with nothing, and takes nothing."""
    return b"[]" in raw.translate(None, b" \t\r\n")


def _prompt_of(entry: Any) -> Prompt:
    if isinstance(entry, str):
        return Prompt(text_bytes=text_bytes(entry))
    if isinstance(entry, dict):
        text = entry.get("prompt_string")
        if not isinstance(text, str):
            raise InvalidRequest(_REFUSED, param="prompt")
        media = entry.get("multimodal_data")
        parts = 0 if media in (None, []) else len(media) if isinstance(media, list) else 1
        return Prompt(text_bytes=text_bytes(text), media_parts=parts, media=(MediaPart(MediaKind.OTHER),) * parts)
    if not isinstance(entry, list):
        raise InvalidRequest(_REFUSED, param="prompt")
    if all(type(part) is int and part >= 0 for part in entry) and entry:
        return Prompt(text_bytes=0, token_ids=len(entry))
    total = 0
    for part in entry:
        if isinstance(part, str):
            total += text_bytes(part)
        elif type(part) is int and part >= 0:
            total += 1
        else:
            raise InvalidRequest(_REFUSED, param="prompt")
    return Prompt(text_bytes=total)
