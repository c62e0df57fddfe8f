"""Shadow runs: what would have become of a request that was refused early, because its wait was predicted to be too long.

At every refusal (or every so many) the run is copied as it stands, and in the copy, its shadow, this one refusal is noted and
not made: the request waits, until its turn or its deadline, and everything else goes on as it does in the run. So a
prediction is judged in the world that it was made in: a run in which nobody is refused has a line full of those who give up
in the end, and makes a wait of whoever stands behind them that no gateway would see.

A session is a list of turns, each so long after the end of the one before as its user thought; a request of a trace is a
session of one turn.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from gateway.core.decisions import Granted, Refused
from gateway.core.guards import Guards
from gateway.core.names import TicketId
from gateway.core.outcomes import RejectReason
from gateway.core.ticket import Ticket
from gateway.simulator.engine import EngineShape
from support.simulated_run import Ask, SimulatedRun

_FOR_EVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Turn:
    """think_s: from the end of the turn before to this one."""

    think_s: float
    ask: Ask


@dataclass(slots=True)
class Prediction:
    """One request that had to wait. predicted_s: None where nothing could be said. wait_s: None: its deadline came first."""

    predicted_s: float | None
    wait_s: float | None = None


@dataclass(slots=True)
class Seen:
    """waits: those that were let into the line. refusals: those whose refusal was judged in a shadow."""

    arrived: int = 0
    refused_early: int = 0
    waits: list[Prediction] = field(default_factory=list)
    refusals: list[Prediction] = field(default_factory=list)

    @property
    def timed_out(self) -> int:
        return sum(each.wait_s is None for each in self.waits)

    @property
    def refused_in_vain(self) -> float:
        """Of the refusals that were judged, the share of those who would have had their turn in time."""
        return sum(each.wait_s is not None for each in self.refusals) / max(len(self.refusals), 1)

    def error(self, part: float) -> float:
        """A quantile of truth over prediction, of those who were told a second or more and had their turn."""
        errors = sorted(
            each.wait_s / each.predicted_s
            for each in self.waits
            if each.wait_s is not None and each.predicted_s is not None and each.predicted_s >= 1.0
        )
        return errors[round(part * (len(errors) - 1))] if errors else float("nan")

    def __str__(self) -> str:
        quantiles = ", ".join(f"p{part * 100:.0f} {self.error(part):.2f}" for part in (0.05, 0.25, 0.5, 0.75, 0.95))
        return (
            f"{self.arrived} requests: {len(self.waits)} waited, {self.timed_out} of them in vain; {self.refused_early} refused"
            f" early, of {len(self.refusals)} judged {self.refused_in_vain:.1%} would have been in time;"
            f" truth over prediction {quantiles}"
        )


class ShadowedRun(SimulatedRun):
    """patience_s: after which requests that wait are given up, each drawn for itself. judged: every so many early refusals
    are judged, of those after `judged_from_s`."""

    def __init__(
        self, shape: EngineShape, *, commitment: str, patience_s: Sequence[float], judged: int = 1, judged_from_s: float = 0.0
    ) -> None:
        super().__init__(shape, commitment=commitment, guards=Guards(), wait_margin=0.5)
        self._patiences = patience_s
        self.saw = Seen()
        self._judged = judged
        self._judged_from_s = judged_from_s
        self._sessions: list[list[Turn]] = []
        self._order = count()
        self._due: list[tuple[float, int, int]] = []  # when a session's next turn comes
        self._predictions: dict[TicketId, Prediction] = {}

    def begin(self, turns: Sequence[Turn], *, at: float) -> None:
        """A session whose first turn comes at that instant."""
        self._sessions.append(list(turns))
        self._clients = len(self._sessions)
        self._come(self._clients - 1, at)

    def _come(self, number: int, at: float) -> None:
        heappush(self._due, (at, next(self._order), number))

    def _happen(self) -> None:
        while self._due and self._due[0][0] <= self.now:
            number = heappop(self._due)[2]
            self._ask(number, self._sessions[number].pop(0).ask)

    def _ask(self, number: int, ask: Ask) -> None:
        self.saw.arrived += 1
        self.patience_s = self._draw.choice(self._patiences)
        ticket = self._call(number, ask).ticket
        decision = self.book.join(ticket, now=self.now)
        if isinstance(decision, Granted):
            self._start(decision)
            return
        if isinstance(decision, Refused):
            assert decision.reason is RejectReason.PREDICTED_WAIT
            self.saw.refused_early += 1
            if self._judged and self.now >= self._judged_from_s and self.saw.refused_early % self._judged == 0:
                wait_s = copy.deepcopy(self)._wait_of(ticket)
                self.saw.refusals.append(Prediction(decision.predicted_wait_s, wait_s))
            self._refused(ticket.id)
            return
        standing = self.book.standing(ticket.id, now=self.now)
        assert standing is not None
        self._expect(ticket, Prediction(standing.wait_s))

    def _expect(self, ticket: Ticket, prediction: Prediction) -> None:
        self.saw.waits.append(prediction)
        self._predictions[ticket.id] = prediction

    def _wait_of(self, ticket: Ticket) -> float | None:
        """This run is a shadow: the ticket waits, whatever is predicted. Its wait (seconds); None: its deadline comes first."""
        self._judged = 0
        prediction = Prediction(None)
        self.book.join(replace(ticket, deadline=self.now + _FOR_EVER_S), now=self.now)
        self._expect(ticket, prediction)
        while prediction.wait_s is None and self.now < ticket.deadline:
            self.until(self.now + 0.001)
        return prediction.wait_s if self.now <= ticket.deadline else None

    def _start(self, granted: Granted) -> None:
        prediction = self._predictions.pop(granted.ticket.id, None)
        if prediction is not None:
            prediction.wait_s = self.now - granted.ticket.arrived
        super()._start(granted)

    def _refused(self, ticket_id: TicketId) -> None:
        self._predictions.pop(ticket_id, None)
        number = self._calls[ticket_id].client
        super()._refused(ticket_id)
        self._join(number)

    def _join(self, client: int) -> None:
        """A turn is over; what comes next comes when its user has thought."""
        if turns := self._sessions[client]:
            self._come(client, self.now + turns[0].think_s)
