"""How long a text can become when a tokenizer normalises it first: never less than it does, and without normalising it.

Some do nothing, some bring it into form NFC (Qwen's), some into NFKC (XLM-R's, T5's), which replaces characters such as `½`
by longer ones. NFC is the form of nearly all text already, which is quickly seen; NFKC is not, and making it takes 20 ms for
240 kB of Chinese. So the few characters that it makes longer are looked for instead.
"""

import re
import unicodedata
from typing import Final

# Text can grow by this when it is normalised: U+FDFA, 3 bytes, becomes 33 (Unicode Standard Annex 15 gives the same figure).
MOST_GROWTH: Final = 11

# All characters of Unicode 16 whose form NFKC is longer in UTF-8 than they are and than their form NFC: those in
# Latin-1, those and all others of up to three bytes, and those of four. One search for all takes three times as long.
_LATIN_LONGER_IN_NFKC: Final = bytes((0xA8, 0xAF, 0xB4, 0xB8, 0xBC, 0xBD, 0xBE))
_LONGER_IN_NFKC: Final = (
    "a8 af b4 b8 bc-be 13f-140 149 1c4-1c6 2d8-2dd 37a 384-385 587 675-678 e33 eb3 edc-edd f77 f79 1fc1 1fcd-1fcf 1fdd-1fdf"
    " 1fed-1fee 2033-2034 2036-2037 2057 2150-215f 2167 2177 2189 222c-222d 222f-2230 247d-2487 2a0c 309b-309c 309f 30ff"
    " 3200-321e 3220-3243 327c-327d 32c0-32cb 32ff-3370 337b-337f 3389 33a7-33a8 33ae-33af 33c2 33c6 33d8 33de-33fe"
    " fb13-fb17 fb4f fbdd fbea-fbfb fc00-fd3d fd50-fd8f fd92-fdc7 fdf0-fdfc fe71 fe77 fe79 fe7b fe7d fe7f fef5-fefc"
)
_WIDE_LONGER_IN_NFKC: Final = "1f12a 1f200-1f201 1f240-1f248"


def _character_class(ranges: str) -> str:
    ends = [[chr(int(end, 16)) for end in part.split("-")] for part in ranges.split()]
    return "[" + "".join("-".join(part) for part in ends) + "]"


_LONGER: Final = re.compile(_character_class(_LONGER_IN_NFKC))
_WIDE_LONGER: Final = re.compile(_character_class(_WIDE_LONGER_IN_NFKC))
_ASCII: Final = bytes(range(0x80))
# The first byte of all that `_WIDE_LONGER` finds, and that of curly quotes and long dashes, which are what most often makes a
# text in a Latin script one that is not Latin-1.
_FOUR_BYTES: Final = 0xF0
_PUNCTUATION: Final = 0xE2


def normalised_bytes(text: str) -> int:
    """UTF-8 bytes of a text in the longest of its forms: as it is, NFC, and NFKC."""
    encoded = text.encode()
    plain = longest = len(encoded)
    if plain == len(text):
        return plain
    # To be told by an exception that a text is not Latin-1 takes longer than all the rest here.
    if _PUNCTUATION not in encoded and is_stable_latin(text):
        return plain
    # What is not ASCII decides, and is little of most texts. A mark that so comes to follow another letter than its own can
    # only make a text look as if it were not in form NFC.
    shown = text if plain > 2 * len(text) else encoded.translate(None, _ASCII).decode()
    if not unicodedata.is_normalized("NFC", shown):
        longest = max(plain, len(unicodedata.normalize("NFC", text).encode()))
    longer = "".join(_LONGER.findall(shown))
    if _FOUR_BYTES in encoded:
        longer += "".join(_WIDE_LONGER.findall(shown))
    if not longer:
        return longest
    grown = sum(len(unicodedata.normalize("NFKC", character).encode()) for character in longer)
    return longest + grown - len(longer.encode())


def is_stable_latin(text: str) -> bool:
    """Whether the text is all Latin-1, and no form of it is longer than it is: form NFC is what such a text is in."""
    try:
        latin = text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    for byte in _LATIN_LONGER_IN_NFKC:  # noqa: SIM110 – each is looked for at once in C, and a generator costs as much again
        if byte in latin:
            return False
    return True
