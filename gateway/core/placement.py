"""Placement: which backend, among those where a ticket fits.

The prompt's start, or the session, names one by rendezvous hashing, so that turns that share a prefix meet the same prefix
cache, and a backend that comes or goes moves only its own share. A backend that is much fuller than the emptiest is not
worth its cache.
"""

from collections.abc import Sequence
from hashlib import blake2b

from gateway.core.ledger import BackendLedger


def choose(affinity: bytes, backends: Sequence[BackendLedger]) -> BackendLedger:
    """The backend to run on: the one that the hash names, unless it is more than 20 % of budget fuller than the emptiest.

    backends: at least one, each with a budget. affinity b"" has no favourite: the emptiest.
    """
    if len(backends) == 1:
        return backends[0]
    emptiest = min(backends, key=_fill)
    if not affinity:
        return emptiest
    start = blake2b(affinity, digest_size=8)

    def weight(backend: BackendLedger) -> bytes:
        digest = start.copy()
        digest.update(b"\0" + backend.name.encode())
        return digest.digest()

    favourite = max(backends, key=weight)
    return emptiest if _is_much_fuller(favourite, emptiest) else favourite


def least_bad(backends: Sequence[BackendLedger]) -> BackendLedger:
    """Where to run what fits nowhere (observe mode): a backend that serves, then one with a budget, then the emptiest."""
    return min(backends, key=lambda backend: (not backend.serving, backend.budget is None, _fill(backend)))


def _fill(backend: BackendLedger) -> float:
    return backend.taken_blocks / (1 if backend.budget is None else backend.budget.blocks)


def _is_much_fuller(one: BackendLedger, other: BackendLedger) -> bool:
    # In whole numbers: fill - fill > 1/5, times both budgets. As floats 0.9 - 0.7 is already more than 0.2.
    one_budget = one.budget.blocks if one.budget is not None else 1
    other_budget = other.budget.blocks if other.budget is not None else 1
    return 5 * (one.taken_blocks * other_budget - other.taken_blocks * one_budget) > one_budget * other_budget
