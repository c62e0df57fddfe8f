"""How much text a template can render from a Messages body: never less than it does, and close where that is cheap.

Engines turn such a body into a chat before they render it (vLLM and llama.cpp, measured): the system text becomes a message,
each tool result one of its own, a call's `input` is written as JSON anew, and tools are wrapped as OpenAI's functions.

Blocks are read by their members, not by their types: a block that nobody knows yet is counted as the text that it holds, and
what has a `source` that is no text is a medium.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import MediaKind, MediaPart
from gateway.dialects.chat_text import DECODE_LIMIT_BYTES, separators, text_bytes
from gateway.dialects.media import media_part
from gateway.dialects.normal_forms import MOST_GROWTH
from gateway.dialects.openai_body import decode

# What is written around a call, an answer or a tool when it is brought into OpenAI's form (bytes).
FRAME_BYTES: Final = 64
# JSON may be written with escapes: `é` (2 bytes) as `\\u00e9` (6).
_ESCAPED_GROWTH: Final = 3

# Members that no template renders, and the type, which becomes a role or a mark.
_UNSEEN: Final = frozenset(("type", "cache_control", "signature"))
_ROLES: Final = frozenset(("user", "assistant", "system"))
# No encoder writes plain letters as escapes: whoever does may hide the key `source`.
_HIDDEN_LETTER: Final = re.compile(rb"\\u00[4-7]")
# Objects in large messages that are looked at one by one, and the largest source that is decoded (bytes).
_LOOKED_AT: Final = 20_000
_SOURCE_LIMIT_BYTES: Final = 8 << 20


class _Block(msgspec.Struct, gc=False):
    source: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Message(msgspec.Struct, gc=False):
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, Any]])
_LARGE_MESSAGES: Final = msgspec.json.Decoder(list[_Message])
_BLOCKS: Final = msgspec.json.Decoder(list[_Block])
_ANY: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class MessagesText:
    """What was found: bytes that can be rendered, messages that they make, and media parts (not in the bytes).

    media: what is known of each medium. least_bytes: of the text, what is rendered for certain; 0 where nobody looked.
    """

    text_bytes: int = 0
    messages: int = 0
    media: list[MediaPart] = field(default_factory=list)
    least_bytes: int = 0

    def add_message(self, message: dict[str, Any]) -> None:
        """One entry of `messages`. Raises InvalidRequest for a content that is neither text nor blocks."""
        self.messages += 1
        role = message.get("role")
        content = message.get("content")
        is_told = isinstance(role, str) and role in _ROLES
        if type(content) is str:
            self.text_bytes += len(content) if content.isascii() else text_bytes(content)
            if is_told and len(message) == 2:
                return  # as most messages are
        else:
            before = self.text_bytes
            self.add_content(content)
            if role == "assistant" and _holds_answer(content):
                # vLLM prints what a tool answered there as a program would, each quote with a backslash.
                self.text_bytes += self.text_bytes - before
        for key, value in message.items():
            if key != "content" and (key != "role" or not is_told):
                self.text_bytes += json_bytes(value)

    def add_content(self, content: Any, *, is_answer: bool = False) -> None:
        """A text, or blocks. is_answer: it is a tool's, which many templates put into JSON."""
        if isinstance(content, str):
            self.text_bytes += json_bytes(content) if is_answer else text_bytes(content)
        elif isinstance(content, list):
            for block in content:
                if isinstance(block, dict):
                    self._add_block(block, is_answer=is_answer)
                else:
                    self.text_bytes += json_bytes(block)
        elif content is not None:
            raise InvalidRequest("messages: content must be a text or a list of blocks.", param="messages")

    def _add_block(self, block: dict[str, Any], *, is_answer: bool) -> None:
        self.text_bytes += 1  # blocks are joined by line ends
        if is_answer or block.get("type") not in ("text", "thinking"):
            self.messages += 1
            self.text_bytes += FRAME_BYTES
        for key, value in block.items():
            if key == "source":
                self._add_source(value)
            elif key == "content" and isinstance(value, str | list):
                self.add_content(value, is_answer=True)
            elif key not in _UNSEEN:
                self.text_bytes += text_bytes(value) if isinstance(value, str) and not is_answer else json_bytes(value)

    def _add_source(self, source: Any) -> None:
        if is_text(source):
            self.add_content(source.get("data"))
            self.add_content(source.get("content"))
        else:
            self.media.append(media_of(source))


def is_text(source: Any) -> bool:
    """A document's source that is its text, whole or in blocks."""
    if not isinstance(source, dict):
        return False
    data, content = source.get("data"), source.get("content")
    return (source.get("type") == "text" and isinstance(data, str) and content is None) or (
        source.get("type") == "content" and isinstance(content, str | list) and data is None
    )


def media_of(source: Any) -> MediaPart:
    """What is known of a medium by its source: an image, unless it says that it is something else."""
    if not isinstance(source, dict):
        return MediaPart(MediaKind.OTHER)
    is_image = str(source.get("media_type", "image/")).startswith("image/")
    return media_part("image" if is_image else "document", source)


def json_bytes(value: Any) -> int:
    """A value written as JSON anew, with a space for each separator, by a reader who may escape what is not ASCII."""
    if value is None:
        return 0
    text = _encode(value)
    written = len(text) if text.isascii() else max(text_bytes(text.decode()), _ESCAPED_GROWTH * len(text))
    return written + separators(text)


def _holds_answer(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(block, dict) and "content" in block for block in content)


def read_messages(raw: bytes, system: bytes) -> MessagesText:
    """The `messages` and the `system` text of a body, both as JSON; `null` where there is no system text.

    Raises InvalidRequest unless the messages are a list of objects, not empty, with sound contents.
    """
    if len(raw) + len(system) > DECODE_LIMIT_BYTES:
        return _by_length(raw, system)
    messages = decode(_MESSAGES, raw, param="messages")
    if not messages:
        raise InvalidRequest("messages is empty.", param="messages")
    return look_at_messages(messages, decode(_ANY, system, param="system"))


def look_at_messages(messages: list[dict[str, Any]], system: Any) -> MessagesText:
    """The same of messages and a system text that are decoded."""
    if not messages:
        raise InvalidRequest("messages is empty.", param="messages")
    if not (system is None or isinstance(system, str | list)):
        raise InvalidRequest("system must be a text or a list of blocks.", param="system")
    found = MessagesText()
    try:
        if system:
            found.add_message({"role": "system", "content": system})
        for message in messages:
            found.add_message(message)
    except RecursionError:  # what was just within reach of the decoder may be beyond that of who walks it
        raise InvalidRequest("The body is nested too deeply.", param="messages") from None
    return found


def _by_length(raw: bytes, system: bytes) -> MessagesText:
    """Too large to decode: the JSON itself is longer than its text. Media are looked for where their key stands."""
    messages = decode(_LARGE_MESSAGES, raw, param="messages")
    if not messages:
        raise InvalidRequest("messages is empty.", param="messages")
    text = raw + system
    is_hiding = _HIDDEN_LETTER.search(text) is not None
    is_crowded = raw.count(b"{") > _LOOKED_AT
    media: list[MediaPart] | None = []
    media_bytes = 0
    if is_hiding or b'"source"' in text:
        media, media_bytes = (None, 0) if is_hiding or is_crowded or b'"source"' in system else _large_media(messages)
    growth = 1 if text.isascii() and b"\\u" not in text else MOST_GROWTH
    return MessagesText(
        text_bytes=growth * (len(text) - media_bytes) + text.count(b",") + text.count(b":"),
        messages=1 + text.count(b'"role"') + text.count(b'"type"'),
        media=[MediaPart(MediaKind.OTHER)] if media is None else media,
        least_bytes=0 if is_crowded else sum(map(_least_bytes, messages)),
    )


def _large_media(messages: list[_Message]) -> tuple[list[MediaPart] | None, int]:
    """The media of large messages and the bytes of JSON that they are; (None, 0) where that cannot be told.

    Only blocks are taken apart, and only sources decoded: a screenshot in base64 is megabytes of no text at all.
    """
    media: list[MediaPart] = []
    media_bytes = 0
    contents = [message.content for message in messages]
    for content in contents:
        raw = b"" if content is msgspec.UNSET else bytes(content)
        if raw[:1] != b"[" or b'"source"' not in raw:
            continue
        try:
            blocks = _BLOCKS.decode(raw)
        except msgspec.DecodeError:
            return None, 0
        for block in blocks:
            contents.append(block.content)  # a tool's answer holds blocks as well
            if block.source is not msgspec.UNSET:
                source_bytes = len(bytes(block.source))
                source = _ANY.decode(block.source) if source_bytes <= _SOURCE_LIMIT_BYTES else None
                if not is_text(source):
                    media.append(media_of(source))
                    media_bytes += source_bytes
    return media, media_bytes


def _least_bytes(message: _Message) -> int:
    """Bytes of a message's text that are rendered for certain. `\\u0061` is six bytes of JSON and one of text."""
    raw = b"" if message.content is msgspec.UNSET else bytes(message.content)
    return (len(raw) - 2) // (6 if b"\\" in raw else 1) if raw[:1] == b'"' else 0
