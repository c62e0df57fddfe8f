"""least_tokens: tokens that the text of a request has for certain, whatever the tokenizer; what tells that an engine cut it.

Tokenizers cut a text into words before they make tokens of it, and no token holds two of them. (A few newer ones merge over
blanks; none holds more than a few words.) So the words of a text are a lower bound of its tokens, and a report of fewer than
half of them cannot be of this text. Counted are only contents that every template renders: what the user, the system and
tools say, not what an assistant said, since templates drop its thoughts.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.core.request import InferenceRequest

# A report of more tokens than one for so many bytes is plausible without a look at the text.
PLAUSIBLE_BYTES: Final = 8
# Less text than this is not worth a look: templates drop a word here and there.
LEAST_BYTES: Final = 4096
# More text than this is not looked at: it is done on the event loop, and takes some 5 ms.
MOST_BYTES: Final = 1 << 18
# A report is of another text if that has for certain more than so many times as many tokens.
CLEARLY: Final = 2

# So many bytes of JSON nearly always hold a word. Of a text with more than enough words only the beginning is decoded.
_WORD_BYTES: Final = 16

_ROLES: Final = frozenset(("user", "system", "developer", "tool"))


def may_be_truncated(request: InferenceRequest, reported_tokens: int) -> bool:
    """Whether the engine reported clearly fewer tokens than the texts of this request can have.

    False where nothing is certain: little text, text in other parts of the body, leave to cut it, or a text without words.
    """
    text_bytes = 0
    for prompt in request.prompts:
        text_bytes += prompt.text_bytes
    if text_bytes < LEAST_BYTES or reported_tokens * PLAUSIBLE_BYTES >= text_bytes:
        return False
    if any(prompt.may_be_cut or prompt.has_own_template for prompt in request.prompts):
        return False
    enough = CLEARLY * reported_tokens + 1
    if len(request.prompts[0].said.split(None, enough)) > enough:  # the last may be cut itself
        return True
    return least_tokens(request, enough) >= enough


def least_tokens(request: InferenceRequest, enough: int = MOST_BYTES) -> int:
    """Tokens that the texts of the request have at least; 0 where they are too large to be looked at, or cannot be read.

    enough: no more than so many are counted.
    """
    countable = request.countable
    members = countable.chat if countable.chat is not None else countable.anthropic
    raw = [members.get("messages", b"")] if members is not None else list(countable.texts)
    if sum(map(len, raw)) > MOST_BYTES:
        return 0
    words = 0
    try:
        for text in _contents(raw[0]) if members is not None else raw:
            words += _words(text, enough - words)
            if words >= enough:
                return enough
    except msgspec.DecodeError:
        return 0
    return words


def _words(text: bytes, enough: int) -> int:
    """Words of a text in JSON, of which no more than `enough` are counted."""
    # No escape holds a blank, so a string can end before any.
    cut = text.rfind(b" ", 0, enough * _WORD_BYTES) if len(text) > enough * _WORD_BYTES else -1
    if cut > 0:
        words = len(_TEXT.decode(text[:cut] + b'"').split(None, enough))
        if words >= enough:
            return enough
    return min(len(_TEXT.decode(text).split(None, enough)), enough)


class _Part(msgspec.Struct, gc=False):
    text: Any = None


class _Message(msgspec.Struct, gc=False):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw(b"null")


_TEXT: Final = msgspec.json.Decoder(str)
_MESSAGES: Final = msgspec.json.Decoder(list[_Message])
_PARTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_PART: Final = msgspec.json.Decoder(_Part)


def _contents(messages: bytes) -> Iterator[bytes]:
    """The texts in them that every template renders, each as JSON."""
    for message in _MESSAGES.decode(messages):
        if not isinstance(message.role, str) or message.role not in _ROLES:
            continue
        content = bytes(message.content)
        if content[:1] == b'"':
            yield content
        elif content[:1] == b"[":
            for raw in _PARTS.decode(content):
                part = bytes(raw)
                text = _PART.decode(part).text if part[:1] == b"{" else None
                if part[:1] == b'"':
                    yield part
                elif isinstance(text, str):
                    yield msgspec.json.encode(text)
