"""How much text a chat template can render from a body: never less than it does, and close where that is cheap.

Counted are UTF-8 bytes, since a byte-level tokenizer makes at most one token of each. Three things make a rendered text
longer than the text that was sent, and are counted for that: JSON that is parsed and written anew (spaces after `,` and
`:`, indentation, escapes), text that some tokenizers normalise first (normal_forms.py), and what the template adds around
a message (the bound's business, not this file's).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, MediaPart, Prompt
from gateway.dialects.media import media_part
from gateway.dialects.normal_forms import MOST_GROWTH, is_stable_latin, normalised_bytes
from gateway.dialects.openai_body import decode

# Above this, messages are not decoded on the event loop (1 MiB takes about 1 ms); their JSON is the bound.
DECODE_LIMIT_BYTES = 1 << 20

# Members of a content part that hold, or point to, something whose tokens are not in the text.
# By what begins them: in a large text that is looked for first, since each look at megabytes takes its time.
_MEDIA_BY_START = {
    b'"image': ("image", "image_url", "image_pil", "image_embeds"),
    b'"input_': ("input_image", "input_audio", "input_video", "input_file"),
    b'"audio': ("audio", "audio_url", "audio_embeds"),
    b'"video': ("video", "video_url"),
    b'"file"': ("file",),
}
MEDIA = frozenset(name for names in _MEDIA_BY_START.values() for name in names)
# No encoder writes plain letters so: whoever does may hide such a key.
_HIDDEN_LETTERS = tuple(b"\\u00%d" % digit for digit in (4, 5, 6, 7))
# These are one to three tokens and part of what a template adds for a message anyway.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))

# Objects in a large text that are looked at one by one.
LOOKED_AT = 20_000

# The bytes of longer texts than this are not counted where their JSON tells enough; of one, so much is kept (characters).
_LONG = 4096
_SAID = 8192
# How deep within a message a text may stand that placement hashes: within a part of its content, or an object there.
_TEXTS_WITHIN = 3
# What others than the model said, which no template leaves out.
_RENDERED = ("system", "developer", "user", "tool")

# A media part larger than this is not decoded either: its size then is not known (bytes).
_PART_LIMIT_BYTES = 8 << 20


class _Content(msgspec.Struct, gc=False):
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])
_CONTENTS = msgspec.json.Decoder(list[_Content])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_PARTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ANY = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


def text_bytes(text: str) -> int:
    """UTF-8 bytes of a text in the longest of its forms, as it is and normalised."""
    if text.isascii():
        return len(text)
    if len(text) > DECODE_LIMIT_BYTES:
        return MOST_GROWTH * len(text.encode())
    return normalised_bytes(text)


def read_messages(raw: bytes) -> Prompt:
    """The `messages` of a chat body. Raises InvalidRequest unless it is a list of objects, not empty, with sound contents."""
    if len(raw) > DECODE_LIMIT_BYTES:
        return _by_length(raw)
    return look_at_messages(decode(_MESSAGES, raw, param="messages"), len(raw))[0]


def look_at_messages(messages: list[dict[str, Any]], json_bytes: int) -> tuple[Prompt, str]:
    """The same of messages that are decoded, and what placement hashes of them: the first texts in them.

    json_bytes: of the JSON that they stand in, DECODE_LIMIT_BYTES at most.
    """
    if not messages:
        raise InvalidRequest("messages is empty.", param="messages")
    total = 0
    latin = 0  # characters of long texts, which are of one or two bytes
    said = start = ""
    media: list[MediaPart] = []
    for message in messages:
        role: Any = message.get("role")
        content: Any = message.get("content")
        is_plain = False  # a text and its role, and nothing else
        if type(content) is str:
            length = len(content)
            if length > _LONG and not said and role in _RENDERED:
                said = content[:_SAID]
            if content.isascii():
                total += length
            elif length > _LONG and is_stable_latin(content):
                latin += length
            else:
                total += normalised_bytes(content)
            if role == "tool":
                # Many templates put a tool's answer into JSON: every quote and every line end grows by a backslash.
                total += escaped_bytes(content)
            is_plain = type(role) is str and role in _ROLES and len(message) == 2
        elif content is not None:
            total += _content(content, media)
        if not is_plain:
            total += _beside_content(message)
        if len(start) >= AFFINITY_BYTES:
            continue
        start = f"{start}{role}{content[:AFFINITY_BYTES]}" if is_plain else _add_texts(start, message.values(), _TEXTS_WITHIN)
    if latin:
        total += min(2 * latin, json_bytes)  # no text is longer than its JSON
    prompt = Prompt(total, len(messages))
    if said:
        prompt.said = said
    if media:
        prompt.media_parts, prompt.media = len(media), tuple(media)
    return prompt, start


def _beside_content(message: dict[str, Any]) -> int:
    total = 0
    for key, value in message.items():
        if key != "content" and (key != "role" or type(value) is not str or value not in _ROLES):
            total += member_bytes(value)
    return total


def escaped_bytes(text: str) -> int:
    """By how much a text grows when it is put into JSON."""
    return len(_encode(text)) - (len(text) if text.isascii() else len(text.encode()))


def _add_texts(start: str, values: Iterable[Any], levels: int) -> str:
    for value in values:
        if len(start) >= AFFINITY_BYTES:
            break
        if isinstance(value, str):
            start += value[:AFFINITY_BYTES]
        elif isinstance(value, dict | list) and levels:
            start = _add_texts(start, value.values() if isinstance(value, dict) else value, levels - 1)
    return start


def _content(value: Any, media: list[MediaPart]) -> int:
    """Bytes of the text in a content that is none itself; media parts are added to `media`."""
    if value is None:
        return 0
    if not isinstance(value, list):
        raise InvalidRequest("messages: content must be a text, a list of parts, or null.", param="messages")
    total = 0
    for part in value:
        if isinstance(part, dict):
            for key, member in part.items():
                if key in MEDIA:
                    media.append(media_part(key, member))
                elif key != "type":
                    total += member_bytes(member)
        else:
            total += member_bytes(part)
    return total


def member_bytes(value: Any) -> int:
    """A member that a template may print as it is, or write as JSON."""
    if isinstance(value, str):
        # The arguments of a tool call come as a text of JSON; engines parse it, and templates write it anew.
        length = len(value) if value.isascii() else text_bytes(value)
        return length + value.count(",") + value.count(":") if value[:1] in ("{", "[") else length
    if value is None:
        return 0
    text = _encode(value)
    # One space for each separator, and the strings inside may hold JSON of their own.
    return (len(text) if text.isascii() else text_bytes(text.decode())) + separators(text)


def separators(text: bytes) -> int:
    """Commas and colons in a text. They are few, and what is taken out is found twice as fast as what is counted."""
    return 2 * len(text) - len(text.replace(b",", b"")) - len(text.replace(b":", b""))


def _by_length(raw: bytes) -> Prompt:
    """Messages too large to decode: the JSON itself is longer than its text. Media are seen by their names."""
    growth = 1 if raw.isascii() else MOST_GROWTH
    media: tuple[MediaPart, ...] | None = ()
    media_bytes = 0
    if may_hold_media(raw):
        media, media_bytes = _large_media(raw)
    return Prompt(
        text_bytes=growth * (len(raw) - media_bytes) + raw.count(b",") + raw.count(b":"),
        messages=max(1, raw.count(b'"role"')),
        media_parts=1 if media is None else len(media),
        least_text_bytes=_least_bytes(raw),
        media=media or (),
    )


def _large_media(raw: bytes) -> tuple[tuple[MediaPart, ...] | None, int]:
    """The media parts of large messages, and the bytes of JSON that they are; (None, 0) where they are not looked at.

    Only parts are taken apart, and only media members decoded: a photograph in base64 is megabytes of no text at all.
    """
    if raw.count(b"{") > LOOKED_AT or _hides_letters(raw):
        return None, 0
    media: list[MediaPart] = []
    media_bytes = 0
    for message in decode(_CONTENTS, raw, param="messages"):
        if message.content is msgspec.UNSET or bytes(message.content)[:1] != b"[":
            continue
        try:
            parts = _PARTS.decode(message.content)
        except msgspec.DecodeError:
            return None, 0
        for part in parts:
            for key, member in part.items():
                if key in MEDIA:
                    value = bytes(member)
                    media.append(media_part(key, _ANY.decode(value) if len(value) <= _PART_LIMIT_BYTES else None))
                    media_bytes += len(value)
    return tuple(media), media_bytes


def _least_bytes(raw: bytes) -> int:
    """Bytes of the texts that the messages have for certain; 0 where there are so many that a look at each takes too long."""
    if raw.count(b"{") > LOOKED_AT:
        return 0
    contents = [message.content for message in decode(_CONTENTS, raw, param="messages")]
    texts = [bytes(content) for content in contents if content is not msgspec.UNSET]
    # `\\u0061` is six bytes of JSON and one of text.
    return sum((len(text) - 2) // (6 if b"\\" in text else 1) for text in texts if text[:1] == b'"')


def may_hold_media(raw: bytes) -> bool:
    """Whether any name of a medium stands in the JSON, as a key or as a value, or may hide there."""
    for start, names in _MEDIA_BY_START.items():
        if start in raw and any(b'"%b"' % name.encode() in raw for name in names):
            return True
    return _hides_letters(raw)


def _hides_letters(raw: bytes) -> bool:
    return b"\\u00" in raw and any(letter in raw for letter in _HIDDEN_LETTERS)


def schema_bytes(raw: bytes) -> int:
    """JSON that a template writes anew (tool schemas, response formats, documents): bytes it may come to, in tokens' terms.

    Twice the length covers indentation, of which a tokenizer makes one or two tokens a line, however deep: a line carries at
    least two bytes of the compact form. Three times covers `é` (2 bytes) written as `\\u00e9` (6) where the text is not ASCII.
    """
    if raw == b"null":
        return 0
    return len(raw) * (2 if raw.isascii() else 3)


def count_items(raw: bytes) -> int:
    """Entries of a JSON list, or more where it is large; anything else that is not null counts as one."""
    if raw[:1] != b"[":
        return 0 if raw == b"null" else 1
    if len(raw) > DECODE_LIMIT_BYTES:
        return raw.count(b",") + 1
    return len(decode(_ITEMS, raw))
