"""Setting a member of a JSON object in place: every byte that is not the member's value stays as it was.

A body is forwarded as its caller wrote it: another serialiser would change numbers, escapes, key order and half emojis.
So it is never written anew; the member is found by a scan of the object's top level, in linear time, and only its value
is replaced. Values in between are skipped, not understood: the text must be a valid JSON object (the dialect has decoded it).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

# Possessive (`++`, `*+`): nothing here may ever back up, so a body of megabytes costs one pass and no memory.
_KEY = re.compile(rb'[\s,]*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:\s*+', re.DOTALL)
_END = re.compile(rb"\s*+[,}]")
_MASKED_KEY = re.compile(rb'[\s,]*+"([^"]*+)"\s*+:\s*+')
_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"[^"]*+")*+([{}\[\]])')
_SCALAR = re.compile(rb'"[^"]*+"|[^\s,}]++')
_VALUES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


@dataclass(slots=True)
class Member:
    """One member of an object: its key, decoded, and where its value stands in the text (bytes)."""

    key: str
    start: int
    end: int


def members(text: bytes) -> list[Member]:
    """The members of the JSON object `text`, in the order in which they stand, those with the same key each for itself."""
    return _by_values(text) or list(_by_scan(text))


def _by_values(text: bytes) -> list[Member] | None:
    """The members by the lengths of their values, which a decoder measures six times as fast as a scan.

    None where that does not lead through the text: of a key that stands twice, the decoder tells the last value only, and
    half a surrogate pair it refuses.
    """
    try:
        values = _VALUES.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    found: list[Member] = []
    position = text.index(b"{") + 1
    while key := _KEY.match(text, position):
        name, start = key.group(1), key.end()
        written = name.decode() if b"\\" not in name else _STRING.decode(b'"%b"' % name)
        value = bytes(values[written])
        # A number that only begins so is longer than the last of its name.
        if not text.startswith(value, start) or not _END.match(text, start + len(value)):
            return None
        position = start + len(value)
        found.append(Member(written, start, position))
    return found


def _by_scan(text: bytes) -> Iterator[Member]:
    masked = _mask_escapes(text)
    position = masked.index(b"{") + 1
    while key := _MASKED_KEY.match(masked, position):
        end = _value_end(masked, key.end())
        raw_key = text[key.start(1) - 1 : key.end(1) + 1]
        yield Member(_STRING.decode(raw_key), key.end(), end)
        position = end


def _mask_escapes(text: bytes) -> bytes:
    """The text with escaped quotes blotted out, nothing moved: each quote that is left begins or ends a string."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def _value_end(masked: bytes, start: int) -> int:
    if masked[start] not in b"{[":
        scalar = _SCALAR.match(masked, start)
        if scalar is None:
            raise ValueError("not a JSON object")
        return scalar.end()
    depth = 0
    position = start
    while bracket := _BRACKET.match(masked, position):
        depth += 1 if bracket.group(1) in b"{[" else -1
        position = bracket.end()
        if depth == 0:
            return position
    raise ValueError("not a JSON object")


def replace(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The text with each (start, end, new bytes) put in place. Edits are in order and do not overlap."""
    parts: list[bytes] = []
    position = 0
    for start, end, new in edits:
        parts += (text[position:start], new)
        position = end
    parts.append(text[position:])
    return b"".join(parts)


def append_member(text: bytes, key: str, value: bytes) -> bytes:
    """The JSON object `text` with one member more at its end. key: plain ASCII, and not in the object yet."""
    brace = text.rindex(b"}")
    last = brace - 1
    while text[last] in b" \t\r\n":
        last -= 1
    # An opening brace can stand directly before the last closing one only if nothing is between them.
    comma = b"" if text[last] in b"{" else b","
    return b"".join((text[:brace], comma, b'"', key.encode(), b'":', value, text[brace:]))


def set_member(text: bytes, key: str, value: bytes) -> bytes:
    """The JSON object `text` with the member set: its value replaced wherever the key stands, else the member appended."""
    edits = [(member.start, member.end, value) for member in members(text) if member.key == key]
    return replace(text, edits) if edits else append_member(text, key, value)
