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
# A report of fewer tokens than this part of those that the text has for certain is of another text.
CLEARLY: Final = 0.5

_ROLES: Final = frozenset(("user", "system", "developer", "tool"))
_CHAT: Final = msgspec.json.Decoder()
_TEXT: Final = msgspec.json.Decoder(str)


def may_be_truncated(request: InferenceRequest, reported_tokens: int) -> bool:
    """Whether the engine reported clearly fewer tokens than the texts of this request can have.

    False where nothing is certain: little text, text in other parts of the body, leave to cut it, or a text without words.
    """
    text_bytes = sum(prompt.text_bytes for prompt in request.prompts)
    if text_bytes < LEAST_BYTES or reported_tokens * PLAUSIBLE_BYTES >= text_bytes:
        return False
    if any(prompt.may_be_cut or prompt.has_own_template for prompt in request.prompts):
        return False
    return reported_tokens < CLEARLY * least_tokens(request)


def least_tokens(request: InferenceRequest) -> int:
    """Tokens that the texts of the request have at least; 0 where they are too large to be looked at, or cannot be read."""
    countable = request.countable
    raw = [countable.chat.get("messages", b"")] if countable.chat is not None else list(countable.texts)
    if sum(map(len, raw)) > MOST_BYTES:
        return 0
    try:
        if countable.chat is None:
            return sum(len(_TEXT.decode(text).split()) for text in raw)
        return sum(len(text.split()) for text in _contents(_CHAT.decode(raw[0])))
    except msgspec.DecodeError:
        return 0


def _contents(messages: Any) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            continue
        content = message.get("content")
        for part in content if isinstance(content, list) else (content,):
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text
