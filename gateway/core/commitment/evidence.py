"""Evidence: what past and running answers tell about how long the next one becomes, by class and its wider classes.

A class is a family (a model on an engine's version), a lane and a bucket of the cap that the client sent (by powers of
two; none sent is a bucket of its own). A class speaks for itself from `ENOUGH` answers on; until then the wider one does.
After 30 answers the short ones, which end first, still outweigh the others; after 100 they do not (measured on traces).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gateway.core.commitment.lengths import Lengths, bin_of
from gateway.core.names import LaneName
from gateway.core.ticket import Ticket

ENOUGH: Final = 100
_MOST_CLASSES: Final = 512
_SEED_WEIGHT: Final = 128.0  # what an engine's own histogram counts for: it gives way to what is seen here
_FORMAT: Final = 1

ClassName = tuple[str, ...]
"""(family,), (family, lane) or (family, lane, bucket)."""


class Ending(Enum):
    """How an answer ended, for what it tells about lengths."""

    FINISHED = "finished"  # by itself
    CAPPED = "capped"  # its output cap was reached
    LEFT = "left"  # cut off: the client left, or something broke


@dataclass(frozen=True, slots=True)
class ClassEvidence:
    """One class for the operator. expected_tokens: what a new answer of it is taken to become, None: unknown."""

    name: ClassName
    completions: int
    expected_tokens: int | None


class Following:
    """A running answer in the evidence: its classes, narrowest first, and the bin in which it is."""

    __slots__ = ("bin", "classes")

    def __init__(self, classes: tuple[Lengths, ...]) -> None:
        self.classes = classes
        self.bin = 0
        for lengths in classes:
            lengths.moves(None, 0)

    def reaches(self, tokens: int) -> None:
        """It has so many tokens now."""
        if (after := bin_of(tokens)) != self.bin:
            for lengths in self.classes:
                lengths.moves(self.bin, after)
            self.bin = after

    def ends(self) -> None:
        for lengths in self.classes:
            lengths.moves(self.bin, None)


class Evidence:
    """All classes of one gateway. Memory is bounded: once there are very many, new narrow classes are left out."""

    def __init__(self) -> None:
        self._classes: dict[ClassName, Lengths] = {}
        self._seeded: set[str] = set()

    def lengths_for(self, ticket: Ticket) -> Lengths | None:
        """What speaks for this ticket: its narrowest class that has seen enough; None if none has."""
        for name in _names(ticket):
            lengths = self._classes.get(name)
            if lengths is not None and lengths.completions >= ENOUGH:
                return lengths
        return None

    def follow(self, ticket: Ticket) -> Following:
        """The answer to this ticket begins."""
        return Following(self._classes_of(ticket))

    def learn(self, ticket: Ticket, tokens: int, ending: Ending) -> bool:
        """An answer that was followed has ended after so many tokens. Returns whether forecasts are others now."""
        changed = False
        for lengths in self._classes_of(ticket):
            if ending is Ending.FINISHED:
                changed |= lengths.finished(tokens)
            else:
                changed |= lengths.left(tokens, counts=ending is Ending.CAPPED)
            changed |= lengths.completions == ENOUGH
        return changed

    def doubt(self) -> None:
        """A forecast by it went wrong: what comes from now on counts for more."""
        for lengths in self._classes.values():
            lengths.doubt()

    def has_family(self, family: str) -> bool:
        """Whether anything is known of that family."""
        return (family,) in self._classes

    def families(self) -> frozenset[str]:
        """All families of which something is known."""
        return frozenset(name[0] for name in self._classes)

    def seed(self, family: str, counts: Iterable[tuple[int, int]]) -> bool:
        """Begin a family with the engine's own histogram: (tokens at most, answers). Taken once, and only where nothing
        is known yet. An upper bound of each bucket makes the forecast cautious. Returns whether it was taken."""
        counted = [(tokens, answers) for tokens, answers in counts if answers > 0]
        total = sum(answers for _, answers in counted)
        if family in self._seeded or total < ENOUGH:
            return False
        self._seeded.add(family)
        lengths = self._class((family,))
        if lengths is None or lengths.completions >= ENOUGH:
            return False
        scale = min(1.0, _SEED_WEIGHT / total)
        lengths.seed(((tokens, answers * scale) for tokens, answers in counted), min(total, ENOUGH))
        return True

    def seen(self) -> Iterator[ClassEvidence]:
        """Every class, for the operator."""
        for name, lengths in self._classes.items():
            yield ClassEvidence(name, lengths.completions, lengths.expected(0))

    def record(self) -> dict[str, Any]:
        """Everything that is worth keeping, in terms of JSON."""
        return {
            "kvgate_evidence": _FORMAT,
            "classes": [
                {"class": list(name), "completions": lengths.completions, "bins": lengths.rows()}
                for name, lengths in self._classes.items()
                if lengths.completions
            ],
        }

    def take(self, record: object) -> frozenset[str]:
        """Begin with what `record` gave, in this process or an earlier one. Returns its families.

        A class counts only for tickets of its own family, so what was learned of another model or version is without
        effect. Raises ValueError for anything else than such a record; nothing is taken then.
        """
        taken: dict[ClassName, Lengths] = {}
        for entry in _entries(record):
            name, completions, rows = _read(entry)
            lengths = taken.setdefault(name, Lengths())
            lengths.take(rows, completions)
        if len(taken) > _MOST_CLASSES:
            raise ValueError(f"more than {_MOST_CLASSES} classes")
        self._classes.update(taken)
        return frozenset(name[0] for name in taken)

    def _classes_of(self, ticket: Ticket) -> tuple[Lengths, ...]:
        found = (self._class(name) for name in _names(ticket))
        return tuple(lengths for lengths in found if lengths is not None)

    def _class(self, name: ClassName) -> Lengths | None:
        lengths = self._classes.get(name)
        if lengths is None and len(self._classes) < _MOST_CLASSES:
            lengths = self._classes[name] = Lengths()
        return lengths


def cap_bucket(cap_tokens: int | None) -> str:
    """Caps within a factor of two are one bucket, named by its upper end; `none` where no cap was sent."""
    return "none" if cap_tokens is None else f"<{1 << cap_tokens.bit_length()}"


def _names(ticket: Ticket) -> tuple[ClassName, ClassName, ClassName]:
    family: str = ticket.family
    lane: LaneName = ticket.lane
    return (family, lane, cap_bucket(ticket.cap_tokens)), (family, lane), (family,)


def _entries(record: object) -> list[Any]:
    if (
        not isinstance(record, Mapping)
        or record.get("kvgate_evidence") != _FORMAT
        or not isinstance(record.get("classes"), list)
    ):
        raise ValueError("no record of evidence of this format")
    entries: list[Any] = record["classes"]
    return entries


def _read(entry: Any) -> tuple[ClassName, int, list[tuple[int, float, float, float]]]:
    try:
        name, completions, bins = tuple(entry["class"]), entry["completions"], entry["bins"]
        rows = [(int(at), float(ended), float(tokens), float(cut)) for at, ended, tokens, cut in bins]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("a class that cannot be read") from None
    if not 1 <= len(name) <= 3 or not all(isinstance(part, str) for part in name):
        raise ValueError("a class without a name")
    if not isinstance(completions, int) or isinstance(completions, bool) or completions < 0:
        raise ValueError("a class without a number of answers")
    return name, completions, rows
