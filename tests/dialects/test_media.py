"""What a body tells of its images: their size where their header says it in one way only, and nothing where it does not."""

import base64
import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.request import MediaKind, MediaPart
from gateway.dialects import DIALECTS
from gateway.dialects.media import LOOKED_AT_BYTES, image_size, media_part

CHAT = DIALECTS["/v1/chat/completions"]


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height) + bytes(13)


def jpeg(*sizes: tuple[int, int], before: bytes = b"") -> bytes:
    """A JPEG up to its scan, with a frame header for each size; before: one application segment."""
    head = b"\xff\xd8"
    if before:
        head += b"\xff\xe1" + struct.pack(">H", len(before) + 2) + before
    for width, height in sizes:
        head += b"\xff\xc0" + struct.pack(">HBHHB", 8, 8, height, width, 0)
    return head + b"\xff\xda" + bytes(20)


def webp(kind: bytes, payload: bytes) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBP" + kind + struct.pack("<I", len(payload)) + payload + bytes(30)


def data_url(data: bytes) -> str:
    return "data:image/any;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png(640, 480), (640, 480)),
        (jpeg((640, 480)), (640, 480)),
        (jpeg((640, 480), before=bytes(60_000)), (640, 480)),
        (jpeg((640, 10), (20, 480)), (640, 480)),
        (webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", 640, 480)), (640, 480)),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 479 << 14)), (640, 480)),
        (webp(b"VP8X", bytes(4) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")), (640, 480)),
        (b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(20), None),
        (png(0, 480), None),
        (jpeg(), None),
        (b"", None),
        (b"\xff\xd8" + bytes(100), None),
    ],
)
def test_an_image_has_the_size_of_its_header(data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(data) == size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_real_picture_is_read_as_a_real_decoder_reads_it(kind: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    written = io.BytesIO()
    image.new("RGB", (321, 123)).save(written, kind)
    assert image_size(written.getvalue()) == (321, 123)


@given(st.binary(max_size=200), st.sampled_from([b"", png(1, 1)[:12], b"\xff\xd8", b"RIFF0000WEBPVP8X", b"RIFF0000WEBPVP8L"]))
def test_no_bytes_make_it_fail(data: bytes, before: bytes) -> None:
    size = image_size(before + data)
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image_url", {"url": data_url(png(3, 4))}),
        ("image_url", data_url(png(3, 4))),
        ("input_image", data_url(png(3, 4))),
        ("image", {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(3, 4)).decode()}),
        ("image", {"source": {"type": "base64", "data": base64.b64encode(png(3, 4)).decode()}}),
    ],
)
def test_the_image_is_found_where_each_dialect_puts_it(name: str, value: object) -> None:
    assert media_part(name, value) == MediaPart(MediaKind.IMAGE, 3, 4)


@pytest.mark.parametrize(
    "value",
    [None, 7, [], {}, {"url": "https://host/cat.png"}, "data:image/png,rawtext", "data:" + "x" * 2000, "data:;base64,é"],
)
def test_an_image_that_is_not_in_the_body_has_no_size(value: object) -> None:
    assert media_part("image_url", value) == MediaPart(MediaKind.IMAGE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("input_audio", MediaKind.AUDIO), ("video_url", MediaKind.VIDEO), ("file", MediaKind.DOCUMENT), ("new", MediaKind.OTHER)],
)
def test_what_is_no_image_has_a_kind_only(name: str, kind: MediaKind) -> None:
    assert media_part(name, {"data": base64.b64encode(png(3, 4)).decode()}) == MediaPart(kind)


def test_only_the_beginning_of_a_large_image_is_looked_at() -> None:
    far = jpeg((640, 480), before=bytes(65_000))
    assert media_part("image_url", data_url(far + bytes(2 * LOOKED_AT_BYTES))) == MediaPart(MediaKind.IMAGE, 640, 480)
    far_off = b"\xff\xd8" + 3 * (b"\xff\xe1" + struct.pack(">H", 65_002) + bytes(65_000)) + jpeg((640, 480))[2:]
    assert media_part("image_url", data_url(far_off)) == MediaPart(MediaKind.IMAGE)


@pytest.mark.parametrize("pixels_bytes", [10, 2_000_000])
def test_a_chat_tells_its_images_whether_it_is_small_or_large(pixels_bytes: int) -> None:
    url = data_url(png(640, 480) + bytes(pixels_bytes))
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    (prompt,) = CHAT.read_request(body).prompts
    assert prompt.media_parts == 1
    assert prompt.media == (MediaPart(MediaKind.IMAGE, 640, 480),)
    assert prompt.text_bytes < 500  # a picture is no text


def test_a_media_key_in_hidden_letters_is_taken_for_one_of_which_nothing_is_known() -> None:
    body = b'{"messages":[{"role":"user","content":[{"type":"x","im\\u0061ge_url":"%s"}]}]}' % (b"x" * 2_000_000)
    (prompt,) = CHAT.read_request(body).prompts
    assert (prompt.media_parts, prompt.media) == (1, ())
