"""Returning: who was refused and comes back when it was told to is not put behind those who came meanwhile.

An SDK that obeys `Retry-After` sends the very same body again and says that it does (`x-stainless-retry-count`). Then the
request takes the place in its line that its first arrival would have given it; its deadline, and all else, is that of a
newcomer.

A refusal is remembered by a digest of the caller's credential and of the body, made with a secret of this process, so that
nobody can find out, or guess, what is remembered. It counts once, not before the time that was told (a client that comes at
once has not waited), and not long after.

How it can be abused: a caller that is refused may claim the place of its first try with any later request that has the same
body. That is the place that it would have had in an endless line, for each refusal once, and only within its own tenant's
line, so it gains nothing on others that waiting would not have given it. Who sends many bodies to be refused pushes older
refusals out of the memory, which is bounded; those come back as newcomers then, which is what everybody is without it.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.relay.headers import CREDENTIALS, Header
from gateway.web.asked import RETRY_COUNT, Asked

MOST_REMEMBERED: Final = 8192
# A client's clock and the way to it may make it a little early; late it may be by as much as it was told to wait, and a few
# seconds more (bodies are uploaded, clients are busy).
_EARLY_S: Final = 0.1
_LATE_S: Final = 30.0
# Nobody was told to stay away for longer than this in all, times a few tries.
MOST_CREDIT_S: Final = 600.0

Mark = bytes


@dataclass(frozen=True, slots=True)
class _Refusal:
    """first_arrived: of the first try. not_before, not_after: when its return counts. Monotonic seconds."""

    first_arrived: float
    not_before: float
    not_after: float


def says_it_returns(asked: Asked) -> bool:
    """Whether the client says that it has tried before."""
    count = asked.get(RETRY_COUNT)
    return count is not None and count.isdigit() and count.strip(b"0") != b""


class Returning:
    """The refusals that may still come back."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._refused: OrderedDict[Mark, _Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def mark(self, body: bytes, headers: Sequence[Header]) -> Mark:
        """What a request is known by. Takes a millisecond for a megabyte."""
        digest = hashlib.blake2b(body, key=self._secret, digest_size=16)
        for name, value in headers:
            if name.lower() in CREDENTIALS:
                digest.update(b"\0" + value)
        return digest.digest()

    def refused(self, mark: Mark, *, arrived: float, told_wait_s: float, now: float) -> None:
        """The request was refused and told to come back in so many seconds. arrived: of its first try."""
        self._refused.pop(mark, None)
        self._refused[mark] = _Refusal(arrived, now + told_wait_s - _EARLY_S, now + 2 * told_wait_s + _LATE_S)
        if len(self._refused) > MOST_REMEMBERED:
            self._refused.popitem(last=False)

    def arrived(self, mark: Mark, *, now: float) -> float | None:
        """When the request came first, if it was told to come back now; None if it counts as new."""
        refusal = self._refused.get(mark)
        if refusal is None or now < refusal.not_before:
            return None
        del self._refused[mark]
        return max(refusal.first_arrived, now - MOST_CREDIT_S) if now <= refusal.not_after else None
