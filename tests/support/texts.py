"""Generated texts for tokenizers: many scripts, emoji, code, control characters, and what makes tokens small or large."""

import base64
import json
import random
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final

# First and last code points of blocks that people write in, and of some that nobody should.
SCRIPTS: Final = {
    "latin": (0x41, 0x24F),
    "greek": (0x370, 0x3FF),
    "cyrillic": (0x400, 0x52F),
    "armenian": (0x531, 0x58F),
    "hebrew": (0x591, 0x5F4),
    "arabic": (0x600, 0x6FF),
    "syriac": (0x700, 0x74F),
    "devanagari": (0x900, 0x97F),
    "bengali": (0x980, 0x9FE),
    "tamil": (0xB82, 0xBFA),
    "thai": (0xE01, 0xE5B),
    "tibetan": (0xF00, 0xFDA),
    "georgian": (0x10A0, 0x10FF),
    "hangul jamo": (0x1100, 0x11FF),
    "ethiopic": (0x1200, 0x137C),
    "cherokee": (0x13A0, 0x13FD),
    "khmer": (0x1780, 0x17F9),
    "mongolian": (0x1800, 0x18AA),
    "punctuation": (0x2000, 0x206F),
    "numbers and arrows": (0x2150, 0x21FF),
    "mathematics": (0x2200, 0x22FF),
    "box drawing": (0x2500, 0x257F),
    "kana": (0x3041, 0x30FF),
    "han": (0x4E00, 0x9FFF),
    "hangul": (0xAC00, 0xD7A3),
    "private use": (0xE000, 0xF8FF),
    "compatibility": (0xF900, 0xFAD9),
    "presentation forms": (0xFB00, 0xFDFF),
    "half and full width": (0xFF01, 0xFFEE),
    "gothic": (0x10330, 0x1034A),
    "cuneiform": (0x12000, 0x12399),
    "mathematical letters": (0x1D400, 0x1D7FF),
    "emoji": (0x1F300, 0x1FAFF),
    "rare han": (0x20000, 0x2A6DF),
    "tags": (0xE0001, 0xE007F),
}
_PROSE: Final = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you"
    " were her all she there would their we him been has when who will more no if out so said what up its about into"
)
_CODE: Final = (
    "def f(x: int) -> int:\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }\n",
    '\tif err != nil {\n\t\treturn nil, fmt.Errorf("read %s: %w", path, err)\n\t}\n',
    "SELECT id, name FROM users WHERE id IN (1, 2, 3) ORDER BY name;\n",
    "<div class=\"row\"><a href='/x?y=1&amp;z=2'>&nbsp;</a></div>\n",
    "$ curl -s https://example.com/api/v1 | jq '.items[] | select(.n > 3)'\n",
)
_EMOJI: Final = ("👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "😀", "✍🏿", "🧑🏻‍🚀", "❤️", "1️⃣")


def _letters(chance: random.Random, characters: int) -> str:
    first, last = chance.choice(list(SCRIPTS.values()))
    found = "".join(chr(chance.randint(first, last)) for _ in range(characters))
    return found if chance.random() < 0.5 else " ".join(found[at : at + 5] for at in range(0, len(found), 5))


def _anything(chance: random.Random, characters: int) -> str:
    points = (chance.randrange(0x110000) for _ in range(characters))
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


def _controls(chance: random.Random, characters: int) -> str:
    return "".join(chr(chance.choice((chance.randrange(0x20), 0x7F, chance.randrange(0x80, 0xA0)))) for _ in range(characters))


def _runs(chance: random.Random, characters: int) -> str:
    return chance.choice(" \n\t-=_.#*/\r0a中\u00a0\u200b\u3000") * characters


def _sentences(chance: random.Random, characters: int) -> str:
    words = _PROSE.split(" ")
    return " ".join(chance.choice(words) for _ in range(characters // 5 + 1)).capitalize() + "."


def _code(chance: random.Random, characters: int) -> str:
    return "".join(chance.choice(_CODE) for _ in range(characters // 40 + 1))


def _data(chance: random.Random, characters: int) -> str:
    match chance.randrange(4):
        case 0:
            return base64.b64encode(chance.randbytes(characters)).decode()
        case 1:
            return chance.randbytes(characters).hex()
        case 2:
            return json.dumps({_letters(chance, 3): chance.random() for _ in range(characters // 20 + 1)})
        case _:
            return "".join(chance.choice("0123456789,.-e ") for _ in range(characters))


def _emoji(chance: random.Random, characters: int) -> str:
    return "".join(chance.choice(_EMOJI) for _ in range(characters // 3 + 1))


def _decomposed(chance: random.Random, characters: int) -> str:
    """Letters taken apart, and signs that become longer when they are normalised."""
    grown = "\u0958\u0344\u1fd3\u2126\ufdfa\ufb2c\u00bd\u2a74\u3300\ufdfb"
    text = _letters(chance, characters) + chance.choice(grown) * chance.randrange(8)
    return unicodedata.normalize(chance.choice(("NFD", "NFC", "NFKD")), text) + chance.choice(grown)


Kind = Callable[[random.Random, int], str]
KINDS: Final[tuple[Kind, ...]] = (
    _letters,
    _anything,
    _controls,
    _runs,
    _sentences,
    _code,
    _data,
    _emoji,
    _decomposed,
)


ORDINARY: Final = (_sentences, _code)


def texts(number: int, *, seed: int = 1, kinds_of: Sequence[Kind] = KINDS) -> list[str]:
    """So many texts of up to 400 characters, every kind in turn and each third a mixture; the same for the same seed."""
    chance = random.Random(seed)
    found = []
    for index in range(number):
        kinds = [kinds_of[index % len(kinds_of)]] if index % 3 else chance.choices(kinds_of, k=3)
        found.append("".join(kind(chance, chance.choice((0, 1, 7, 30, 400 // len(kinds)))) for kind in kinds))
    return found
