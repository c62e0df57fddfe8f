"""Tokenizer: exact counts from a model's own `tokenizer.json` and chat template, as its files stand in a folder.

Imported only where the extra `tokenizer` is installed, and there only in a process of its own (worker.py).

A growing conversation is not counted anew. A tokenizer first cuts the text at its special tokens, and what lies between two
of them becomes tokens without regard to the rest; so the text is cut here in the same places, and the count of each piece,
with the special token before it, is kept by the piece's hash. That is exact whatever the template does with earlier
messages, since not the messages but the rendered text is looked up. It is relied on only where it is so: the special tokens
must have none of the flags that reach into the text around them, a try at the start must agree, and so must every
`_CHECKED_EVERY`th count from then on; otherwise every text is counted whole.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from gateway.tokens.chat_template import CannotRender, ChatTemplate

# Pieces whose counts are kept: 16 bytes and a number each, some 10 MB in all.
MOST_PIECES: Final = 1 << 16
_CHECKED_EVERY: Final = 64
_MOST_CONFIG_BYTES: Final = 64 << 20
_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TRIAL: Final = "Two words, 中文 é 😀\n\n  and code: f(x) = {'a': 1}  "


class Tokenizer:
    def __init__(self, path: Path) -> None:
        """path: a folder with tokenizer.json, or the file itself. Raises ValueError, one sentence, where it cannot be used."""
        folder, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{file} is no tokenizer that can be read: {error}") from None
        # Some files carry the limits that a model was trained with; an engine does not cut a prompt there.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._templates = _read_templates(folder)
        self._pieces: OrderedDict[bytes, int] = OrderedDict()
        self._marks = _marks(self._tokenizer)
        self._counts = 0
        if self._marks is not None and not self._cuts_agree():
            self._marks = None

    @property
    def has_template(self) -> bool:
        return bool(self._templates)

    @property
    def cuts_at_marks(self) -> bool:
        """Whether pieces between special tokens are counted for themselves, and remembered."""
        return self._marks is not None

    def count_text(self, text: str) -> int:
        """Tokens of a prompt of /v1/completions, with what the tokenizer puts around it."""
        return self._whole(text, add_special_tokens=True)

    def count_chat(self, body: Mapping[str, Any]) -> int:
        """Tokens of a chat. Raises CannotRender where its text is not known here."""
        template = self._templates.get("tool_use" if body.get("tools") else "default") or self._templates.get("default")
        if template is None:
            raise CannotRender("there is no chat template beside the tokenizer")
        text = template.render(body)
        if body.get("add_special_tokens"):
            return self._whole(text, add_special_tokens=True)
        return self._rendered(text)

    def _rendered(self, text: str) -> int:
        if self._marks is None:
            return self._whole(text)
        tokens = self._by_pieces(text)
        self._counts += 1
        if self._counts % _CHECKED_EVERY == 1 and tokens != (whole := self._whole(text)):
            self._marks = None
            return whole
        return tokens

    def _by_pieces(self, text: str) -> int:
        assert self._marks is not None
        starts = [0, *(match.start() for match in self._marks.finditer(text) if match.start())]
        pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
        # The beginning of the text is a piece of another kind than the same words later on.
        keys = [_key(number == 0, piece) for number, piece in enumerate(pieces)]
        missing = {key: piece for key, piece in zip(keys, pieces, strict=True) if key not in self._pieces}
        fresh = dict(zip(missing, self._batch(missing.values()), strict=True)) if missing else {}
        total = 0
        for key in keys:
            known = self._pieces.get(key)
            if known is None:
                known = self._pieces[key] = fresh[key]
            self._pieces.move_to_end(key)
            total += known
        while len(self._pieces) > MOST_PIECES:
            self._pieces.popitem(last=False)
        return total

    def _batch(self, texts: Iterable[str]) -> list[int]:
        return [len(found) for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _whole(self, text: str, *, add_special_tokens: bool = False) -> int:
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0])

    def _cuts_agree(self) -> bool:
        """A try with every special token, each before, after and beside a text."""
        marks = [content for content, _ in _added(self._tokenizer)][:64]
        text = _TRIAL + "".join(mark + _TRIAL + mark + mark + " x " for mark in marks)
        return self._by_pieces(text) == self._whole(text) and self._by_pieces(text) == self._whole(text)


def _key(is_first: bool, piece: str) -> bytes:
    return hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=16, salt=b"\x01" if is_first else b"").digest()


def _added(tokenizer: tokenizers.Tokenizer) -> list[tuple[str, Any]]:
    return [(token.content, token) for token in tokenizer.get_added_tokens_decoder().values() if token.content]


def _marks(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Where the tokenizer itself cuts before all else: at its special tokens, the longest first. None if it has none that
    leave the text around them alone."""
    added = _added(tokenizer)
    # One that takes the blanks around it, or is looked for in another text than this one, makes the cuts uncertain.
    if not added or any(token.lstrip or token.rstrip or token.single_word for _, token in added):
        return None
    first = [content for content, token in added if not token.normalized]
    if not first:
        return None
    return re.compile("|".join(re.escape(content) for content in sorted(first, key=len, reverse=True)))


def _read_templates(folder: Path) -> dict[str, ChatTemplate]:
    """The chat templates beside a tokenizer, by name; empty where there is none. Raises ValueError for one with an error."""
    config = _read_json(folder / "tokenizer_config.json")
    special = {
        name: text
        for name in _SPECIAL_NAMES
        if (text := _token_text(config.get(name) or _read_json(folder / "special_tokens_map.json").get(name))) is not None
    }
    given: Any = config.get("chat_template")
    if (folder / "chat_template.json").is_file():
        given = _read_json(folder / "chat_template.json").get("chat_template") or given
    if (folder / "chat_template.jinja").is_file():
        given = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(given, str):
        return {"default": ChatTemplate(given, special)}
    if isinstance(given, list):
        named = {str(entry["name"]): entry["template"] for entry in given if isinstance(entry, dict) and "template" in entry}
        return {name: ChatTemplate(source, special) for name, source in named.items() if isinstance(source, str)}
    return {}


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no such file. Raises ValueError."""
    if not path.is_file():
        return {}
    if path.stat().st_size > _MOST_CONFIG_BYTES:
        raise ValueError(f"{path} is too large")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}
