"""Geometry as plain data, in one form for `plan --json`, `check` and tests."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from gateway.core.geometry.groups import Group, Kind


def number(amount: Fraction | int) -> int | float:
    """A whole number where it is one; else as a decimal, which is exact for the ratios there are."""
    fraction = Fraction(amount)
    return fraction.numerator if fraction.denominator == 1 else float(fraction)


def group_report(group: Group) -> dict[str, Any]:
    """One group: kind, layers, bytes of one cell or state, and only what else it has."""
    grows = group.kind is not Kind.STATE
    told: dict[str, Any] = {
        "kind": str(group.kind),
        "layers": group.layers,
        "bytes_per_token_per_layer": group.cell_bytes if grows else 0,
    }
    if group.window is not None:
        told["window"] = group.window
    if group.kind is Kind.STATE:
        told["state_bytes_per_layer"] = group.state_bytes
    if group.tokens_per_cell > 1:
        told["tokens_per_cell"] = group.tokens_per_cell
    if group.tag:
        told["tag"] = group.tag
    return told


def groups_report(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """All groups, in their order."""
    return [group_report(group) for group in groups]
