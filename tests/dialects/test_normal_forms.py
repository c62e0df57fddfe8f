"""A text is counted as long as any tokenizer may make it by normalising it first."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.normal_forms import MOST_GROWTH, normalised_bytes
from support.texts import texts


def longest_form(text: str) -> int:
    return max(len(form.encode()) for form in (text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFKC"))))


def test_no_character_of_this_python_is_counted_too_short() -> None:
    for point in range(0x80, sys.maxunicode + 1):
        if 0xD800 <= point <= 0xDFFF:
            continue
        character = chr(point)
        if unicodedata.is_normalized("NFC", character) and unicodedata.is_normalized("NFKC", character):
            continue
        assert longest_form(character) <= normalised_bytes(character) <= MOST_GROWTH * len(character.encode())


@given(st.text(max_size=50))
def test_no_text_is_counted_too_short(text: str) -> None:
    assert normalised_bytes(text) >= longest_form(text)


@given(st.text(alphabet="eAz éÅ\u0301\u0323\u030a\u0344\u0958½ﷺ㍿가\u1100\u1161\u11a8𝅘𝅥\U0001f12a😀", max_size=12))
def test_no_text_of_marks_between_letters_is_counted_too_short(text: str) -> None:
    assert normalised_bytes(text) >= longest_form(text)
    assert normalised_bytes("plain " * 20 + text) >= longest_form("plain " * 20 + text)


def test_no_generated_text_is_counted_too_short_and_most_are_counted_exactly() -> None:
    counted = [(normalised_bytes(text), longest_form(text)) for text in texts(3000)]
    assert all(bytes_ >= longest for bytes_, longest in counted)
    assert sum(bytes_ == longest for bytes_, longest in counted) > 0.9 * len(counted)


@pytest.mark.parametrize("text", ["", "plain", "中文，。", "naïve", "😀"])
def test_ordinary_text_is_its_bytes(text: str) -> None:
    assert normalised_bytes(text) == len(text.encode())
