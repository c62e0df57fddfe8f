"""Inputs that nobody would write: good samples, mutated, with a seed; and the loop that tries them.

A target is a function that checks one input and raises if it finds something. Inputs are worked out from (target, number),
so a finding is repeated by its number alone. No input may take longer than a hang does: an alarm ends it.
"""

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

HANGS_AFTER_S = 20.0

NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"16384",
    b"16385",
    b"2147483647",
    b"2147483648",
    b"-2147483648",
    b"9223372036854775808",
    b"1e5",
    b"1e400",
    b"0.5",
    b"1.0",
    b"-0",
    b"01",
    b"0x10",
    b"NaN",
    b"9" * 5_000,
)
WORDS = (
    b"null",
    b"true",
    b"false",
    b"{}",
    b"[]",
    b'""',
    b'"\\ud83d"',
    b'"\\u0000"',
    b'"\xf0\x9f\x98\x80"',
    b"\xff",
    b"\x00",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"\\",
    b'\\"',
    b'"',
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[" * 2_000,
    b'{"a":' * 2_000,
    b"data: ",
    b"event: error\n",
    b"data: [DONE]\n\n",
    b" ",
    b"\t",
    b"0\r\n\r\n",
    b"x" * 3_000,
)


def mutate(dice: random.Random, samples: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """One of the samples, changed in one to six places. words: more of what may be put in."""
    data = bytearray(dice.choice(samples))
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
        at = dice.randint(0, len(data))
        end = min(len(data), at + dice.choice((1, 1, 2, 4, 16, 200)))
        match dice.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << dice.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * dice.choice((1, 2, 30))
            case 3:
                data[at:at] = dice.choice((*WORDS, *words))
            case 4:
                data[at:end] = dice.choice((*WORDS, *words))
            case 5:
                _swap_number(dice, data)
            case 6:
                del data[at:]
            case 7:
                other = dice.choice(samples)
                data[at:end] = other[dice.randint(0, len(other)) :]
            case _:
                data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 4)))
    return bytes(data[:200_000])


def _swap_number(dice: random.Random, data: bytearray) -> None:
    starts = [at for at in range(len(data)) if data[at] in b"0123456789" and (not at or data[at - 1] not in b"0123456789")]
    if starts:
        start = end = dice.choice(starts)
        while end < len(data) and data[end] in b"0123456789":
            end += 1
        data[start:end] = dice.choice(NUMBERS)


def cuts(dice: random.Random, data: bytes) -> list[bytes]:
    """The data as it may arrive: whole, in a few pieces, or byte by byte."""
    if dice.random() < 0.1 and len(data) < 2_000:
        return [data[at : at + 1] for at in range(len(data))]
    edges = sorted(dice.randint(0, len(data)) for _ in range(dice.choice((0, 1, 1, 2, 5))))
    pieces = [data[start:end] for start, end in zip([0, *edges], [*edges, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def try_all(
    target: str,
    inputs: int,
    samples: Sequence[bytes],
    check: Callable[[bytes, random.Random], None],
    *,
    words: Sequence[bytes] = (),
) -> None:
    """Try so many mutated inputs on `check`. Raises AssertionError with the input at the first that it does not stand."""
    with _alarm() as rearm:
        for number in range(inputs):
            dice = random.Random(f"{target}/{number}")
            data = mutate(dice, samples, words)
            rearm()
            try:
                check(data, dice)
            except Exception as error:
                shown = data if len(data) < 2_000 else data[:1_000] + b" ... " + data[-500:]
                raise AssertionError(f"{target}, input {number}: {type(error).__name__}: {error}\n{shown!r}") from error


@contextmanager
def _alarm() -> Iterator[Callable[[], None]]:
    def ring(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"took longer than {HANGS_AFTER_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda: _set_alarm(HANGS_AFTER_S)
    finally:
        _set_alarm(0.0)
        signal.signal(signal.SIGALRM, before)


def _set_alarm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
