"""What the book answers with: values that say what was decided. The edges wait, send, refuse and count by them.

What is made for every request is not frozen, which would make it four times as dear; nobody changes it all the same.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.names import BackendName
from gateway.core.outcomes import RejectReason
from gateway.core.ticket import Ticket


class Mode(StrEnum):
    """ENFORCE obeys the rules. OBSERVE admits everything at once and says what the rules would have done."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class Queued:
    """Not now: the ticket stands in its line and will be granted or refused by a later call."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refused:
    """The ticket is gone.

    retry_after_s: seconds until this demand would probably be granted; None where that is unknown or waiting cures nothing.
    predicted_wait_s: the wait that was predicted, None if unknown.
    need_blocks, limit_blocks: the demand, and the whole budget, of the largest backend that it may run on (0: none is known).
    """

    ticket: Ticket
    reason: RejectReason
    retry_after_s: float | None
    predicted_wait_s: float | None
    need_blocks: int
    limit_blocks: int


Verdict = Queued | Refused


@dataclass(slots=True)
class Granted:
    """The ticket may run on `backend` now and holds `charged_blocks` there until it is released.

    verdict: what the rules said instead, in observe mode only; None where the rules granted it as well.
    """

    ticket: Ticket
    backend: BackendName
    worst_blocks: int
    charged_blocks: int
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a waiting ticket stands. ahead: tickets before it. wait_s: about how long it will still wait, None: unknown."""

    ahead: int
    wait_s: float | None


@dataclass(slots=True)
class Changes:
    """Everything that a call changed for tickets that were waiting, in the order in which it happened.

    released_blocks: blocks that the named ticket gave back by this call: 0 if it only left a line or its hold grew, and
    None if it was not there to do so (a second release, leaving after the grant). 0 where the call names no ticket.
    """

    granted: tuple[Granted, ...] = ()
    refused: tuple[Refused, ...] = ()
    released_blocks: int | None = 0


NOTHING: Final = Changes()
