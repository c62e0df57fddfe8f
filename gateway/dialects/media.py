"""What the body tells of an image, a sound or a document in it: its kind and, for an image that is in the body, its size.

`media_part` is the one call that a dialect needs. It promises: bounded work whatever the data (a header is looked for in the
first `LOOKED_AT_BYTES`), no decoding of a picture, and never an exception. A size that could be read in two ways is none: an
engine must never see a larger picture than the one that was told here.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from gateway.core.request import MediaKind, MediaPart

# How far into an image its size is looked for: a JPEG may carry a preview and a colour profile before it.
LOOKED_AT_BYTES: Final = 128 * 1024

_KINDS: Final[Mapping[str, MediaKind]] = {
    "image": MediaKind.IMAGE,
    "image_url": MediaKind.IMAGE,
    "image_pil": MediaKind.IMAGE,
    "input_image": MediaKind.IMAGE,
    "audio": MediaKind.AUDIO,
    "audio_url": MediaKind.AUDIO,
    "input_audio": MediaKind.AUDIO,
    "video": MediaKind.VIDEO,
    "video_url": MediaKind.VIDEO,
    "input_video": MediaKind.VIDEO,
    "file": MediaKind.DOCUMENT,
    "input_file": MediaKind.DOCUMENT,
    "document": MediaKind.DOCUMENT,
}
# Where the data stands in what the dialects write: OpenAI's parts, Responses' items, Anthropic's sources.
_DATA_MEMBERS: Final = ("url", "data", "image_url", "file_data", "source")

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_WEBP_BLOCKS: Final = (b"VP8 ", b"VP8L", b"VP8X")
# JPEG: frame headers carry the size; these three of their range are none.
_NO_FRAME: Final = frozenset((0xC4, 0xC8, 0xCC))
_START_OF_SCAN: Final = 0xDA


def media_part(name: str, value: Any) -> MediaPart:
    """What is known of one part. name: its `type`, or the member that holds it. value: that member's JSON value, decoded.

    A text is a link, a `data:` URL or bare base64; of an object the member that holds one of those is looked at.
    """
    kind = _KINDS.get(name, MediaKind.OTHER)
    if kind is not MediaKind.IMAGE:
        return MediaPart(kind)
    size = image_size(_head_of(value))
    return MediaPart(kind, *size) if size is not None else MediaPart(kind)


def image_size(head: bytes) -> tuple[int, int] | None:
    """Width and height (pixels) of a PNG, JPEG or WebP that begins so; None for all else.

    GIF has none: its frames may be larger than what its header says.
    """
    size = None
    if head.startswith(_PNG) and head[12:16] == b"IHDR" and len(head) >= 24:
        size = (int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg_size(head)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and head[12:16] in _WEBP_BLOCKS and len(head) >= 30:
        size = _webp_size(head)
    return size if size is not None and min(size) > 0 else None


def _head_of(value: Any) -> bytes:
    """The first bytes of the data that `value` holds; empty where it holds none, or only a link to it."""
    for _ in range(3):
        if not isinstance(value, Mapping):
            break
        value = next((value[name] for name in _DATA_MEMBERS if name in value), None)
    if not isinstance(value, str):
        return b""
    start = 0
    if value[:5].lower() == "data:":
        start = value.find(",", 0, 1024) + 1
        if not start or "base64" not in value[:start].lower():
            return b""
    most = LOOKED_AT_BYTES // 3 * 4
    text = value[start : start + most]
    try:
        return base64.b64decode(text[: len(text) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return b""


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Of several frame headers before the scan the largest: which one a decoder takes is its own affair."""
    sizes: list[tuple[int, int]] = []
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:
            at += 2
            continue
        if marker == _START_OF_SCAN:
            return (max(width for width, _ in sizes), max(height for _, height in sizes)) if sizes else None
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = int.from_bytes(head[at + 5 : at + 7], "big"), int.from_bytes(head[at + 7 : at + 9], "big")
            sizes.append((width, height))
        length = int.from_bytes(head[at + 2 : at + 4], "big")
        if length < 2:
            return None
        at += 2 + length
    return None


def _webp_size(head: bytes) -> tuple[int, int]:
    match head[12:16]:
        case b"VP8X":
            return (int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1)
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case _:
            return (int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF)
