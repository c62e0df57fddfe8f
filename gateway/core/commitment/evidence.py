"""Evidence: what past and running answers tell about how long the next one becomes, by class and its wider classes.

A class is a family (a model on an engine's version), a lane and a bucket of the cap that the client sent (by powers of
two; none sent is a bucket of its own). A class speaks for itself from `ENOUGH` answers on; until then the wider one does.
After 30 answers the short ones, which end first, still outweigh the others; after 100 they do not (measured on traces).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.core.commitment.lengths import Ending, Lengths, bin_of
from gateway.core.names import LaneName
from gateway.core.ticket import Ticket

ENOUGH: Final = 100
_MOST_CLASSES: Final = 512
_SEED_WEIGHT: Final = 128.0  # what an engine's own histogram counts for: it gives way to what is seen here
_FORMAT: Final = 1

ClassName = tuple[str, ...]
"""(family,), (family, lane) or (family, lane, bucket)."""
_Likeness = tuple[str, LaneName, int | None]


@dataclass(frozen=True, slots=True)
class ClassEvidence:
    """One class for the operator. expected_tokens: what a new answer of it is taken to become, None: unknown."""

    name: ClassName
    completions: int
    expected_tokens: int | None


class Following:
    """A running answer in the evidence: its classes, narrowest first, and the bin in which it is."""

    __slots__ = ("_bin", "_classes")

    def __init__(self, classes: tuple[Lengths, ...], tokens: int) -> None:
        self._classes = classes
        self._bin = bin_of(tokens)
        for lengths in classes:
            lengths.running[self._bin] += 1

    def reaches(self, tokens: int) -> None:
        """It has so many tokens now."""
        before, after = self._bin, bin_of(tokens)
        if after != before:
            self._bin = after
            for lengths in self._classes:
                lengths.running[before] -= 1
                lengths.running[after] += 1

    def ends(self) -> None:
        for lengths in self._classes:
            lengths.running[self._bin] -= 1


class Evidence:
    """All classes of one gateway. Memory is bounded: once there are very many, new narrow classes are left out."""

    def __init__(self) -> None:
        self._classes: dict[ClassName, Lengths] = {}
        # The classes of a ticket, narrowest first, where they are all there: found once, for every ticket that is like it.
        self._found: dict[_Likeness, tuple[Lengths, ...]] = {}
        self._seeded: set[str] = set()

    def lengths_for(self, ticket: Ticket) -> Lengths | None:
        """What speaks for this ticket: its narrowest class that has seen enough; None if none has."""
        for lengths in self._found.get(_likeness(ticket)) or self._known(ticket):
            if lengths.completions >= ENOUGH:
                return lengths
        return None

    def follow(self, ticket: Ticket, tokens: int) -> Following:
        """The answer to this ticket has so many tokens, at least 1, and is followed from here on. Before its first one there
        is nothing to follow: that it runs says nothing about its length."""
        return Following(self._found.get(_likeness(ticket)) or self._classes_of(ticket), tokens)

    def learn(self, ticket: Ticket, tokens: int, ending: Ending) -> bool:
        """An answer has ended after so many tokens. Returns whether forecasts are others now."""
        if tokens < 1:
            tokens = 1
        at = bin_of(tokens)
        changed = False
        for lengths in self._found.get(_likeness(ticket)) or self._classes_of(ticket):
            if lengths.ended(tokens, at, ending) or lengths.completions == ENOUGH:
                changed = True
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
        self._found.clear()
        return frozenset(name[0] for name in taken)

    def _classes_of(self, ticket: Ticket) -> tuple[Lengths, ...]:
        """The classes of a ticket, narrowest first; made where they were not there."""
        names = _names(ticket)
        classes = tuple(lengths for lengths in map(self._class, names) if lengths is not None)
        if len(classes) == len(names):  # so there are never more of them than of narrow classes
            self._found[_likeness(ticket)] = classes
        return classes

    def _known(self, ticket: Ticket) -> Iterator[Lengths]:
        """The classes of a ticket that are there, narrowest first."""
        return (self._classes[name] for name in _names(ticket) if name in self._classes)

    def _class(self, name: ClassName) -> Lengths | None:
        lengths = self._classes.get(name)
        if lengths is None and len(self._classes) < _MOST_CLASSES:
            lengths = self._classes[name] = Lengths()
        return lengths


def cap_bucket(cap_tokens: int | None) -> str:
    """Caps within a factor of two are one bucket, named by its upper end; `none` where no cap was sent."""
    return "none" if cap_tokens is None else f"<{1 << cap_tokens.bit_length()}"


def _likeness(ticket: Ticket) -> _Likeness:
    """What decides of which classes a ticket is."""
    cap_tokens = ticket.cap_tokens
    return ticket.family, ticket.lane, None if cap_tokens is None else cap_tokens.bit_length()


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
